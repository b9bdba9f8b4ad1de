"""Memory of a process whose cache serves requests. Prints JSON: {"curve": [[requests, bytes], …], "stats": {…}}.

    python bench/_memory_growth.py REQUESTS KEYS INTERVAL

The requests follow Zipf's law over ten times as many keys as the cache remembers, so ids and space are recycled all the
time.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from knapcache import Cache, Reply

BODY = b'{"model":"m","messages":[{"role":"user","content":"question %d"}]}'
STATS = ("requests", "hits", "admitted", "evictions", "recycled_ids", "entries", "ids")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(requests: int, keys: int, interval: int) -> None:
    rng = np.random.default_rng(0)
    weights = np.arange(1, 10 * keys + 1) ** -0.8
    order = rng.choice(10 * keys, requests, p=weights / weights.sum()).astype(np.int32)
    sizes = rng.integers(50, 500, 10 * keys).astype(np.int32)
    curve = []
    with Cache(32 << 20, cost="seconds", ids=keys) as cache:
        for n, k in enumerate(order, 1):
            reply = Reply(bytes(int(sizes[k])), "m", seconds=1.0)
            cache.fetch("chat/completions", BODY % k, lambda reply=reply: reply)  # type: ignore[misc]
            if n % interval == 0:
                curve.append([n, resident_bytes()])
        stats = cache.stats()
        cache.check()
    print(json.dumps({"curve": curve, "stats": {name: getattr(stats, name) for name in STATS}}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
