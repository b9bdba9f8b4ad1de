"""Entries of a store in memory that were read again and again, decoded: a hit here is one dict lookup.

Two generations approximate an order of use, as in memory_tier.py, with the same invariant: no entry is outdated.

An entry is kept when it is decoded for the second time. Keeping one that is not read again takes longer than to decode
it: four to six new objects bring the next collection nearer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from knapcache.store.base import Entry
from knapcache.store.memory_tier import DECODED_OVERHEAD


def decoded_size(entry: Entry) -> int:
    """Return the bytes charged for a decoded entry."""
    return DECODED_OVERHEAD + len(entry.request) + len(entry.payload)


class DecodedEntries:
    """At most `capacity` bytes of entries."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.version = capacity, 0
        self.young: dict[bytes, Entry] = {}
        self._old: dict[bytes, Entry] = {}
        self._young_size = 0
        self._lock = threading.Lock()
        self._decoded_once: set[int] = set()  # hashes of keys, twice as many as there are entries; then it starts again

    def get(self, key: bytes) -> Entry | None:
        entry = self.young.get(key)
        if entry is None:
            version = self.version  # before the lookup: the entry may change between lookup and `_keep`
            if (entry := self._old.get(key)) is not None:
                self._keep(entry, version)
        return entry

    def add(self, entry: Entry, version: int) -> None:
        """Keep an entry that was read at `version` and decoded, if it was decoded before."""
        number = hash(entry.key)
        if number in self._decoded_once:
            self._keep(entry, version)
        else:
            if len(self._decoded_once) >= 2 * self.capacity // DECODED_OVERHEAD:
                self._decoded_once.clear()
            self._decoded_once.add(number)

    def _keep(self, entry: Entry, version: int) -> None:
        size, half = decoded_size(entry), self.capacity // 2
        with self._lock:
            if version != self.version or size > half or entry.key in self.young:
                return
            if self._young_size + size > half:
                self._old, self.young, self._young_size = self.young, {}, 0
            self.young[entry.key] = entry
            self._young_size += size

    def discard(self, keys: Iterable[bytes]) -> None:
        """Remove entries that were changed."""
        with self._lock:
            self.version += 1
            for key in keys:
                self._old.pop(key, None)
                entry = self.young.pop(key, None)
                self._young_size -= 0 if entry is None else decoded_size(entry)

    def clear(self) -> None:
        with self._lock:
            self.version += 1
            self.young, self._old, self._young_size = {}, {}, 0

    def charged(self) -> int:
        """Return the bytes charged now. What moved from the old generation to the young one counts twice."""
        with self._lock:
            return self._young_size + sum(map(decoded_size, self._old.values()))
