"""The contract of store/base.py as a test suite that every store passes.

    check_store(lambda clock: MyStore(…, clock=clock))

`build` is called for every check. It returns a fresh, empty store that uses the given clock. A store that breaks the
contract raises AssertionError with the name of the check.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput, KnapcacheError, NotOwner, StoreError
from knapcache.store.base import Clock, Entry, NotInMemory, Store, Totals

Build = Callable[[Clock], Store]
Rng = np.random.Generator

INVALIDATION_SECONDS = 5.0
"""How long a reader on another machine may see from its memory what the owner has evicted."""


class ManualClock:
    """A clock that moves only when `now` is set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def make_entry(store: Store, name: object, rng: Rng, **changes: object) -> Entry:
    """Return an entry of random content and length, with the size that the store charges."""
    entry = Entry(
        key=hashlib.sha256(repr(name).encode()).digest(),
        tenant="tenant",
        model="model",
        size=0,
        cost=0.25,
        seconds=1.5,
        created=1_000_000.0,
        expires=None,
        meta={"usage": {"total": 7}, "tags": ["a"]},
        request=rng.bytes(int(rng.integers(1, 400))),
        payload=rng.bytes(int(rng.integers(1, 6000))),
    )._replace(**changes)  # type: ignore[arg-type]
    return entry._replace(size=store.entry_size(entry))


def check_store(build: Build, *, seed: int = 0) -> None:
    """Run all checks below. Raise AssertionError on the first violation."""
    for check in (
        check_put_and_get,
        check_replace,
        check_atomic_change,
        check_expiry,
        check_snapshots,
        check_limits,
        check_invalid_input,
        check_entry_size,
        check_get_nowait,
        check_threads,
        check_roles,
        check_hand_over,
        check_close,
    ):
        clock = ManualClock()
        store = build(clock)
        try:
            check(store, clock, np.random.default_rng(seed))
            store.check()
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
        finally:
            store.close()


def check_put_and_get(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """An entry is returned unchanged, before and after it is durable, and under no other key."""
    entries = [make_entry(store, k, rng) for k in range(20)]
    entries.append(make_entry(store, "empty", rng, request=b"", payload=b"", tenant="", model="", meta={}))
    entries.append(make_entry(store, "odd", rng, tenant="β\0", model="m\n", cost=-0.0, payload=bytes(3000)))
    done = []
    for entry in entries:
        assert store.get(entry.key) is None, "found an entry that was never put"
        done.append(store.apply(entry))
        assert store.get(entry.key) == entry, "a put was not visible at once"
    assert [future.result(10) for future in done] == [None] * len(done)
    for entry in entries:
        assert store.get(entry.key) == entry, "an entry differs from what was put"
    assert sorted(store.scan()) == sorted(entry.info for entry in entries), "scan() differs"
    assert store.totals() == Totals(len(entries), sum(entry.size for entry in entries)), "wrong totals"


def check_get_nowait(store: Store, clock: ManualClock, rng: Rng) -> None:
    """`get_nowait` agrees with `get`, or returns NOT_IN_MEMORY; then `read` agrees with `get`."""
    entries = [make_entry(store, k, rng, expires=clock.now + 10.0 if k % 2 else None) for k in range(10)]
    for flush in (False, True):
        for entry in entries:
            store.apply(entry, evict=[entries[0].key] if entry is entries[9] else [])
        for _ in range(2):  # the second time, entries may be in memory because they were read
            if flush:
                store.flush()
            for entry in entries:
                found = store.get_nowait(entry.key)
                if isinstance(found, NotInMemory):
                    store.flush()
                    found = store.read(entry.key)
                assert found == store.get(entry.key), "get_nowait and get differ"
                if found is not None:
                    assert store.peek(entry.key) == found, "peek and get differ"
        clock.now += 20.0
    assert not store.write_backlog_full, "the backlog is full although nothing is queued"


def check_replace(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """A key has one entry: the last one put."""
    for _ in range(5):
        entry = make_entry(store, "same", rng)
        store.apply(entry)
        assert store.get(entry.key) == entry, "an older entry was returned"
    store.flush()
    assert store.get(entry.key) == entry, "an older entry was returned"
    assert store.totals() == Totals(1, entry.size), "a replaced entry is still counted"


def check_atomic_change(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """`apply` evicts and puts together. Evicting the key that is put, or unknown keys, does no harm."""
    entries = [make_entry(store, k, rng) for k in range(6)]
    for entry in entries[:4]:
        store.apply(entry)
    unknown = hashlib.sha256(b"unknown").digest()
    store.apply(entries[4], evict=[entries[0].key, entries[1].key, unknown])
    assert [store.get(entry.key) is not None for entry in entries] == [False, False, True, True, True, False]
    newer = make_entry(store, 2, rng)
    store.apply(newer, evict=[newer.key])
    store.apply(evict=[entries[3].key]).result(10)
    assert [store.get(entry.key) for entry in entries] == [None, None, newer, None, entries[4], None]
    assert store.totals() == Totals(2, newer.size + entries[4].size), "wrong totals"


def check_expiry(store: Store, clock: ManualClock, rng: Rng) -> None:
    """An entry is found before its expiry time, and not from then on."""
    short = make_entry(store, "short", rng, expires=clock.now + 10)
    long = make_entry(store, "long", rng, expires=clock.now + 20)
    forever = make_entry(store, "forever", rng)
    for entry in (short, long, forever):
        store.apply(entry)
    assert store.expire() == (), "an entry expired too early"
    clock.now += 9.5
    assert store.get(short.key) == short, "an entry was not found before its expiry time"
    clock.now += 0.5
    assert store.get(short.key) is None, "an expired entry was found"
    assert store.expire() == (short.key,)
    assert store.expire() == (), "an entry expired twice"
    assert store.totals() == Totals(2, long.size + forever.size), "an expired entry is still counted"
    clock.now += 1e9
    assert store.get(long.key) is None, "an expired entry was found"
    store.flush()
    assert store.get(long.key) is None, "an expired entry was found"
    assert store.expire() == (long.key,)
    assert store.get(forever.key) == forever, "an entry without expiry time is gone"


def check_snapshots(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """The last snapshot counts. An entry and a snapshot in one `apply` are stored together or not at all."""
    assert store.load_snapshot() is None
    store.apply(snapshot=b"")
    assert store.load_snapshot() == b""
    entry = make_entry(store, 0, rng)
    largest = rng.bytes(store.max_snapshot_size)
    store.apply(entry, snapshot=largest)
    assert store.load_snapshot() == largest
    _assert_fails(store.apply(make_entry(store, 0, rng), snapshot=largest + b"x"), "a snapshot that is too large")
    assert store.get(entry.key) is None, "a put that failed left the older entry"
    assert store.load_snapshot() == largest


def check_limits(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """An entry that does not fit is refused, and its evictions are made. The store remains usable."""
    first = make_entry(store, "first", rng)
    store.apply(first).result(10)
    huge = make_entry(store, "huge", rng, payload=bytes(store.max_entry_size + 1))
    _assert_fails(store.apply(huge, evict=[first.key]), "an entry that is too large")
    assert store.get(huge.key) is None, "found an entry that was refused"
    assert store.get(first.key) is None, "an eviction was refused"
    lengths = range(0, store.max_entry_size, 997)
    length = max(n for n in lengths if _with_payload(store, huge, n).size <= store.max_entry_size)
    held = []
    for k in range(10_000):
        entry = _with_payload(store, make_entry(store, k, rng, request=huge.request), length)
        if store.totals().size + entry.size > store.capacity:
            break
        store.apply(entry).result(30)
        held.append(entry)
    _assert_fails(store.apply(entry), "an entry beyond the capacity")
    assert store.get(entry.key) is None, "found an entry that was refused"
    store.apply(entry, evict=[held[0].key]).result(30)
    assert store.get(entry.key) == entry, "not stored although there was space"
    assert store.totals() == Totals(len(held), len(held) * entry.size), "wrong totals"


def check_invalid_input(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """Invalid arguments raise InvalidInput and change nothing."""
    entry = make_entry(store, 0, rng)
    nan = float("nan")
    wrong: list[dict[str, Any]] = [
        {"key": b"short"}, {"key": "k" * 32}, {"size": 0}, {"size": entry.size + 1}, {"cost": -1.0}, {"cost": nan},
        {"seconds": float("inf")}, {"created": "now"}, {"expires": nan}, {"payload": "text"}, {"request": None},
        {"tenant": b"t"}, {"model": "\ud800"}, {"meta": {"x": object()}}, {"meta": 7},
    ]  # fmt: skip
    _assert_raise(InvalidInput, [lambda: store.get(b"short"), lambda: store.apply(entry, evict=[b"short"])])
    _assert_raise(InvalidInput, [functools.partial(store.apply, entry._replace(**change)) for change in wrong])
    store.flush()
    assert store.totals() == Totals(0, 0), "an invalid call changed the store"


def check_entry_size(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """Sizes do not decrease with the payload, and are at least its length."""
    entry = make_entry(store, 0, rng)
    previous = 0
    for n in [*range(0, 9000, 37), *range(9000, 200_000, 4111)]:
        size = _with_payload(store, entry, n).size
        assert size >= max(previous, n), f"the size of a payload of {n} bytes is {size}"
        previous = size
    assert store.entry_size(entry._replace(expires=1.0)) >= store.entry_size(entry)
    assert 0 < store.max_entry_size <= store.capacity <= store.size_limit


def check_threads(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """Each thread sees its own changes, and no reader ever sees the bytes of another key."""
    versions = [[make_entry(store, k, rng) for _ in range(8)] for k in range(8)]
    valid = {entries[0].key: entries for entries in versions}
    wrong: list[str] = []

    def write(entries: list[Entry]) -> None:
        for entry in entries:
            store.apply(entry)
            if store.get(entry.key) != entry:
                wrong.append("a thread did not see its own put")
            store.apply(evict=[entry.key])
            if store.get(entry.key) is not None:
                wrong.append("a thread saw an entry that it had evicted")
        store.apply(entries[-1])

    def read() -> None:
        for _ in range(30):
            for key, entries in valid.items():
                found = store.get(key)
                if found is not None and found not in entries:
                    wrong.append("a reader got an entry that was never put under that key")

    threads = [threading.Thread(target=write, args=(entries,)) for entries in versions]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    store.flush()
    assert store.totals() == Totals(8, sum(entries[-1].size for entries in versions)), "wrong totals"


def check_roles(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """One owner writes. Readers see what it has committed, cannot write, and can become the owner after it."""
    assert store.owner, "a fresh store is not its owner"
    assert store.own(), "own() of the owner returned False"
    if not store.shared:
        assert store.reader() is store, "reader() of a store that is not shared is another store"
        return
    kept, evicted = make_entry(store, "kept", rng), make_entry(store, "evicted", rng)
    store.apply(evicted).result(10)
    store.apply(kept, evict=[evicted.key], snapshot=b"state").result(10)
    with contextlib.closing(store.reader()) as first, contextlib.closing(first.reader()) as second:
        for reader in (first, second):
            _check_reader(reader, kept, evicted)
        store.close()
        assert not store.own(), "a closed store became the owner"
        assert first.own(), "a reader could not become the owner although there was none"
        assert first.owner, "own() returned True, but owner is False"
        assert not second.own(), "two owners"
        first.apply(evicted, evict=[kept.key]).result(10)
        assert second.get(evicted.key) == evicted, "a reader does not see what the new owner committed"
        deadline = time.monotonic() + INVALIDATION_SECONDS
        while second.get(kept.key) is not None:
            assert time.monotonic() < deadline, "a reader sees what the new owner evicted"
            time.sleep(0.01)
        first.check()


def _check_reader(reader: Store, kept: Entry, evicted: Entry) -> None:
    assert not reader.owner, "reader() returned an owner"
    assert not reader.own(), "two owners"
    assert reader.get(kept.key) == kept, "a reader does not see what the owner committed"
    assert reader.get(evicted.key) is None, "a reader sees what the owner evicted"
    assert list(reader.scan()) == [kept.info], "scan() of a reader differs"
    assert reader.totals() == Totals(1, kept.size), "wrong totals in a reader"
    assert reader.load_snapshot() == b"state", "a reader does not see the snapshot"
    _assert_raise(NotOwner, [lambda: reader.apply(kept), reader.expire, reader.collect, reader.take_counts])


def check_hand_over(store: Store, clock: ManualClock, rng: Rng) -> None:
    """The owner takes each entry and each count once, also those handed over before it became the owner."""
    entries = [make_entry(store, k, rng, expires=clock.now + 10.0 if k else None) for k in range(3)]
    first, second, third = (entry.key for entry in entries)
    assert list(store.collect()) == [], "collected an entry that was not handed over"
    assert not store.take_counts(), "took counts that were not put"
    if not store.shared:
        _assert_raise(StoreError, [lambda: store.hand_over(entries[0]), lambda: store.put_counts({first: 1})])
        return
    with contextlib.closing(store.reader()) as reader:
        _assert_raise(InvalidInput, [lambda: reader.hand_over(entries[0]._replace(size=entries[0].size + 1))])
        for entry in entries[:2]:
            reader.hand_over(entry)
        assert [store.get(first), *reader.scan()] == [None], "an entry was stored without the owner's decision"
        assert reader.get(first) in (None, entries[0]), "a reader got another entry than was handed over"
        assert sorted(store.collect()) == sorted(entries[:2]), "collected other entries than were handed over"
        assert list(store.collect()) == [], "collected twice"
        reader.put_counts({first: 2, second: 1})
        reader.put_counts({first: 3})
        assert store.take_counts() == {first: 5, second: 1}, "wrong counts"
        assert not store.take_counts(), "took counts twice"
        assert reader.max_counted_keys == store.max_counted_keys > 0
        many = {rng.bytes(32): k + 1 for k in range(reader.max_counted_keys + 5)}
        reader.put_counts(many)
        assert store.take_counts() == dict(list(many.items())[5:]), "not the highest counts"
        reader.hand_over(entries[2])
        reader.put_counts({third: 7})
        store.close()
        assert reader.own(), "a reader could not become the owner although there was none"
        assert list(reader.collect()) == [entries[2]], "an entry handed over to the former owner is lost"
        assert reader.take_counts() == {third: 7}, "counts for the former owner are lost"


def check_close(store: Store, _clock: ManualClock, rng: Rng) -> None:
    """A closed store finds nothing, accepts nothing, and can be closed again."""
    entry = make_entry(store, 0, rng)
    store.apply(entry).result(10)
    store.close()
    store.close()
    assert store.get(entry.key) is None, "found an entry in a closed store"
    with contextlib.suppress(StoreError):
        _assert_fails(store.apply(entry), "a put into a closed store")


def _assert_fails(done: Future[None], what: str) -> None:
    error = done.exception(30)
    assert isinstance(error, StoreError), f"{what} did not fail with StoreError, but {error!r}"


def _assert_raise(expected: type[KnapcacheError], calls: Iterable[Callable[[], object]]) -> None:
    for number, call in enumerate(calls):
        try:
            call()
        except expected:
            continue
        raise AssertionError(f"call {number} did not raise {expected.__name__}")


def _with_payload(store: Store, entry: Entry, n: int) -> Entry:
    entry = entry._replace(payload=bytes(n))
    return entry._replace(size=store.entry_size(entry))
