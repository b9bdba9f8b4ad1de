"""Recently read entries in memory: a hit here needs neither a disk read nor a seal check.

Two generations approximate an order of use. An entry that is read enters the young generation. When that takes half of
the capacity, it becomes the old generation, and entries of the old one that were not read since are dropped. A hit in
the young generation is one dict lookup.

    Invariant: no entry here is outdated. `version` counts changes. An entry that was read under an older version is not
    added, because it may have been evicted between the read and `add`.

A full garbage collection visits every entry, its mapping and each of its dicts: 40 to 190 ms for 64 MiB of them. So a
`MemoryTier` holds *flat* entries: tuples of numbers, text and bytes, with `meta` as JSON. The collector stops visiting
such a tuple when it has seen it once. The first MAX_DECODED entries that a generation is asked for are decoded as well:
popular ones, most of them. Rejected: records (packed.py), which are smaller and take three times as long to decode.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import orjson

from knapcache.store.base import Entry

MAX_DECODED = 1024
"""Most decoded entries of a generation: a full collection visits two generations in 1 to 4 ms."""
DECODED_OVERHEAD = 2048
"""Bytes of the Python objects of a decoded entry beside its request and payload: 0.9 kB with two fields in `meta`, and
1.8 kB with four dicts in it, as a chat answer has."""
FLAT_OVERHEAD = 640
"""The same of a flat entry, beside its `meta`. Mostly headers: eleven objects, and a slot of the dict."""

Flat = tuple[Any, ...]
"""The fields of an entry after its key, with `meta` as JSON. A plain tuple: the collector keeps visiting subclasses."""


def flatten(entry: Entry) -> Flat:
    """Return the flat form of an entry."""
    meta = orjson.dumps(dict(entry.meta)).decode()  # a copy: the bytes that orjson returns occupy 4 kB
    return (*entry[1:8], meta, entry.request, entry.payload)


def restore(key: bytes, flat: Flat) -> Entry:
    """Return the entry of a flat form."""
    tenant, model, size, cost, seconds, created, expires, meta, request, payload = flat
    return Entry(
        key, tenant, model, size, cost, seconds, created, expires,
        MappingProxyType(orjson.loads(meta)), request, payload,
    )  # fmt: skip


def flat_size(flat: Flat) -> int:
    """Return the bytes charged for a flat entry."""
    return FLAT_OVERHEAD + len(flat[7]) + len(flat[8]) + len(flat[9])


class MemoryTier:
    """At most `capacity` bytes of entries.

    Invariant: a decoded entry is in the same generation as its flat form, and shares request and payload with it.
    """

    def __init__(self, capacity: int) -> None:
        self.version = 0
        self._half = capacity // 2
        self._lock = threading.Lock()
        self._young: dict[bytes, Flat] = {}
        self._old: dict[bytes, Flat] = {}
        self._young_decoded: dict[bytes, Entry] = {}
        self._old_decoded: dict[bytes, Entry] = {}
        self._young_size = 0

    def get(self, key: bytes) -> Entry | None:
        entry = self._young_decoded.get(key)
        return self._decode(key) if entry is None else entry

    def _decode(self, key: bytes) -> Entry | None:
        version = self.version  # before the lookup: the entry may change between lookup and `_keep`
        flat = self._young.get(key) or self._old.get(key)
        if flat is None:
            return None
        entry = self._old_decoded.get(key) or restore(key, flat)
        self._keep(key, flat, version, entry)
        return entry

    def add(self, entry: Entry, version: int) -> None:
        """Add an entry, unless something changed since it was read at `version`."""
        self._keep(entry.key, flatten(entry), version)

    def _keep(self, key: bytes, flat: Flat, version: int, entry: Entry | None = None) -> None:
        """Put an entry into the young generation, also decoded if it is given and there is space for it."""
        size = flat_size(flat)
        with self._lock:
            if version != self.version or size > self._half:
                return
            if key not in self._young:
                if self._young_size + size > self._half:
                    self._old, self._young, self._young_size = self._young, {}, 0
                    self._old_decoded, self._young_decoded = self._young_decoded, {}
                self._young[key] = flat
                self._young_size += size
            if entry is None or len(self._young_decoded) >= MAX_DECODED or key in self._young_decoded:
                return
            if self._young_size + DECODED_OVERHEAD <= self._half:
                self._young_decoded[key] = entry
                self._young_size += DECODED_OVERHEAD

    def discard(self, keys: Iterable[bytes]) -> None:
        """Remove entries that were changed."""
        with self._lock:
            self.version += 1
            for key in keys:
                self._old.pop(key, None)
                self._old_decoded.pop(key, None)
                if (flat := self._young.pop(key, None)) is not None:
                    self._young_size -= flat_size(flat)
                if self._young_decoded.pop(key, None) is not None:
                    self._young_size -= DECODED_OVERHEAD

    def clear(self) -> None:
        with self._lock:
            self.version += 1
            self._young, self._old, self._young_size = {}, {}, 0
            self._young_decoded, self._old_decoded = {}, {}

    def charged(self) -> int:
        """Return the bytes charged now. What moved from the old generation to the young one counts twice."""
        with self._lock:
            old = sum(map(flat_size, self._old.values())) + DECODED_OVERHEAD * len(self._old_decoded)
            return self._young_size + old
