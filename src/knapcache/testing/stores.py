"""The contract of store/contract.py as a test-suite that every store passes.

    check_store(lambda clock: MyStore(…, clock=clock))

`build` makes a fresh, empty store every time it is called, with the clock it is given. Each check compares the store
with what it was told to hold. A store that breaks the contract raises AssertionError, saying in which check.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.store.base import Entry, NotInMemory, Store, Totals

Build = Callable[[Callable[[], float]], Store]
"""clock → a fresh, empty store."""

Rng = np.random.Generator


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        """Unix time."""
        return self.now


def make_entry(store: Store, name: object, rng: Rng, **changes: object) -> Entry:
    """An entry of random content and size, charged as the store does."""
    request, payload = (rng.bytes(int(rng.integers(1, n))) for n in (400, 6000))
    entry = Entry(
        hashlib.sha256(repr(name).encode()).digest(), "tenant", "model", 0, 0.25, 1.5, 1_000_000.0, None,
        {"usage": {"total": 7}, "tags": ["a"]}, request, payload,
    )._replace(**changes)  # type: ignore[arg-type]  # fmt: skip
    return entry._replace(size=store.entry_size(entry))


def check_store(build: Build, *, seed: int = 0) -> None:
    """Run every check below; raises AssertionError on the first breach."""
    for check in (
        what_was_put_is_got,
        replaced,
        one_step,
        expiry,
        purges,
        snapshots,
        too_much,
        bad_input,
        charges,
        at_hand_or_away,
        many_threads,
        roles,
        handing_over,
        closed,
    ):
        clock = Hand()
        store = build(clock)
        try:
            check(store, clock, np.random.default_rng(seed))
            store.check()
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
        finally:
            store.close()


def what_was_put_is_got(store: Store, _clock: Hand, rng: Rng) -> None:
    """Before and after it is kept, whole, and under no other key."""
    entries = [make_entry(store, k, rng) for k in range(20)]
    entries.append(make_entry(store, "empty", rng, request=b"", payload=b"", tenant="", model="", meta={}))
    entries.append(make_entry(store, "odd", rng, tenant="β\0", model="m\n", cost=-0.0, payload=bytes(3000)))
    done = []
    for entry in entries:
        assert store.get(entry.key) is None, "found what was never put"
        done.append(store.apply(entry))
        assert store.get(entry.key) == entry, "not seen at once"
    assert [future.result(10) for future in done] == [None] * len(done)
    for entry in entries:
        assert store.get(entry.key) == entry, "not as it was put"
    assert sorted(store.scan()) == sorted(entry.info for entry in entries), "heads() differ"
    assert store.totals() == Totals(len(entries), sum(entry.size for entry in entries)), "wrong totals"


def at_hand_or_away(store: Store, clock: Hand, rng: Rng) -> None:
    """What memory says is what `get` says, or that only the disk can tell; then `read` tells the same."""
    entries = [make_entry(store, k, rng, expires=clock.now + 10.0 if k % 2 else None) for k in range(10)]
    for wait in (False, True):
        for entry in entries:
            store.apply(entry, evict=[entries[0].key] if entry is entries[9] else [])
        for _ in range(2):  # as it is on its way, or not; and then perhaps after it was read
            if wait:
                store.flush()
            for entry in entries:
                found = store.get_nowait(entry.key)
                if isinstance(found, NotInMemory):
                    store.flush()
                    found = store.read(entry.key)
                assert found == store.get(entry.key), "get_nowait and get differ"
        clock.now += 20.0
    assert not store.write_backlog_full, "nothing waits"


def replaced(store: Store, _clock: Hand, rng: Rng) -> None:
    """A key has one entry: the last one put."""
    for _ in range(5):
        entry = make_entry(store, "same", rng)
        store.apply(entry)
        assert store.get(entry.key) == entry, "an older entry"
    store.flush()
    assert store.get(entry.key) == entry, "an older entry"
    assert store.totals() == Totals(1, entry.size), "an older entry is still counted"


def one_step(store: Store, _clock: Hand, rng: Rng) -> None:
    """Some leave as one comes, also its own older self; unknown keys are no matter."""
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


def expiry(store: Store, clock: Hand, rng: Rng) -> None:
    """An entry is there until its time, and not from then on."""
    short = make_entry(store, "short", rng, expires=clock.now + 10)
    long = make_entry(store, "long", rng, expires=clock.now + 20)
    ever = make_entry(store, "ever", rng)
    for entry in (short, long, ever):
        store.apply(entry)
    assert store.expire() == (), "expired too early"
    clock.now += 9.5
    assert store.get(short.key) == short, "gone too early"
    clock.now += 0.5
    assert store.get(short.key) is None, "there for too long"
    assert store.expire() == (short.key,)
    assert store.expire() == (), "expired twice"
    assert store.totals() == Totals(2, long.size + ever.size), "expired entries are still counted"
    clock.now += 1e9
    assert store.get(long.key) is None, "there for too long"
    store.flush()
    assert store.get(long.key) is None, "there for too long"
    assert store.expire() == (long.key,)
    assert store.get(ever.key) == ever, "gone without a time to go"


def purges(store: Store, clock: Hand, rng: Rng) -> None:
    """By tenant, by model, by age, by all of these, and everything."""

    def fill() -> list[Entry]:
        entries = [
            make_entry(store, (tenant, model, age), rng, tenant=tenant, model=model, created=clock.now - age)
            for tenant in ("a", "b")
            for model in ("x", "y")
            for age in (0, 100)
        ]
        for entry in entries:
            store.apply(entry)
        return entries

    conditions: list[tuple[dict[str, object], Callable[[Entry], bool]]] = [
        ({"tenant": "a"}, lambda entry: entry.tenant == "a"),
        ({"model": "y"}, lambda entry: entry.model == "y"),
        ({"before": clock.now - 50}, lambda entry: entry.created < clock.now - 50),
        (
            {"tenant": "b", "model": "x", "before": clock.now},
            lambda entry: entry.tenant == "b" and entry.model == "x" and entry.created < clock.now,
        ),
        ({"tenant": "c"}, lambda _: False),
        ({}, lambda _: True),
    ]
    for condition, meets in conditions:
        entries = fill()
        gone = store.purge(**condition)  # type: ignore[arg-type]
        assert sorted(gone) == sorted(entry.key for entry in entries if meets(entry)), f"purge({condition})"
        for entry in entries:
            assert store.get(entry.key) == (None if meets(entry) else entry), f"after purge({condition})"
    assert store.totals() == Totals(0, 0), "everything was purged, and something is counted"


def snapshots(store: Store, _clock: Hand, rng: Rng) -> None:
    """The last one counts; entries and snapshot go together."""
    assert store.load_snapshot() is None
    store.apply(snapshot=b"")
    assert store.load_snapshot() == b""
    entry = make_entry(store, 0, rng)
    whole = rng.bytes(store.max_snapshot_size)
    store.apply(entry, snapshot=whole)
    assert store.load_snapshot() == whole
    fails(store.apply(make_entry(store, 0, rng), snapshot=whole + b"x"), "a snapshot that is too large")
    assert store.get(entry.key) is None, "a put that failed left the older entry"
    assert store.load_snapshot() == whole


def too_much(store: Store, _clock: Hand, rng: Rng) -> None:
    """What does not fit is refused, with its evictions done; the store goes on."""
    first = make_entry(store, "first", rng)
    store.apply(first).result(10)
    huge = make_entry(store, "huge", rng, payload=bytes(store.max_entry_size + 1))
    fails(store.apply(huge, evict=[first.key]), "an entry that is too large")
    assert store.get(huge.key) is None, "found what was refused"
    assert store.get(first.key) is None, "an eviction was refused"
    size = max(n for n in range(0, store.max_entry_size, 997) if _with(store, huge, n).size <= store.max_entry_size)
    held = []
    for k in range(10_000):
        entry = _with(store, make_entry(store, k, rng, request=huge.request), size)
        if store.totals().size + entry.size > store.capacity:
            break
        store.apply(entry).result(30)
        held.append(entry)
    fails(store.apply(entry), "more than the capacity")
    assert store.get(entry.key) is None, "found what was refused"
    store.apply(entry, evict=[held[0].key]).result(30)
    assert store.get(entry.key) == entry, "not kept though there was room"
    assert store.totals() == Totals(len(held), len(held) * entry.size), "wrong totals"


def bad_input(store: Store, _clock: Hand, rng: Rng) -> None:
    """A call that makes no sense raises InvalidInput and changes nothing."""
    entry = make_entry(store, 0, rng)
    nan = float("nan")
    wrong: list[dict[str, object]] = [
        {"key": b"short"}, {"key": "k" * 32}, {"size": 0}, {"size": entry.size + 1}, {"cost": -1.0}, {"cost": nan},
        {"seconds": float("inf")}, {"created": "now"}, {"expires": nan}, {"payload": "text"}, {"request": None},
        {"tenant": b"t"}, {"model": "\ud800"}, {"meta": {"x": object()}}, {"meta": 7},
    ]  # fmt: skip
    calls: list[Callable[[], object]] = [
        *(lambda change=change: store.apply(entry._replace(**change)) for change in wrong),
        lambda: store.get(b"short"),
        lambda: store.apply(entry, evict=[b"short"]),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except InvalidInput:
            continue
        raise AssertionError(f"call {number}, which makes no sense, was accepted")
    store.flush()
    assert store.totals() == Totals(0, 0), "a refused call left a trace"


def charges(store: Store, _clock: Hand, rng: Rng) -> None:
    """More bytes are never charged less, and none is free."""
    entry = make_entry(store, 0, rng)
    previous = 0
    for n in [*range(0, 9000, 37), *range(9000, 200_000, 4111)]:
        size = _with(store, entry, n).size
        assert size >= max(previous, n), f"{n} bytes are charged {size}"
        previous = size
    assert store.entry_size(entry._replace(expires=1.0)) >= store.entry_size(entry)
    assert 0 < store.max_entry_size <= store.capacity


def many_threads(store: Store, _clock: Hand, rng: Rng) -> None:
    """Threads with keys of their own see their own writes; nobody ever sees another's bytes."""
    versions = [[make_entry(store, k, rng) for _ in range(8)] for k in range(8)]
    valid = {entries[0].key: entries for entries in versions}
    wrong: list[str] = []

    def write(entries: list[Entry]) -> None:
        for entry in entries:
            store.apply(entry)
            if store.get(entry.key) != entry:
                wrong.append("a thread did not see what it had put")
            store.apply(evict=[entry.key])
            if store.get(entry.key) is not None:
                wrong.append("a thread saw what it had evicted")
        store.apply(entries[-1])

    def read() -> None:
        for _ in range(30):
            for key, entries in valid.items():
                found = store.get(key)
                if found is not None and found not in entries:
                    wrong.append("a reader got something that was never put there")

    threads = [threading.Thread(target=write, args=(entries,)) for entries in versions]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    store.flush()
    assert store.totals() == Totals(8, sum(entries[-1].size for entries in versions)), "wrong totals"


def roles(store: Store, _clock: Hand, rng: Rng) -> None:
    """One owner writes. Readers see what it has committed, cannot write, and one of them can succeed it."""
    assert store.owner, "a fresh store is not its owner"
    assert store.own(), "own() by the owner"
    if not store.shared:
        assert store.reader() is store, "a store that is not shared is its own reader"
        return
    kept, gone = make_entry(store, "kept", rng), make_entry(store, "gone", rng)
    store.apply(gone).result(10)
    store.apply(kept, evict=[gone.key], snapshot=b"state").result(10)
    with contextlib.closing(store.reader()) as reader, contextlib.closing(reader.reader()) as other:
        for child in (reader, other):
            assert not child.owner, "reader() returned an owner"
            assert not child.own(), "two owners"
            assert child.get(kept.key) == kept, "a reader does not see what was committed"
            assert child.get(gone.key) is None, "a reader sees what was evicted"
            assert list(child.scan()) == [kept.info]
            assert child.totals() == Totals(1, kept.size)
            assert child.load_snapshot() == b"state"
            apply = functools.partial(child.apply, kept)
            calls: list[Callable[[], object]] = [apply, child.purge, child.expire, child.collect, child.take_counts]
            for call in calls:
                try:
                    call()
                except NotOwner:
                    continue
                raise AssertionError("a reader was allowed to do what only an owner may")
        store.close()
        assert not store.own(), "a closed store became the owner"
        assert reader.own(), "the owner is gone and a reader cannot succeed it"
        assert reader.owner, "own() returned True, and owner is False"
        assert not other.own(), "two owners"
        reader.apply(gone, evict=[kept.key]).result(10)
        assert other.get(gone.key) == gone, "a reader does not see what the new owner committed"
        assert other.get(kept.key) is None, "a reader sees what the new owner evicted"
        reader.check()


def handing_over(store: Store, clock: Hand, rng: Rng) -> None:
    """The owner takes each entry and each count once; also those from before it became the owner."""
    entries = [make_entry(store, k, rng, expires=clock.now + 10.0 if k else None) for k in range(3)]
    assert list(store.collect()) == [], "collected what was not handed over"
    assert not store.take_counts(), "took counts that were not put"
    if not store.shared:
        refused: list[Callable[[], object]] = [
            lambda: store.hand_over(entries[0]),
            lambda: store.put_counts({entries[0].key: 1}),
        ]
        for call in refused:
            try:
                call()
            except StoreError:
                continue
            raise AssertionError("a store without readers accepted what nobody can collect")
        return
    first, second, third = (entry.key for entry in entries)
    with contextlib.closing(store.reader()) as reader:
        try:
            reader.hand_over(entries[0]._replace(size=entries[0].size + 1))
        except InvalidInput:
            pass
        else:
            raise AssertionError("an entry of the wrong size was handed over")
        for entry in entries[:2]:
            reader.hand_over(entry)
        assert reader.get(first) is None, "handed over is not decided"
        assert sorted(store.collect()) == sorted(entries[:2]), "collected something else"
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
        assert reader.own(), "the owner is gone and a reader cannot succeed it"
        assert list(reader.collect()) == [entries[2]], "what was handed over to the last owner is lost"
        assert reader.take_counts() == {third: 7}, "counts for the last owner are lost"


def closed(store: Store, _clock: Hand, rng: Rng) -> None:
    """A closed store finds nothing, keeps nothing, and closes again without complaint."""
    entry = make_entry(store, 0, rng)
    store.apply(entry).result(10)
    store.close()
    store.close()
    assert store.get(entry.key) is None, "found in a closed store"
    with contextlib.suppress(StoreError):
        fails(store.apply(entry), "a put into a closed store")


def fails(done: Future[None], what: str) -> None:
    """The future holds StoreError."""
    error = done.exception(30)
    assert isinstance(error, StoreError), f"{what} was not refused with StoreError, but {error!r}"


def _with(store: Store, entry: Entry, n: int) -> Entry:
    entry = entry._replace(payload=bytes(n))
    return entry._replace(size=store.entry_size(entry))
