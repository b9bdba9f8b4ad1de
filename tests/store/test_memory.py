"""The store in memory: sizes, isolation from the caller, forks."""

from __future__ import annotations

import gc
import tracemalloc
from types import MappingProxyType

import pytest

from knapcache.errors import CorruptState, InvalidInput, StoreError
from knapcache.store.memory import MIN_SIZE_LIMIT, OVERHEAD, MemoryStore
from knapcache.store.packed import RECORD_OVERHEAD
from tests.support.stores import content, entry_of, spawn


@pytest.mark.parametrize("count", [1400, 2700])  # after and before the dict grows
def test_an_entry_takes_no_more_memory_than_its_size(count: int) -> None:
    store = MemoryStore(64 << 20)
    meta = {"usage": {"prompt": 10_001, "completion": 20_002}, "finish": "stop", "tags": ["a", "b"]}
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name in range(count):
            store.apply(entry_of(store, name, 100, tenant=f"tenant {name}", model=f"model {name}", meta=meta))
        gc.collect()  # of the futures
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    charged = store.totals().size - count * (OVERHEAD - RECORD_OVERHEAD)  # the rest is for what the cache has of it
    assert 0.7 * charged < used <= charged


def test_the_garbage_collector_visits_no_entry() -> None:
    store = MemoryStore(64 << 20)
    gc.collect()
    before = len(gc.get_objects())
    for name in range(2000):
        store.apply(entry_of(store, name, 100, meta={"usage": {"prompt": name}}))
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert not gc.is_tracked(store._records)


def test_decoded_entries_are_bounded_and_never_outdated() -> None:
    store = MemoryStore(1 << 20)
    entries = [entry_of(store, name, 500) for name in range(300)]
    for entry in entries:
        store.apply(entry).result()
    for entry in entries[-10:] * 2:
        assert store.get(entry.key) == entry
    assert store.get(entry.key) is store.get(entry.key)
    for entry in entries:
        assert store.get(entry.key) == entry
    assert 0 < store._decoded.charged() <= (1 << 20) // 16 == store.size_limit - store.capacity - (1 << 15)
    newer = entry_of(store, 299, 500, version=1)
    store.apply(newer).result()
    assert store.get(newer.key) == newer
    store.apply(evict=[newer.key]).result()
    assert store.get(newer.key) is None


def test_a_caller_cannot_change_a_stored_entry() -> None:
    store = MemoryStore(1 << 20)
    meta = {"n": 5, "version": 0}
    entry = entry_of(store, "a", 5, meta=meta)
    store.apply(entry)
    meta["n"] = 6
    kept = store.get(entry.key)
    assert kept is not None
    assert isinstance(kept.meta, MappingProxyType)
    assert kept.meta["n"] == 5
    assert kept.payload == content(("a", 0), 5)


def test_a_forked_child_owns_an_independent_copy() -> None:
    """Even if another thread of the parent was inside a change, and held the lock."""
    code = """
        import os
        from knapcache.store.memory import MemoryStore
        from tests.support.stores import entry_of
        store = MemoryStore(1 << 20)
        first, second = entry_of(store, "first"), entry_of(store, "second")
        store.apply(first).result()
        with store._lock:
            store._size += 1
            child = os.fork()
            if child == 0:
                assert store.reader() is store and store.owner
                store.apply(second, evict=[first.key]).result()
                assert store.get(first.key) is None and store.get(second.key) == second
                store.check()
                os._exit(0)
            store._size -= 1
        assert os.waitpid(child, 0)[1] == 0
        assert store.get(first.key) == first and store.get(second.key) is None
        store.check()
    """
    child = spawn(code)
    assert child.communicate(timeout=60)[1] == ""
    assert child.returncode == 0


def test_limits_of_the_store() -> None:
    store = MemoryStore(MIN_SIZE_LIMIT)
    assert (store.size_limit, store.max_snapshot_size) == (64 << 10, 2 << 10)
    assert store.capacity == store.max_entry_size == 58 << 10  # 4 KiB are for decoded entries
    with pytest.raises(InvalidInput, match="at least 65536 bytes"):
        MemoryStore(MIN_SIZE_LIMIT - 1)
    exact = entry_of(store, "a", 0)
    exact = entry_of(store, "a", store.capacity - exact.size)
    exact = entry_of(store, "a", exact.meta["n"] - (exact.size - store.capacity))
    assert exact.size == store.capacity
    store.apply(exact, snapshot=b"s" * store.max_snapshot_size).result()
    assert store.totals() == (1, store.capacity)
    store.check()
    larger = entry_of(store, "a", exact.meta["n"] + 1)
    with pytest.raises(StoreError, match=f"the entry has {larger.size} bytes, {store.capacity} are free"):
        store.apply(larger).result()
    with pytest.raises(StoreError, match="the snapshot has 2049 bytes, at most 2048"):
        store.apply(snapshot=b"s" * 2049).result()
    assert store.load_snapshot() == b"s" * 2048
    assert (store.totals(), store.counters()) == ((0, 0), {"refused": 2})


def test_check_finds_a_wrong_size() -> None:
    store = MemoryStore(1 << 20)
    store.apply(entry_of(store, "a")).result()
    store.check()
    for change in (1, -1):
        store._size += change
        with pytest.raises(CorruptState, match="recomputed"):
            store.check()
        store._size -= change
    store.capacity = store._size
    store.check()
    store.capacity -= 1
    with pytest.raises(CorruptState, match="above capacity"):
        store.check()


def test_a_closed_store_is_empty_and_refuses() -> None:
    store = MemoryStore(1 << 20)
    entry = entry_of(store, "a")
    store.apply(entry, snapshot=b"state").result()
    assert store.own()
    store.close()
    assert not store.own()
    assert (store.get(entry.key), store.load_snapshot(), store.totals(), list(store.scan())) == (None, None, (0, 0), [])
    with pytest.raises(StoreError, match="the store is closed"):
        store.apply(entry).result()
    store.check()
