"""Misses of `Cache.get` that wait for `Cache.put`, so that a request is counted once and its duration is known.

A caller whose call fails never calls `put`. So at most MAX_OPEN keys are open, and the oldest is dropped first; of one
key at most MAX_OPEN_OF_KEY misses are open.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from knapcache.cache.values import Lookup

MAX_OPEN = 4096
MAX_OPEN_OF_KEY = 16


class OpenMisses:
    """Lookups by key, without their requests: `put` has the request again."""

    def __init__(self) -> None:
        self._lookups: OrderedDict[bytes, deque[Lookup]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._lookups)

    def add(self, digest: bytes, lookup: Lookup) -> None:
        """Add the lookup of a miss."""
        with self._lock:
            self._lookups.setdefault(digest, deque(maxlen=MAX_OPEN_OF_KEY)).append(lookup._replace(request=None))
            if len(self._lookups) > MAX_OPEN:
                self._lookups.popitem(last=False)

    def take(self, digest: bytes) -> Lookup | None:
        """Remove the oldest open lookup of a key, and return it; None if there is none."""
        with self._lock:
            lookups = self._lookups.get(digest)
            if lookups is None:
                return None
            found = lookups.popleft()
            if not lookups:
                del self._lookups[digest]
            return found
