"""A store in memory: a dict and a lock. What it keeps, it keeps as long as the process lives.

    charge = bytes of request, payload, tenant, model and meta + OVERHEAD

The objects around an entry take room as well: a tuple of eleven, its floats, the header of each bytes object, a
slot of the dict, the dicts of `meta`. OVERHEAD is more than they take with a `meta` of a few fields (a test measures).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType

import orjson

from knapcache.errors import CorruptState, InvalidInput, StoreError
from knapcache.store.base import (
    Clock,
    Entry,
    EntryInfo,
    Totals,
    content,
    encode_fields,
    expired,
    purge_filter,
    validate_entry,
    validate_key,
    wall_clock,
)

OVERHEAD = 1536
SNAPSHOT_SHARE = 32  # one part in so many is set aside for the policy's state


class MemoryStore:
    """Answers in a dict. `budget` in bytes, part of which is set aside for the snapshot."""

    def __init__(self, size_limit: int, *, clock: Clock = wall_clock) -> None:
        if size_limit < 64 << 10:
            raise InvalidInput(f"size_limit must be at least 64 KiB, not {size_limit} bytes")
        self.size_limit = size_limit
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[bytes, Entry] = {}
        self._size = 0  # Invariant: Σ size of the entries ≤ capacity
        self._snapshot: bytes | None = None
        self._closed = False
        self._refused = 0

    @property
    def capacity(self) -> int:
        """Room for entries."""
        return self.size_limit - self.max_snapshot_size

    @property
    def max_entry_size(self) -> int:
        """No entry charged more than this can be put."""
        return self.capacity

    @property
    def max_snapshot_size(self) -> int:
        """Bytes a snapshot may have."""
        return self.size_limit // SNAPSHOT_SHARE

    shared = False
    owner = True
    max_counted_keys = 0

    def own(self) -> bool:
        """Return True: a store in memory belongs to its process."""
        return True

    def hand_over(self, _entry: Entry) -> None:
        """Raise StoreError: there are no readers."""
        raise StoreError("a store in memory has no readers, so nothing can be handed over")

    def collect(self) -> Iterator[Entry]:
        """Return nothing: there are no readers."""
        return iter(())

    def put_counts(self, _counts: Mapping[bytes, int]) -> None:
        """Raise StoreError: there are no readers."""
        raise StoreError("a store in memory has no readers, so no counts can be handed over")

    def take_counts(self) -> Mapping[bytes, int]:
        """Return nothing: there are no readers."""
        return {}

    def reader(self) -> MemoryStore:
        """Return this store: a fork copies it, and each process owns its copy."""
        return self

    def entry_size(self, entry: Entry) -> int:
        """Room the entry takes."""
        return OVERHEAD + content(entry)

    def get(self, key: bytes) -> Entry | None:
        """The entry under `key`, or None."""
        entry = self._entries.get(key)  # one look into a dict is atomic
        if entry is None:
            validate_key(key)
        elif entry.expires is not None and entry.expires <= self._clock():
            return None
        return entry

    def get_nowait(self, key: bytes) -> Entry | None:
        """Everything is."""
        return self.get(key)

    def read(self, key: bytes) -> Entry | None:
        """There is no other place."""
        return self.get(key)

    @property
    def write_backlog_full(self) -> bool:
        """Nothing ever waits here."""
        return False

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        """`evict` leaves, then `put` comes and `snapshot` replaces the older one."""
        evict = [validate_key(key) for key in evict]
        if put is not None:
            put = validate_entry(put, self.entry_size(put))
            put = put._replace(meta=MappingProxyType(orjson.loads(encode_fields(put)[2])))  # nobody else can change it
        done: Future[None] = Future()
        with self._lock:
            refusal = self._apply(put, evict, snapshot)
        if refusal is None:
            done.set_result(None)
        else:
            done.set_exception(StoreError(refusal))
        return done

    def _apply(self, put: Entry | None, evict: list[bytes], snapshot: bytes | None) -> str | None:
        if self._closed:
            return "the store is closed"
        for key in evict:
            self._drop(key)
        refusal = None
        if put is not None:
            self._drop(put.key)
            if self._size + put.size > self.capacity:
                refusal = f"no room: {put.size} bytes, {self.capacity - self._size} left"
        if refusal is None and snapshot is not None and len(snapshot) > self.max_snapshot_size:
            refusal = f"a snapshot of {len(snapshot)} bytes, of {self.max_snapshot_size} allowed"
        if refusal is not None:
            self._refused += 1
            return refusal
        if put is not None:
            self._entries[put.key] = put
            self._size += put.size
        if snapshot is not None:
            self._snapshot = bytes(snapshot)
        return None

    def _drop(self, key: bytes) -> bool:
        entry = self._entries.pop(key, None)
        self._size -= entry.size if entry else 0
        return entry is not None

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, before: float | None = None
    ) -> tuple[bytes, ...]:
        """Remove what meets every condition given."""
        meets = purge_filter(tenant, model, before)
        with self._lock:
            return tuple(key for key, entry in list(self._entries.items()) if meets(entry.info) and self._drop(key))

    def expire(self) -> tuple[bytes, ...]:
        """Remove what has expired."""
        now = self._clock()
        with self._lock:
            return tuple(
                key for key, entry in list(self._entries.items()) if expired(entry.expires, now) and self._drop(key)
            )

    def scan(self) -> Iterator[EntryInfo]:
        """Every entry but its bytes."""
        with self._lock:
            entries = list(self._entries.values())
        return (entry.info for entry in entries)

    def load_snapshot(self) -> bytes | None:
        """The last snapshot, or None."""
        return self._snapshot

    def flush(self) -> None:
        """Nothing is ever late here."""

    def totals(self) -> Totals:
        """The books."""
        with self._lock:
            return Totals(len(self._entries), self._size)

    def disk_bytes(self) -> int:
        """Nothing ever lies there."""
        return 0

    def counters(self) -> Mapping[str, int]:
        """What went wrong so far."""
        return {"refused": self._refused}

    def check(self) -> None:
        """Derive the totals anew."""
        with self._lock:
            derived = sum(entry.size for entry in self._entries.values())
            if derived != self._size:
                raise CorruptState(f"size: the books say {self._size}, counting anew gives {derived}")
            if derived > self.capacity:
                raise CorruptState(f"size {derived} is above capacity {self.capacity}")

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._closed = True
            self._entries.clear()
            self._size = 0
            self._snapshot = None
