"""A store in memory: a dict of records and a lock. It lasts as long as the process.

    entry_size = bytes of request, payload, tenant, model and meta + OVERHEAD

An entry is one bytes object (packed.py). Entries that were read recently are also kept decoded, in a share of the size
limit of their own: a hit is then one dict lookup.

OVERHEAD is what the process takes for an entry beside these bytes: RECORD_OVERHEAD here, and the entry's rows in the
policy, in the two default shadows and in the tables of the cache. A test measures it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from knapcache.errors import CorruptState, InvalidInput, StoreError
from knapcache.store.base import C, Clock, Done, Entry, EntryInfo, StoreOptions, Totals, wall_clock
from knapcache.store.decoded_entries import DecodedEntries
from knapcache.store.packed import RECORD_OVERHEAD, expiry_of, pack, size_of, unpack, unpack_info
from knapcache.store.validation import content_size, encode_fields, validate_entry, validate_key

OVERHEAD = RECORD_OVERHEAD + 512
MIN_SIZE_LIMIT = 64 << 10
SNAPSHOT_SHARE = 32
"""1/32 of the size limit is reserved for the snapshot."""
DECODED_SHARE, MAX_DECODED_BYTES = 16, 16 << 20
"""1/16 of the size limit is reserved for decoded entries, and at most 16 MiB: a full collection visits them."""


class MemoryStore:
    """Records in a dict. It is not shared: this process is always the owner, and there are no readers."""

    shared: Final = False
    owner: Final = True
    max_counted_keys: Final = 0
    min_entry_size: Final = OVERHEAD
    """Less than any entry is charged. The cache has an id for each such entry that fits (cache/ids.py)."""
    write_backlog_full: Final = False
    writes_stalled: Final = False

    def __init__(self, size_limit: int, *, clock: Clock = wall_clock) -> None:
        if size_limit < MIN_SIZE_LIMIT:
            raise InvalidInput(f"capacity (size_limit) is at least {MIN_SIZE_LIMIT} bytes (64 KiB), not {size_limit}")
        self.size_limit = size_limit
        self.max_snapshot_size = size_limit // SNAPSHOT_SHARE
        self._decoded = DecodedEntries(min(size_limit // DECODED_SHARE, MAX_DECODED_BYTES))
        self.capacity = self.max_entry_size = size_limit - self.max_snapshot_size - self._decoded.capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[bytes, bytes] = {}
        self._size = 0  # Invariant: Σ size of the entries ≤ capacity
        self._snapshot: bytes | None = None
        self._closed = False
        self._refused = 0
        _STORES.add(self)

    @classmethod
    def open(cls, location: str, options: StoreOptions) -> MemoryStore:
        """Open `memory:`, as the registry does."""
        if location:
            raise InvalidInput(f"memory: takes no path, not {location!r}")
        return cls(options.size_limit, clock=options.clock)

    def entry_size(self, entry: Entry) -> int:
        return OVERHEAD + content_size(entry)

    def get(self, key: bytes) -> Entry | None:
        entry = self._decoded.young.get(key)
        if entry is None and (entry := self._decoded.get(key)) is None:
            version = self._decoded.version  # before the lookup: the entry may change after it
            record = self._records.get(key)  # one dict lookup is atomic
            if record is None:
                validate_key(key)
                return None
            entry = unpack(key, record)
            self._decoded.add(entry, version)
        return entry if entry.expires is None or entry.expires > self._clock() else None

    get_nowait = read = get

    def peek(self, key: bytes) -> Entry | None:
        record = self._records.get(key)
        return None if record is None else unpack(key, record)

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        done: Future[None] = Future()
        refusal = self._change(put, evict, snapshot)
        if refusal is None:
            done.set_result(None)
        else:
            done.set_exception(StoreError(refusal))
        return done

    def apply_all(self, changes: Sequence[C], done: Done[C], /) -> None:
        for change in changes:
            try:
                refusal = self._change(change.put, change.evict, change.snapshot)
            except InvalidInput as error:
                refusal = str(error)
            done(change, None if refusal is None else StoreError(refusal))

    def _change(self, put: Entry | None, evict: Collection[bytes], snapshot: bytes | None) -> str | None:
        """Make a change; return the reason if it is refused."""
        evict, record = [validate_key(key) for key in evict], b""
        if put is not None:
            fields = encode_fields(put)
            put = validate_entry(put, OVERHEAD + content_size(put, fields))
            record = pack(put, fields)
        with self._lock:
            return self._apply(put, record, evict, snapshot)

    def _apply(self, put: Entry | None, record: bytes, evict: list[bytes], snapshot: bytes | None) -> str | None:
        if self._closed:
            return "the store is closed"
        self._remove(evict if put is None else [*evict, put.key])
        refusal = None
        if put is not None and self._size + put.size > self.capacity:
            refusal = f"the store is full: the entry has {put.size} bytes, {self.capacity - self._size} are free"
        if refusal is None and snapshot is not None and len(snapshot) > self.max_snapshot_size:
            refusal = f"the snapshot has {len(snapshot)} bytes, at most {self.max_snapshot_size} are allowed"
        if refusal is not None:
            self._refused += 1
            return refusal
        if put is not None:
            self._records[put.key] = record
            self._size += put.size
        if snapshot is not None:
            self._snapshot = bytes(snapshot)
        return None

    def _remove(self, keys: list[bytes]) -> None:
        for key in keys:
            if (record := self._records.pop(key, None)) is not None:
                self._size -= size_of(record)
        self._decoded.discard(keys)  # after the records: a decoded entry must not be made from a removed one

    def expire(self) -> tuple[bytes, ...]:
        now = self._clock()
        with self._lock:
            keys = [key for key, record in self._records.items() if expiry_of(record) <= now]
            self._remove(keys)
        return tuple(keys)

    def scan(self) -> Iterator[EntryInfo]:
        with self._lock:
            records = list(self._records.items())
        return (unpack_info(key, record) for key, record in records)

    def load_snapshot(self) -> bytes | None:
        return self._snapshot

    def flush(self) -> None:
        """Return at once: nothing is queued."""

    def totals(self) -> Totals:
        with self._lock:
            return Totals(len(self._records), self._size)

    def disk_bytes(self) -> int:
        return 0

    def counters(self) -> Mapping[str, int]:
        return {"refused": self._refused}

    def check(self) -> None:
        """Recompute the size; CorruptState when it differs or exceeds the capacity."""
        with self._lock:
            derived = sum(map(size_of, self._records.values()))
            if derived != self._size:
                raise CorruptState(f"size: {self._size} counted, {derived} recomputed")
            if derived > self.capacity:
                raise CorruptState(f"size {derived} is above capacity {self.capacity}")

    def own(self) -> bool:
        return not self._closed

    def hand_over(self, _entry: Entry, /) -> None:
        raise StoreError("a store in memory has no readers, so nothing can be handed over")

    def collect(self) -> Iterator[Entry]:
        return iter(())

    def put_counts(self, _counts: Mapping[bytes, int], /) -> None:
        raise StoreError("a store in memory has no readers, so no counts can be handed over")

    def take_counts(self) -> Mapping[bytes, int]:
        return {}

    def reader(self) -> MemoryStore:
        """Return this store: a fork copies it, and each process owns its copy."""
        return self

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._records.clear()
            self._decoded.clear()
            self._size = 0
            self._snapshot = None

    def _after_fork(self) -> None:
        """Repair the copy in a child: another thread may have held the lock, half way through a change."""
        self._lock, self._decoded = threading.Lock(), DecodedEntries(self._decoded.capacity)
        self._size = sum(map(size_of, self._records.values()))


_STORES: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
