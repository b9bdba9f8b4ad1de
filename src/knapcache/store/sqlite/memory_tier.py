"""Recently read entries in memory: a hit here needs neither a disk read nor a seal check.

Two generations approximate an order of use. An entry that is read enters the young generation. When that takes half of
the capacity, it becomes the old generation, and entries of the old one that were not read since are dropped. A hit in
the young generation is one dict lookup.

    Invariant: no entry here is outdated. `version` counts changes. An entry that was read under an older version is not
    added, because it may have been evicted between the read and `add`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from knapcache.store.base import Entry

OVERHEAD = 1024
"""Bytes of the Python objects around the strings of an entry. Small entries take more here than in the file."""


def memory_size(entry: Entry) -> int:
    """Return the bytes charged for an entry in memory."""
    return max(entry.size, OVERHEAD + len(entry.request) + len(entry.payload))


class MemoryTier:
    """At most `capacity` bytes of entries, by `memory_size`."""

    def __init__(self, capacity: int) -> None:
        self.version = 0
        self._half = capacity // 2
        self._lock = threading.Lock()
        self._young: dict[bytes, Entry] = {}
        self._old: dict[bytes, Entry] = {}
        self._young_size = 0

    def get(self, key: bytes) -> Entry | None:
        entry = self._young.get(key)
        if entry is None:
            version = self.version  # before the lookup: the entry may change between lookup and `add`
            if (entry := self._old.get(key)) is not None:
                self.add(entry, version)
        return entry

    def add(self, entry: Entry, version: int) -> None:
        """Add an entry, unless something changed since it was read at `version`."""
        size = memory_size(entry)
        with self._lock:
            if version != self.version or size > self._half or entry.key in self._young:
                return
            if self._young_size + size > self._half:
                self._old, self._young, self._young_size = self._young, {}, 0
            self._young[entry.key] = entry
            self._young_size += size

    def discard(self, keys: Iterable[bytes]) -> None:
        """Remove entries that were changed."""
        with self._lock:
            self.version += 1
            for key in keys:
                self._old.pop(key, None)
                entry = self._young.pop(key, None)
                self._young_size -= memory_size(entry) if entry else 0

    def clear(self) -> None:
        with self._lock:
            self.version += 1
            self._young, self._old, self._young_size = {}, {}, 0
