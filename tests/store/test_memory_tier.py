"""The memory tier never exceeds its capacity, never holds an outdated entry, and bounds what a collection visits."""

from __future__ import annotations

import gc
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from knapcache.store.base import NOT_IN_MEMORY, Entry
from knapcache.store.memory import MemoryStore
from knapcache.store.memory_tier import DECODED_OVERHEAD, MAX_DECODED, MemoryTier, flat_size, flatten
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of

STORE = MemoryStore(1 << 20)


def entry(name: object, n: int = 0) -> Entry:
    return entry_of(STORE, name, n)


def test_an_entry_that_changed_while_it_was_read_is_not_added() -> None:
    tier = MemoryTier(1 << 20)
    version = tier.version  # a reader begins …
    tier.discard([entry("a").key])  # … the entry is evicted …
    tier.add(entry("a"), version)  # … and the reader adds it.
    assert tier.get(entry("a").key) is None
    tier.add(entry("a"), tier.version)
    assert tier.get(entry("a").key) == entry("a")
    tier.clear()
    assert tier.get(entry("a").key) is None


@pytest.mark.parametrize("capacity", [0, 4000, 20_000, 200_000])
def test_capacity_is_respected_and_popular_entries_stay(capacity: int) -> None:
    tier = MemoryTier(capacity)
    rng = random.Random(0)
    popular = entry("popular")
    tier.add(popular, tier.version)
    for name in range(300):
        tier.add(entry(name, rng.randrange(1500)), tier.version)
        if rng.random() < 0.3:
            tier.discard([entry(rng.randrange(name + 1)).key])
        assert (tier.get(popular.key) == popular) == (capacity >= 4000)
        if capacity > 4000:  # where a half has space for several
            other = entry(rng.randrange(name + 1)).key
            assert (found := tier.get(other)) is None or found.key == other
        assert tier.charged() <= capacity
        flat, decoded = tier._young, tier._young_decoded
        assert sum(map(flat_size, flat.values())) + DECODED_OVERHEAD * len(decoded) == tier._young_size <= capacity // 2
        assert decoded.keys() <= flat.keys()
        assert tier._old_decoded.keys() <= tier._old.keys()
    assert bool(decoded) == (capacity > 4000)


def test_a_full_collection_visits_a_bounded_number_of_entries() -> None:
    tier = MemoryTier(64 << 20)
    gc.collect()
    before = len(gc.get_objects())
    for name in range(5000):
        tier.add(entry(name), tier.version)
        assert tier.get(key_of(name)) == tier.get(key_of(name)) == entry(name)
    assert tier.get(key_of(0)) is tier.get(key_of(0))
    gc.collect()
    assert len(tier._young) == 5000 > 4 * MAX_DECODED
    assert len(gc.get_objects()) - before < 3 * MAX_DECODED + 100  # an entry, its mapping and its dict
    assert not gc.is_tracked(tier._young)  # so that the flat entries are not even counted


class InterceptedDict(dict[bytes, Any]):
    """A dict that calls a function right after one of its lookups."""

    def call_after(self, action: Any, lookups: int = 1) -> InterceptedDict:
        self.action, self.lookups = action, lookups
        return self

    def get(self, key: bytes, default: Any = None) -> Any:
        found = super().get(key, default)
        self.lookups -= 1
        if self.lookups == 0:
            self.action()
        return found


def test_an_entry_that_changed_while_it_was_promoted_is_not_added() -> None:
    tier = MemoryTier(1 << 20)
    popular = entry("popular")
    tier._old = InterceptedDict({popular.key: flatten(popular)}).call_after(lambda: tier.discard([popular.key]))
    assert tier.get(popular.key) == popular  # as it was when the lookup began
    assert tier.get(popular.key) is None


@pytest.mark.parametrize("evicted", [True, False])
def test_an_entry_that_changed_between_two_lookups_is_not_added(tmp_path: Path, evicted: bool) -> None:
    """A reader looks into `pending`; then a change is queued and its commit delayed; then the reader reads the file."""
    with SqliteStore(tmp_path / "answers.db", 1 << 20) as store:
        writer = store._writer
        assert writer
        older, newer = entry_of(store, "a"), entry_of(store, "a", version=1)
        store.apply(older).result()
        allowed, commit = threading.Event(), writer._commit
        writer._commit = lambda batch: (allowed.wait(10), commit(batch))  # type: ignore[assignment]
        writer.pending = InterceptedDict(writer.pending).call_after(
            lambda: store.apply(None if evicted else newer, [older.key] if evicted else []),
            lookups=2,  # the first is by get_nowait
        )
        assert store.get(key_of("a")) == older  # the change came after the lookup began
        assert store.get(key_of("a")) == (None if evicted else newer)
        allowed.set()
        store.flush()
        assert store.get(key_of("a")) == (None if evicted else newer)


def test_an_entry_that_was_read_from_the_file_is_in_memory_afterwards(path: Path) -> None:
    with SqliteStore(path, 1 << 20) as store:
        stored = entry_of(store, "a")
        store.apply(stored).result()
    with SqliteStore(path, 1 << 20) as store:
        assert store.get_nowait(stored.key) is NOT_IN_MEMORY
        assert store.read(stored.key) == stored
        assert store.get_nowait(stored.key) == stored
        store.apply(evict=[stored.key]).result()
        assert store.get(stored.key) is None
