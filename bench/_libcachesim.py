"""libCacheSim with its fastest interface, for bench/replay.py: its own reader over a memory-mapped file, all in C.

It gets the best hash table size: tables of 2^12 to 2^20 buckets are tried once, and the fastest is measured. Its
default, 2^24, is up to seven times slower here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import libcachesim

NAMES = {"fifo": "FIFO", "lru": "LRU", "sieve": "Sieve", "s3-fifo": "S3FIFO", "gdsf": "GDSF"}
HASH_POWERS = (12, 14, 16, 18, 20)


def run(name: str, path: Path, capacity: int, hash_power: int) -> tuple[float, float]:
    """Return CPU seconds and miss ratio of a policy on an oracleGeneral file."""
    start = time.process_time()
    reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache = getattr(libcachesim, NAMES[name])(cache_size=capacity, hashpower=hash_power)
    missed, _ = cache.process_trace(reader)
    return time.process_time() - start, float(missed)


def fastest(name: str, path: Path, capacity: int) -> tuple[int, Callable[[], tuple[float, float]]]:
    """Return the best hash power for this run, and a function that runs with it."""
    power = min(HASH_POWERS, key=lambda power: min(run(name, path, capacity, power)[0] for _ in range(2)))
    return power, lambda: run(name, path, capacity, power)
