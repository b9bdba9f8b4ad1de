"""libCacheSim for bench/replay.py, with its fastest interface, and its learned policies for bench/learned.py.

The fastest interface is its own reader over a memory-mapped file, all in C. It gets the best hash table size: tables of
2^12 to 2^20 buckets are tried once, and the fastest is measured. Its default, 2^24, is up to seven times slower here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knapcache.lab.trace import Trace

NAMES = {"fifo": "FIFO", "lru": "LRU", "sieve": "Sieve", "s3-fifo": "S3FIFO", "gdsf": "GDSF"}
HASH_POWERS = (12, 14, 16, 18, 20)
LEARNED: dict[str, tuple[str, dict[str, str]]] = {
    "GL-Cache (libCacheSim)": ("GLCache", {}),
    "LRB (libCacheSim)": ("LRB", {"objective": "object-miss-ratio"}),
    "3L-Cache (libCacheSim)": ("ThreeLCache", {"objective": "object-miss-ratio"}),
}
"""Learned policies by the name of their row: libCacheSim's class, and options for the fewest misses."""


def run(name: str, path: Path, capacity: int, hash_power: int) -> tuple[float, float]:
    """Return CPU seconds and miss ratio of a policy on an oracleGeneral file."""
    import libcachesim  # here, so that --help and --markdown work without it

    start = time.process_time()
    reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache = getattr(libcachesim, NAMES[name])(cache_size=capacity, hashpower=hash_power)
    missed, _ = cache.process_trace(reader)
    return time.process_time() - start, float(missed)


def fastest(name: str, path: Path, capacity: int) -> tuple[int, Callable[[], tuple[float, float]]]:
    """Return the best hash power for this run, and a function that runs with it."""
    power = min(HASH_POWERS, key=lambda power: min(run(name, path, capacity, power)[0] for _ in range(2)))
    return power, lambda: run(name, path, capacity, power)


def learned_hits(row: str, trace: Trace, capacity: int) -> npt.NDArray[np.bool_]:
    """Return the hits of a learned policy. Every key keeps its first size: libCacheSim supports no other."""
    import libcachesim

    name, options = LEARNED[row]
    _, first, keys = np.unique(trace.keys, return_index=True, return_inverse=True)
    cache = getattr(libcachesim, name)(cache_size=capacity, hashpower=18, **options)
    requests = zip(trace.keys.tolist(), trace.sizes[first][keys].tolist(), strict=True)
    return np.array([cache.get(libcachesim.Request(obj_id=key + 1, obj_size=size)) for key, size in requests])
