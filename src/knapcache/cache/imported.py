"""Requests of imported entries, which the cache that exported them has counted.

They are counted when the last entry of an import was decided, evenly distributed, as if the entries had been requested
in turn. Rejected: counting them entry by entry. Such requests look like sessions, with a gap of one request, and the
policy learns from them how all answers return: `adaptive` then saved clearly less than the source of the import.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np

from knapcache.cache.admission import AdmissionController
from knapcache.cache.entry_index import IMPORTED
from knapcache.store.base import Entry

MAX_REQUESTS = 1000
"""Requests that an entry starts with at most: a key with that many stays resident anyway."""
MAX_KEYS = 1 << 17
"""Entries whose requests wait at most."""


class ImportedRequests:
    """The requests of imported entries that the policy has not counted yet."""

    def __init__(self, admission: AdmissionController) -> None:
        self._admission = admission
        self._lock = threading.Lock()
        self._counts: dict[bytes, int] = {}
        self._growing = False

    def add(self, entry: Entry) -> None:
        """Note an entry that was admitted. Nothing happens if it is not an imported one, or has one request."""
        requests = min(entry.meta.get(IMPORTED, 1), MAX_REQUESTS) - 1
        if requests > 0:
            with self._lock:
                self._counts[entry.key], self._growing = requests, True

    def end_round(self) -> None:
        """Count the requests if no entry was added since the last call: then the import has ended."""
        with self._lock:
            waits = self._growing and len(self._counts) < MAX_KEYS
            self._growing = False
        if not waits:
            self.count()

    def count(self) -> None:
        """Let the policy count all requests."""
        with self._lock:
            counts, self._counts = self._counts, {}
        admission = self._admission
        for key in evenly(counts):
            with admission.deciding:  # taken for each one, so that no request of a client waits for all of them
                i = admission.ids.find(key)
                if i >= 0:
                    admission.arrived += 1
                    admission.policy.arrive(i)


def evenly(counts: Mapping[bytes, int]) -> Iterator[bytes]:
    """Yield each key as often as its count says, evenly distributed over the whole sequence."""
    keys = list(counts)
    many = np.array([counts[key] for key in keys], np.int64)
    owners = np.repeat(np.arange(len(keys)), many)
    nth = np.arange(len(owners)) - np.repeat(np.cumsum(many) - many, many)
    phase = (np.arange(len(keys)) * 0.6180339887498949) % 1.0  # different ones, so that keys of one count alternate
    times = (nth + phase[owners]) / many[owners]
    for k in owners[np.argsort(times, kind="stable")].tolist():
        yield keys[k]
