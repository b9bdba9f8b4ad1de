"""A cache on disk under answers of mixed sizes, whose files and entries are measured all the time."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.caches import CHAT, Upstream, is_answer, request_of, small_cache
from tests.support.stores import DiskUsageMonitor, files_bytes

SIZE_LIMIT = 2 << 20
THREADS = 4


def fill_with_mixed_sizes(
    path: Path, requests: int, progress: Callable[[int], object] = lambda _: None
) -> dict[str, float]:
    """Send `requests` from each of four threads, for answers of 0 B to 200 kB, in a cache of 2 MiB.

    The bytes of the files never exceed the size limit, and those of the entries never exceed the capacity.
    """
    with small_cache(capacity=SIZE_LIMIT, path=path, policy="gdsf-cost", ttl=3600.0) as cache:
        largest = 0

        def measure() -> None:
            nonlocal largest
            largest = max(largest, cache.stats().bytes)

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for k in range(requests):
                name, n = rng.randrange(500), int(min(200_000, rng.lognormvariate(8, 1.5)))
                assert is_answer(cache.fetch(CHAT, request_of(name), Upstream()(name, n)).payload, name)
                if rng.random() < 0.02:
                    cache.maintain()
                if seed == 0:
                    progress(k + 1)

        with DiskUsageMonitor(path, measure) as usage, ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))  # raises what a thread has raised
        cache.check()
        stats = cache.stats()
        assert stats.rejected_too_large > 0
        assert stats.store_errors == 0
        assert 0 < largest <= stats.capacity
    assert 0 < usage.max_bytes <= SIZE_LIMIT
    assert files_bytes(path) <= SIZE_LIMIT
    return {
        "requests": THREADS * requests,
        "samples": usage.samples,
        "milliseconds_between_samples": 1000 * usage.seconds / usage.samples,
        "largest_files_bytes": usage.max_bytes,
        "size_limit_bytes": SIZE_LIMIT,
        "largest_entries_bytes": largest,
        "capacity_bytes": stats.capacity,
        "evictions": stats.evictions,
    }
