"""A store in memory: a dict and a lock. It lasts as long as the process.

    entry_size = bytes of request, payload, tenant, model and meta + OVERHEAD

OVERHEAD is for the Python objects around these bytes: a tuple of eleven, its floats, the header of each bytes object, a
slot of the dict, the dicts of `meta`. It is more than they take with a `meta` of a few fields (a test measures it).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final

import orjson

from knapcache.errors import CorruptState, InvalidInput, StoreError
from knapcache.store.base import (
    Clock,
    Entry,
    EntryInfo,
    StoreOptions,
    Totals,
    content_size,
    encode_fields,
    expired,
    validate_entry,
    validate_key,
    wall_clock,
)

OVERHEAD = 1536
MIN_SIZE_LIMIT = 64 << 10
SNAPSHOT_SHARE = 32
"""1/32 of the size limit is reserved for the snapshot."""


class MemoryStore:
    """Entries in a dict. It is not shared: this process is always the owner, and there are no readers."""

    shared: Final = False
    owner: Final = True
    max_counted_keys: Final = 0
    write_backlog_full: Final = False
    writes_stalled: Final = False

    def __init__(self, size_limit: int, *, clock: Clock = wall_clock) -> None:
        if size_limit < MIN_SIZE_LIMIT:
            raise InvalidInput(f"capacity (size_limit) is at least {MIN_SIZE_LIMIT} bytes (64 KiB), not {size_limit}")
        self.size_limit = size_limit
        self.max_snapshot_size = size_limit // SNAPSHOT_SHARE
        self.capacity = self.max_entry_size = size_limit - self.max_snapshot_size
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[bytes, Entry] = {}
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
        entry = self._entries.get(key)  # one dict lookup is atomic
        if entry is None:
            validate_key(key)
        elif entry.expires is not None and entry.expires <= self._clock():
            return None
        return entry

    get_nowait = read = get

    def peek(self, key: bytes) -> Entry | None:
        return self._entries.get(key)

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        evict = [validate_key(key) for key in evict]
        if put is not None:
            put = validate_entry(put, self.entry_size(put))
            # A copy, so that the caller cannot change it afterwards.
            put = put._replace(meta=MappingProxyType(orjson.loads(encode_fields(put)[2])))
        done: Future[None] = Future()
        with self._lock:
            refusal = self._apply(put, evict, snapshot)
        if refusal is None:
            done.set_result(None)
        else:
            done.set_exception(StoreError(refusal))
        return done

    def _apply(self, put: Entry | None, evict: list[bytes], snapshot: bytes | None) -> str | None:
        """Make the change; return the reason if it is refused."""
        if self._closed:
            return "the store is closed"
        for key in evict:
            self._remove(key)
        refusal = None
        if put is not None:
            self._remove(put.key)
            if self._size + put.size > self.capacity:
                refusal = f"the store is full: the entry has {put.size} bytes, {self.capacity - self._size} are free"
        if refusal is None and snapshot is not None and len(snapshot) > self.max_snapshot_size:
            refusal = f"the snapshot has {len(snapshot)} bytes, at most {self.max_snapshot_size} are allowed"
        if refusal is not None:
            self._refused += 1
            return refusal
        if put is not None:
            self._entries[put.key] = put
            self._size += put.size
        if snapshot is not None:
            self._snapshot = bytes(snapshot)
        return None

    def _remove(self, key: bytes) -> bool:
        entry = self._entries.pop(key, None)
        self._size -= entry.size if entry else 0
        return entry is not None

    def expire(self) -> tuple[bytes, ...]:
        now = self._clock()
        with self._lock:
            return tuple(
                key for key, entry in list(self._entries.items()) if expired(entry.expires, now) and self._remove(key)
            )

    def scan(self) -> Iterator[EntryInfo]:
        with self._lock:
            entries = list(self._entries.values())
        return (entry.info for entry in entries)

    def load_snapshot(self) -> bytes | None:
        return self._snapshot

    def flush(self) -> None:
        """Return at once: nothing is queued."""

    def totals(self) -> Totals:
        with self._lock:
            return Totals(len(self._entries), self._size)

    def disk_bytes(self) -> int:
        return 0

    def counters(self) -> Mapping[str, int]:
        return {"refused": self._refused}

    def check(self) -> None:
        """Recompute the size; CorruptState when it differs or exceeds the capacity."""
        with self._lock:
            derived = sum(entry.size for entry in self._entries.values())
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
            self._entries.clear()
            self._size = 0
            self._snapshot = None

    def _after_fork(self) -> None:
        """Repair the copy in a child: another thread may have held the lock, half way through a change."""
        self._lock = threading.Lock()
        self._size = sum(entry.size for entry in self._entries.values())


_STORES: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
