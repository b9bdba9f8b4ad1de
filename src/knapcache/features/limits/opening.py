"""Builds the limits from the settings."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from knapcache.features.limits.core import Counts
from knapcache.features.limits.fallback_counts import FallbackCounts
from knapcache.features.limits.limits import Limits
from knapcache.features.limits.local_counts import MemoryCounts
from knapcache.features.limits.redis_counts import RedisCounts
from knapcache.features.limits.sqlite_counts import SqliteCounts
from knapcache.price.estimate import CostEstimator
from knapcache.price.meter import Meter
from knapcache.proxy.settings import Settings
from knapcache.store.redis.store import RedisStore

FILE = "limits.sqlite"


def open_limits(
    settings: Settings, meter: Meter, *, folder: Path | None, secret: bytes, shared_store: RedisStore | None
) -> Limits:
    """Return the limits. Nothing is read or written before the first call that has limits.

    folder         of the file with the counters; None: they are in memory
    shared_store   has the counters, if it is given
    """
    process = f"{os.getpid()}-{secrets.token_hex(8)}"
    counts: Counts
    if shared_store is not None:
        counts = RedisCounts(shared_store.call_counts, process, secret)
    elif folder is not None:
        counts = SqliteCounts(folder / FILE, process)
    else:
        counts = MemoryCounts()
    threads = not isinstance(counts, MemoryCounts)
    return Limits(settings, FallbackCounts(counts), CostEstimator(meter), threads=threads)
