"""Memory of a process whose cache serves requests: printed every so often as JSON, [requests, bytes].

    python bench/_memory_growth.py REQUESTS KEYS EVERY

Ten times as many different keys are asked for as are remembered, by Zipf's law, so that numbers and room are given from
key to key all the time.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from knapcache import Cache, Reply

BODY = b'{"model":"m","messages":[{"role":"user","content":"question %d"}]}'


def resident() -> int:
    """Bytes of memory that are this process's now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(requests: int, keys: int, every: int) -> None:
    """Ask, and look from time to time."""
    rng = np.random.default_rng(0)
    weights = np.arange(1, 10 * keys + 1) ** -0.8
    which = rng.choice(10 * keys, requests, p=weights / weights.sum()).astype(np.int32)
    sizes = rng.integers(50, 500, 10 * keys).astype(np.int32)
    curve = []
    with Cache(32 << 20, cost="seconds", ids=keys) as cache:
        for n, k in enumerate(which, 1):
            reply = Reply(bytes(int(sizes[k])), "m", seconds=1.0)
            cache.fetch("chat/completions", BODY % k, lambda reply=reply: reply)  # type: ignore[misc]
            if n % every == 0:
                curve.append([n, resident()])
        stats = cache.stats()
        cache.check()
    told = {
        name: stats.get(name, 0)
        for name in ("requests", "hits", "admitted", "evictions", "recycled_ids", "entries", "ids")
    }
    print(json.dumps({"curve": curve, "stats": told}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
