"""All at once: threads, two event loops, cancelled requests, purges, expiry, recycled ids, and checks."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from knapcache import Cache, Reply
from tests.support.caches import CHAT, Upstream, is_answer, payload_of, request_of, small_cache
from tests.support.flood import flood_cache


def fetch_in_thread(cache: Cache, seed: int, until: float) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until:
        name, chance = rng.randrange(300), rng.random()
        call = Upstream()(name, rng.randrange(20_000))
        answer = cache.fetch(CHAT, request_of(name), call, refresh=rng.random() < 0.1)
        assert is_answer(answer.payload, name)
        if chance < 0.01:
            cache.purge(key=answer.key)
        elif chance < 0.012:
            cache.maintain()
        elif chance < 0.013:
            cache.check()


async def fetch_and_cancel(cache: Cache, seed: int, until: float) -> None:
    rng = random.Random(seed)

    async def one() -> None:
        name = rng.randrange(300)

        async def call() -> Reply:
            await asyncio.sleep(rng.random() * 0.01)
            return Reply(payload_of(name, rng.randrange(20_000)), cost=1.0)

        assert is_answer((await cache.afetch(CHAT, request_of(name), call)).payload, name)

    while time.monotonic() < until:
        tasks = [asyncio.create_task(one()) for _ in range(20)]
        await asyncio.sleep(0.003)
        for task in rng.sample(tasks, 3):
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def run_load(path: Path | None, seconds: float) -> None:
    with small_cache(capacity=2 << 20, path=path, policy="gdsf-cost", shadows=("lru",), ids=150, ttl=0.3) as cache:
        until = time.monotonic() + seconds

        def work(k: int) -> None:
            if k < 4:
                fetch_in_thread(cache, k, until)
            else:
                asyncio.run(fetch_and_cancel(cache, k, until))

        pool = ThreadPoolExecutor(6)
        for working in [pool.submit(work, k) for k in range(6)]:
            working.result(seconds + 60)  # TimeoutError: a thread hangs
        pool.shutdown()
        cache.check()
        stats = cache.stats()
        assert min(stats.hits, stats.coalesced, stats.misses, stats.evictions, stats.recycled_ids) > 0
        assert len(cache._engine.single_flight) == 0


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_mixed_load(path: Path, where: str, seconds: float) -> None:
    run_load(path if where == "file" else None, seconds)


@pytest.mark.long
def test_a_flood_of_keys_that_never_return_leaves_the_hot_set() -> None:
    assert flood_cache(8000, 16_000, 5000)["hit_rate_in_flood_percent"] > 40
