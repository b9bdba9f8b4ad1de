"""Copy the entries and the policy's state of one store into another.

Entries keep their keys, so both caches need the same secret. They are copied in the order of value per byte
(entries.py), as long as they fit: of a larger source, a smaller target gets the most valuable ones. Nothing in the
target is evicted for them. An entry replaces an older one of the same key; an entry that is as new or newer in the
target stays. Each copy is one change of the target, so an interrupted run leaves whole entries, and the next run goes
on with the others. The source is only read.

The sizes of entries differ between kinds of stores, and so do capacities. A snapshot belongs to one capacity:

    the same capacity, and the target has no snapshot    it is copied as it is
    otherwise                                            the policy gets a trace with as many requests for each entry
                                                         as the source has counted, evenly distributed, and its state
                                                         after the trace is the snapshot

What the source's policy knows of requests whose answers it does not hold is not in such a trace.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from knapcache.cache import background_compile
from knapcache.cache.entry_index import request_counts
from knapcache.cache.ids import IdTable, table_size
from knapcache.cache.snapshot import SnapshotContents, copy_state, pack, read_snapshot
from knapcache.errors import StoreError
from knapcache.policy import registry
from knapcache.store.base import Clock, Entry, EntryInfo, Store, expired, wall_clock

MAX_IN_FLIGHT = 64
"""Copies that the target has not confirmed yet."""
NEARLY_FULL = 100
"""The target counts as full when an entry does not fit and less than this part of its capacity is free."""
SAMPLE = 100
"""Copied entries that are read again at the end."""
MAX_REQUESTS = 1000
"""Requests for one entry in the trace that makes a snapshot: a key with that many stays resident anyway."""
PLAIN_REQUESTS = 10
"""Requests of that trace that count as one entry where it is decided whether kernels are compiled first. Plain forms
take a millisecond for one, and a compilation takes a minute."""
Progress = Callable[[str, int, int], object]
"""Called with what is copied ("entries" or "policy"), the steps done, and all steps."""


@dataclass
class MigrationResult:
    """Counts of the entries that a migration copied and left out, or that it would copy and leave out."""

    entries: int = 0
    """Entries of the source."""
    copied: int = 0
    size: int = 0
    """Bytes of the copied entries, as the target charges them; in a preview, as the source does."""
    present: int = 0
    """Entries that are as new or newer in the target."""
    expired: int = 0
    gone: int = 0
    """Entries that the source removed during the copy, or that are damaged."""
    no_space: int = 0
    too_large: int = 0
    """Entries that the target takes in no case."""
    snapshot: str = "none"
    """"copied", "converted" or "none"."""
    verified: int = 0
    """Copied entries that were read again and compared."""


@dataclass
class SourceEntries:
    """The entries of the source, the most valuable per byte first."""

    infos: list[EntryInfo]
    requests: Mapping[bytes, float]
    snapshot: SnapshotContents | None
    snapshot_bytes: bytes | None = field(repr=False)


def read_source(source: Store) -> SourceEntries:
    """Read the metadata of all entries of a store, and the policy's snapshot."""
    packed = source.load_snapshot()
    snapshot = read_snapshot(packed or b"")
    requests = _counted(snapshot)
    infos = sorted(
        source.scan(), key=lambda info: (-requests.get(info.key, 1.0) * info.cost / max(1, info.size), info.key)
    )
    return SourceEntries(infos, requests, snapshot, packed)


def _counted(snapshot: SnapshotContents | None) -> dict[bytes, float]:
    """Return the requests that the policy of a snapshot has counted, by key."""
    if snapshot is None:
        return {}
    counts = request_counts(snapshot.policy, np.arange(len(snapshot.keys)))
    return dict(zip(snapshot.keys, counts.tolist(), strict=True))


def preview(found: SourceEntries, target: Store | None, capacity: int, clock: Clock = wall_clock) -> MigrationResult:
    """Return what `migrate` would copy, by the sizes in the source. `target`: None if it does not exist yet."""
    result = MigrationResult(entries=len(found.infos))
    stored = {} if target is None else {info.key: info for info in target.scan()}
    free = capacity - sum(info.size for info in stored.values())
    for info in found.infos:
        old = stored.get(info.key)
        if expired(info.expires, clock()):
            result.expired += 1
        elif old is not None and old.created >= info.created:
            result.present += 1
        elif info.size > free + (old.size if old else 0):
            result.no_space += 1
        else:
            free -= info.size - (old.size if old else 0)
            result.copied += 1
            result.size += info.size
    return result


def migrate(
    source: Store,
    found: SourceEntries,
    target: Store,
    progress: Progress = lambda _what, _done, _all: None,
    clock: Clock = wall_clock,
    result: MigrationResult | None = None,
) -> MigrationResult:
    """Copy entries and snapshot into a target that this process owns, and verify them. StoreError.

    `result` is updated while the copy runs, for callers that report an interruption.
    """
    result = MigrationResult() if result is None else result
    result.entries = len(found.infos)
    target.expire()
    with closing(_Copy(source, target, result, clock)) as copy:
        for done, info in enumerate(found.infos):
            progress("entries", done, len(found.infos))
            copy.add(info)
        copy.finish()
    progress("entries", len(found.infos), len(found.infos))
    result.snapshot = _put_snapshot(found, target, progress)
    with closing(target.reader()) as reader:
        _verify(reader, copy, result)
    return result


class _Copy:
    """Puts entries into the target, some at a time."""

    def __init__(self, source: Store, target: Store, result: MigrationResult, clock: Clock) -> None:
        self._source, self._target, self._result, self._clock = source, target, result, clock
        self._stored = {info.key: info for info in target.scan()}
        self._free = target.capacity - target.totals().size
        self._full = False
        self._in_flight: deque[Future[None]] = deque()
        self.copied: dict[bytes, bytes] = {}
        """Digests of the copied entries, by key."""

    def add(self, info: EntryInfo) -> None:
        """Copy one entry, or count why not."""
        result, old = self._result, self._stored.get(info.key)
        if expired(info.expires, self._clock()):
            result.expired += 1
        elif old is not None and old.created >= info.created:
            result.present += 1
        elif self._full:
            result.no_space += 1
        elif (entry := self._source.peek(info.key)) is None:
            result.gone += 1
        else:
            self._put(entry, 0 if old is None else old.size)

    def _put(self, entry: Entry, replaced: int) -> None:
        entry = entry._replace(size=self._target.entry_size(entry))
        free = self._free + replaced
        if entry.size > self._target.max_entry_size:
            self._result.too_large += 1
        elif entry.size > free:
            self._result.no_space += 1
            self._full = free < self._target.capacity // NEARLY_FULL
        else:
            while self._in_flight and (len(self._in_flight) >= MAX_IN_FLIGHT or self._target.write_backlog_full):
                self._confirm()
            self._in_flight.append(self._target.apply(entry))
            self._free = free - entry.size
            self._result.size += entry.size
            self.copied[entry.key] = digest_of(entry)

    def _confirm(self) -> None:
        """Wait until the oldest copy is durable. An interruption leaves it to `close`, which counts it."""
        error = self._in_flight[0].exception()
        self._in_flight.popleft()
        if error is not None:
            raise StoreError(f"the target does not take entries: {error}") from error
        self._result.copied += 1

    def finish(self) -> None:
        """Wait until all copies are durable."""
        while self._in_flight:
            self._confirm()

    def close(self) -> None:
        """Count the copies that became durable before an error."""
        while self._in_flight:
            self._result.copied += self._in_flight.popleft().exception() is None


def digest_of(entry: Entry) -> bytes:
    """Return a digest of an entry's content and metadata, without its size."""
    text = repr((entry.key, entry.tenant, entry.model, entry.cost, entry.seconds, entry.created, entry.expires))
    sealed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    for part in (entry.request, entry.payload):
        sealed.update(b"%d " % len(part))
        sealed.update(part)
    return sealed.digest()


def _verify(reader: Store, copy: _Copy, result: MigrationResult) -> None:
    """Compare the keys of the copied entries, and the content of some, with what a reader of the target finds."""
    missing = copy.copied.keys() - {info.key for info in reader.scan()}
    if missing:
        raise StoreError(f"{len(missing)} of {len(copy.copied)} copied entries are not in the target")
    keys = list(copy.copied)
    for key in keys[:: max(1, len(keys) // SAMPLE)]:
        entry = reader.peek(key)
        if entry is None or digest_of(entry) != copy.copied[key]:
            raise StoreError(f"the copied entry {key.hex()[:12]} differs from its source")
        result.verified += 1


def _put_snapshot(found: SourceEntries, target: Store, progress: Progress) -> str:
    """Write the snapshot of the target. Return what became of the source's."""
    if found.snapshot is None or found.snapshot_bytes is None:
        return "none"
    own = read_snapshot(target.load_snapshot() or b"")
    fits = found.snapshot.policy.capacity == target.capacity and len(found.snapshot_bytes) <= target.max_snapshot_size
    if own is None and fits:
        target.apply(snapshot=found.snapshot_bytes).result()
        return "copied"
    start = own if own is not None and own.policy.capacity == target.capacity else None
    packed = _converted(start, (own or found.snapshot).name, found.requests, target, progress)
    if packed is None:
        return "none"
    target.apply(snapshot=packed).result()
    return "converted"


def _converted(
    start: SnapshotContents | None, name: str, requests: Mapping[bytes, float], target: Store, progress: Progress
) -> bytes | None:
    """Return a snapshot of a policy that has seen as many requests for each entry of the target as the source had."""
    infos = {info.key: info for info in target.scan()}
    policy = start.policy if start else registry.find(name).build(target.capacity, table_size(target.capacity))
    ids = IdTable(policy)
    counted = _counted(start)
    if start is not None:
        ids.load(start.keys)
    wanted = {key: _requests(requests.get(key, 1.0), counted.get(key)) for key in infos}
    length = sum(wanted.values())
    progress("policy", 0, length)
    policy.compiled = background_compile.prepare(name, (), length // PLAIN_REQUESTS)
    for done, key in enumerate(_evenly(wanted), 1):
        progress("policy", done, length)
        i = ids.find(key)
        if i < 0:
            i = ids.intern(key)[0]
        if not policy.arrive(i):
            policy.settle(i, infos[key].size, infos[key].cost)
    return pack(name, policy, copy_state(policy, ids.keys), target.max_snapshot_size)


def _requests(in_source: float, in_target: float | None) -> int:
    """Return how many requests a trace has for an entry. What the target has counted already is not repeated."""
    if in_target is None:
        return max(1, min(MAX_REQUESTS, round(in_source)))
    return max(0, min(MAX_REQUESTS, round(in_source - in_target)))


def _evenly(counts: Mapping[bytes, int]) -> Iterator[bytes]:
    """Yield each key as often as its count says, evenly distributed over the whole trace."""
    keys = list(counts)
    many = np.array([counts[key] for key in keys], np.int64)
    owners = np.repeat(np.arange(len(keys)), many)
    nth = np.arange(len(owners)) - np.repeat(np.cumsum(many) - many, many)
    phase = (np.arange(len(keys)) * 0.6180339887498949) % 1.0  # different ones, so that keys of one count alternate
    times = (nth + phase[owners]) / many[owners]
    for k in owners[np.argsort(times, kind="stable")].tolist():
        yield keys[k]
