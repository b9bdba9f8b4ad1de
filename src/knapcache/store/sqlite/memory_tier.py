"""Entries read lately, kept as they were read: a hit that needs neither the file nor a seal.

Two generations stand for an order of use: what is read enters the young one; when that has half the room, it becomes
the old one, and what was old and not read since is let go. A hit in the young one is a look into a dict.

    Invariant: nothing is here that was changed since. `stamp` counts changes; what was read under an older stamp is
    not let in, for it may have been evicted between being read and being brought here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from knapcache.store.base import Entry


class MemoryTier:
    """At most `room` bytes of entries, by their charge."""

    def __init__(self, room: int) -> None:
        self.stamp = 0
        self._half = room // 2
        self._lock = threading.Lock()
        self._young: dict[bytes, Entry] = {}
        self._old: dict[bytes, Entry] = {}
        self._size = 0  # of the young

    def get(self, key: bytes) -> Entry | None:
        """The entry, if it is here."""
        entry = self._young.get(key)
        if entry is None:
            stamp = self.stamp  # before the look: it may be changed between look and `add`
            if (entry := self._old.get(key)) is not None:
                self.add(entry, stamp)
        return entry

    def add(self, entry: Entry, stamp: int) -> None:
        """Let in what was read when `stamp` was the stamp."""
        with self._lock:
            if stamp != self.stamp or entry.size > self._half or entry.key in self._young:
                return
            if self._size + entry.size > self._half:
                self._old, self._young, self._size = self._young, {}, 0
            self._young[entry.key] = entry
            self._size += entry.size

    def discard(self, keys: Iterable[bytes]) -> None:
        """These were changed."""
        with self._lock:
            self.stamp += 1
            for key in keys:
                self._old.pop(key, None)
                entry = self._young.pop(key, None)
                self._size -= entry.size if entry else 0

    def clear(self) -> None:
        """Everything was changed."""
        with self._lock:
            self.stamp += 1
            self._young, self._old, self._size = {}, {}, 0
