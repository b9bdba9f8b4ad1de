"""Outlines of entries in memory: the names in the table, the search for words, and the nearest entry of a request.

An outline (`keys/outline.py`) depends only on the key, so it is read once and stays valid. It is read from the store
when a page of the table, a search or a comparison needs it: newest entries first, within a number of seconds, and at
most MAX_OUTLINES in all (about 35 MB). A search over more entries covers the newest.

The work is done in the caller's thread. After every PAUSE_EVERY reads, about a millisecond, it sleeps for PAUSE, so an
event loop in another thread waits no longer than that for the interpreter. Reads do not displace what the store keeps
in memory (`Store.peek`). No object that the garbage collector tracks is made per entry: 100,000 of them would make it
stop the process for 0.1 s.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.cache.entry_index import EntryTable
from knapcache.errors import StoreError
from knapcache.keys.difference import SIMILAR, Difference, differences, distance
from knapcache.keys.outline import (
    FEATURES,
    SAMPLES,
    CanonicalRequest,
    Outline,
    hashes_of,
    outline_of,
    prefix_hashes,
    read_canonical,
)
from knapcache.store.base import Entry

MAX_OUTLINES = 50_000
MAX_SECONDS = 2.0
"""Seconds of reading for one search or comparison. The next one continues."""
PAUSE_EVERY, PAUSE = 4, 0.001
CANDIDATES = 16
"""Entries that are compared exactly."""
WEIGHTS = {
    "kind": 4, "namespace": 2, "context": 1, "model": 2, "parameters": 2, "system": 2, "tools": 1, "conversation": 8,
    "last": 12, "plain": 10, **dict.fromkeys(FEATURES[-SAMPLES:], 2),
}  # fmt: skip
"""How much equal hashes count in the choice of candidates."""
CONTINUED = 9
"""How much it counts that one conversation continues the other."""
CONTENT = ("conversation", "last", "plain")
"""A candidate has one of these hashes in common, or MIN_SAMPLES samples, or continues the conversation."""
MIN_SAMPLES = 2

Peek = Callable[[bytes], Entry | None]
Mask = npt.NDArray[np.bool_]


class OtherRequests(NamedTuple):
    """Requests that another one is compared with."""

    keys: Sequence[bytes]
    created: npt.NDArray[np.float64]
    """When their answers were fetched."""
    canonical: Callable[[bytes], bytes | None]
    """Returns the canonical request of a key, or None; may raise StoreError."""


class NearestRequest(NamedTuple):
    """The request that is most similar to another one."""

    key: bytes
    created: float
    request: CanonicalRequest
    differences: list[Difference]

    @property
    def similar(self) -> bool:
        """Whether it is so similar that it may be what the caller meant to hit."""
        return distance(self.differences) <= SIMILAR


class Coverage(NamedTuple):
    """How many of the entries a search has seen."""

    read: int
    entries: int


class OutlineIndex:
    """Outlines by key. May be used from several threads."""

    def __init__(
        self,
        limit: int = MAX_OUTLINES,
        seconds: float = MAX_SECONDS,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._seconds, self._sleep, self._clock = limit, seconds, sleep, clock
        self._outlines: dict[bytes, Outline] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._outlines)

    def get(self, keys: Iterable[bytes], peek: Peek) -> dict[bytes, Outline]:
        """Return the outlines of a few keys; those that the store does not have are left out."""
        return {key: found for key in keys if (found := self._outline(key, peek)) is not None}

    def read(self, table: EntryTable, peek: Peek) -> Coverage:
        """Read the outlines of a table's entries that are not known yet, newest first, for a limited time."""
        newest = np.argsort(-table.records["created"], kind="stable")[: self._limit].tolist()
        keys = [table.keys[k] for k in newest]
        if len(self._outlines) + len(keys) > self._limit:  # drop those of entries that are gone
            self._keep(keys)
        deadline, reads, covered = self._clock() + self._seconds, 0, 0
        for key in keys:
            if key not in self._outlines:
                if self._clock() >= deadline:
                    break
                self._outline(key, peek)
                reads += 1
                if reads % PAUSE_EVERY == 0:
                    self._sleep(PAUSE)
            covered += 1
        return Coverage(covered, len(table.keys))

    def containing(self, table: EntryTable, search: str) -> Mask:
        """Return which entries have a text, in lower case, in their first words. Entries that were not read do not."""
        outlines = self._outlines
        return np.array(
            [(found := outlines.get(key)) is not None and search in found.words.lower() for key in table.keys], np.bool_
        )

    def nearest(
        self, request: CanonicalRequest, others: OtherRequests, *, bodies: bool = False
    ) -> NearestRequest | None:
        """Return the request nearest to this one, among those whose outline was read.

        Equal ones do not count, unless only `bodies` are compared: then an equal one has no differences.
        """
        best: tuple[float, NearestRequest] | None = None
        for k in self._candidates(request, others):
            try:
                canonical = others.canonical(others.keys[k])
            except StoreError:
                continue
            parts = None if canonical is None else read_canonical(canonical)
            if parts is None:
                continue
            same_origin = parts._replace(namespace=request.namespace, context=request.context)
            found = differences(request, same_origin if bodies else parts)
            weight = distance(found)
            if (found or bodies) and (best is None or weight < best[0]):
                best = weight, NearestRequest(others.keys[k], float(others.created[k]), parts, found)
        return None if best is None else best[1]

    def _candidates(self, request: CanonicalRequest, others: OtherRequests) -> list[int]:
        """Return the indices of the requests with the most hashes in common, newest first among equals."""
        outlines, known, hashes = self._outlines, [], []
        for k, key in enumerate(others.keys):
            if (found := outlines.get(key)) is not None:
                known.append(k)
                hashes.append(found.hashes)
        if not known:
            return []
        theirs = np.frombuffer(b"".join(hashes), np.uint64).reshape(len(known), len(FEATURES))
        ours = np.frombuffer(hashes_of(request), np.uint64)
        equal = (theirs == ours) & (ours != 0)
        column = {name: k for k, name in enumerate(FEATURES)}
        score = sum(weight * equal[:, column[name]] for name, weight in WEIGHTS.items())
        conversation = column["conversation"]
        earlier = [int.from_bytes(each, sys.byteorder) for each in prefix_hashes(request)]
        continued = np.isin(theirs[:, conversation], np.array(earlier, np.uint64))
        if ours[conversation]:
            for name in ("without_one", "without_two"):
                continued |= theirs[:, column[name]] == ours[conversation]
        alike = continued | (equal[:, -SAMPLES:].sum(axis=1) >= MIN_SAMPLES)
        alike |= equal[:, [column[name] for name in CONTENT]].any(axis=1)
        score = np.where(alike, score + CONTINUED * continued, 0)
        order = np.lexsort((-others.created[known], -score))[:CANDIDATES]
        return [known[k] for k in order.tolist() if score[k] > 0]

    def add(self, key: bytes, canonical: bytes) -> None:
        """Add the outline of a request that need not be stored."""
        if key not in self._outlines:
            self._add(key, outline_of(canonical))

    def _outline(self, key: bytes, peek: Peek) -> Outline | None:
        found = self._outlines.get(key)
        if found is None:
            try:
                entry = peek(key)
            except StoreError:
                return None
            if entry is not None:
                found = outline_of(entry.request)
                self._add(key, found)
        return found

    def _add(self, key: bytes, outline: Outline) -> None:
        with self._lock:
            while len(self._outlines) >= self._limit:
                del self._outlines[next(iter(self._outlines))]
            self._outlines[key] = outline

    def _keep(self, keys: list[bytes]) -> None:
        with self._lock:
            self._outlines = {key: self._outlines[key] for key in keys if key in self._outlines}
