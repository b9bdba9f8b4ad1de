"""A flood of requests that never return, among requests for a hot set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from knapcache import Cache, Reply
from tests.support.caches import admission_of

BODY = b'{"model":"m","messages":[{"role":"user","content":"question %d"}]}'
HOT = 5000
"""Keys of the hot set. Zipf's law with exponent 0.9."""
CAPACITY_SHARE = 0.1
"""Capacity as a share of the hot set's bytes."""


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def replay_through(
    cache: Cache, keys: np.ndarray, sizes: np.ndarray, progress: Callable[[int], object]
) -> tuple[np.ndarray, list[int]]:
    """Send requests; return which were hits, and the resident memory at every tenth of the way."""
    hits, memory = np.zeros(len(keys), bool), []
    for n, key in enumerate(keys.tolist()):
        reply = Reply(bytes(int(sizes[key % len(sizes)])), "m", cost=1.0, seconds=1.0)
        hits[n] = cache.fetch("chat/completions", BODY % key, lambda reply=reply: reply).outcome == "hit"  # type: ignore[misc]
        if (n + 1) % max(1, len(keys) // 10) == 0:
            memory.append(resident_bytes())
            progress(n + 1)
    return hits, memory


def flood_cache(
    requests: int, flood: int, ids: int, progress: Callable[[int], object] = lambda _: None
) -> dict[str, float]:
    """Compare the hit rate of the hot set alone and within the flood; what the cache remembers must be bounded.

    The first fifth of the requests, in which the cache fills, does not count.
    """
    rng = np.random.default_rng(8)
    weights = np.arange(1, HOT + 1) ** -0.9
    hot = rng.choice(HOT, requests, p=weights / weights.sum())
    sizes = rng.integers(100, 1000, HOT)
    is_hot = np.zeros(requests + flood, bool)
    is_hot[rng.choice(requests + flood, requests, replace=False)] = True
    flooded = np.empty(requests + flood, np.int64)
    flooded[is_hot], flooded[~is_hot] = hot, HOT + np.arange(flood)
    capacity = int((sizes + 600).sum() * CAPACITY_SHARE)  # an entry also has its request and metadata
    rates, count = [], requests // 5
    for keys, mask in ((hot, np.ones(requests, bool)), (flooded, is_hot)):
        with Cache(capacity, cost="seconds", ids=ids, shadows=()) as cache:
            policy = admission_of(cache).policy
            table_bytes = policy.rows.nbytes
            hits, memory = replay_through(cache, keys, sizes, progress if mask is is_hot else lambda _: None)
            cache.check()
            assert policy.rows.nbytes == table_bytes, "the table of statistics has grown"
            assert cache.stats().ids <= ids
            assert cache.stats().bytes <= cache.stats().capacity
        rates.append(float(hits[mask][count:].mean()))
    loss = rates[0] - rates[1]
    assert loss <= 0.01, f"the hit rate of the hot set falls by {100 * loss:.2f} points"
    growth = memory[-1] / memory[len(memory) // 2] - 1
    return {
        "flood": flood,
        "hot_requests": requests,
        "hit_rate_percent": 100 * rates[0],
        "hit_rate_in_flood_percent": 100 * rates[1],
        "points_lost": 100 * loss,
        "ids": ids,
        "memory_growth_second_half_percent": 100 * growth,
    }
