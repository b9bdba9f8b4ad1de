"""If the disk fails, hangs or takes seconds for every read, the proxy answers from upstream without delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.cache.test_breaker import DISK_FAULTS, SlowDisk, slow_disk
from tests.serve.conftest import Start
from tests.support.running_proxy import RunningProxy

__all__ = ["slow_disk"]
"""A disk with faults under the store. It has no memory tier, so every hit is a disk read."""

STORED = 60
DELAY = 0.02
"""Seconds that the upstream takes."""
MAX_ADDED = 0.05
"""Seconds that may be added at the 99th percentile."""


async def post(client: httpx.AsyncClient, name: object, stream: bool = False) -> tuple[str, float]:
    """Return the outcome and the seconds of a request. Its answer must be right, whatever the disk does."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"question <{name}>"}], "stream": stream}
    start = time.perf_counter()
    answer = await client.post("/chat/completions", json=body)
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    assert f"<{name}>" in answer.text
    assert answer.text.rstrip().endswith("[DONE]" if stream else "}")
    return answer.headers["x-knapcache"], seconds


async def p99(client: httpx.AsyncClient, names: Callable[[int], object], many: int, together: int = 4) -> float:
    """Return the 99th percentile of many requests, `together` at a time, half of them streams."""

    async def some(first: int) -> list[float]:
        return [(await post(client, names(k), stream=k % 4 >= 2))[1] for k in range(first, many, together)]

    times = sorted(chain.from_iterable(await asyncio.gather(*(some(first) for first in range(together)))))
    return times[int(0.99 * len(times))]


def breaker(proxy: RunningProxy) -> dict[str, Any]:
    found: dict[str, Any] = proxy.proxy.cache.stats()["breaker"]
    return found


async def open_breaker(client: httpx.AsyncClient, proxy: RunningProxy) -> None:
    for name in range(20):
        if breaker(proxy)["state"] != "closed":
            return
        await post(client, name)
    raise AssertionError("the breaker does not open")


async def wait_for_recovery(client: httpx.AsyncClient, proxy: RunningProxy) -> None:
    end = time.monotonic() + 20
    while breaker(proxy)["state"] != "closed" or (await post(client, STORED - 1))[0] != "hit":
        await post(client, STORED - 1)
        assert time.monotonic() < end, breaker(proxy)
        await asyncio.sleep(0.05)


async def check_latency_with_a_broken_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str, many: int
) -> None:
    """Compare the 99th percentile of misses with a healthy disk and of all requests with a broken one."""
    proxy = start()
    async with httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0) as client:
        for name in range(STORED):
            await post(client, name)
        await asyncio.to_thread(proxy.proxy.cache._coordinator.store.flush)
        assert (await post(client, 0))[0] == "hit"
        upstream.delay = DELAY
        healthy = await p99(client, lambda k: f"before-{k}", many)
        DISK_FAULTS[kind](slow_disk)
        await open_breaker(client, proxy)
        assert slow_disk.injected > 0
        calls = upstream.count()
        broken = await p99(client, lambda k: k % STORED if k % 3 else f"new-{k}", many)
        assert broken <= healthy + MAX_ADDED
        assert upstream.count() > calls, "these answers cannot be hits"
        assert breaker(proxy)["skipped"] > 0
        assert httpx.get(f"{proxy.url}/healthz").status_code == 200
        assert "knapcache_breaker_open 1.0" in httpx.get(f"{proxy.url}/metrics").text
        slow_disk.repair()
        await wait_for_recovery(client, proxy)
    await asyncio.to_thread(proxy.proxy.cache._coordinator.store.flush)


@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_requests_are_answered_without_the_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await check_latency_with_a_broken_disk(start, upstream, slow_disk, kind, 150)


@pytest.mark.long
@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_many_requests_are_answered_without_the_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await check_latency_with_a_broken_disk(start, upstream, slow_disk, kind, 3000)


async def test_a_proxy_stops_while_its_disk_is_slow_and_keeps_its_entries(
    tmp_path: Path, upstream: FakeUpstream, slow_disk: SlowDisk
) -> None:
    proxy = RunningProxy(tmp_path / "data", upstream.openai_url, policy="lru")
    with proxy:
        async with httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0) as client:
            assert (await post(client, "kept"))[0] == "miss"
            await asyncio.to_thread(proxy.proxy.cache._coordinator.store.flush)
            slow_disk.start_fault(0.05)
            assert (await post(client, "during-the-fault"))[0] == "miss"
    slow_disk.repair()
    with RunningProxy(tmp_path / "data", upstream.openai_url, policy="lru") as again:
        async with httpx.AsyncClient(base_url=again.openai_url, timeout=60.0) as client:
            assert (await post(client, "kept"))[0] == "hit"
