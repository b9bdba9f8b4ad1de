"""R9: a disk that stops, hangs or takes five seconds for everything. The proxy answers, from upstream, and as fast."""

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

KEPT = 60
DELAY = 0.02
"""Seconds that the provider takes."""
ALLOWED = 0.05
"""Seconds that 99 of 100 requests may take longer."""


async def ask(client: httpx.AsyncClient, name: object, stream: bool = False) -> tuple[str, float]:
    """How it was answered, and in how many seconds. Whatever the disk does, it must be answered, and rightly."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"question <{name}>"}], "stream": stream}
    start = time.perf_counter()
    answer = await client.post("/chat/completions", json=body)
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    assert f"<{name}>" in answer.text
    assert answer.text.rstrip().endswith("[DONE]" if stream else "}")
    return answer.headers["x-knapcache"], seconds


async def p99(client: httpx.AsyncClient, names: Callable[[int], object], many: int, together: int = 4) -> float:
    """Of many requests, some at a time, half of them streams."""

    async def some(first: int) -> list[float]:
        return [(await ask(client, names(k), stream=k % 4 >= 2))[1] for k in range(first, many, together)]

    times = sorted(chain.from_iterable(await asyncio.gather(*(some(first) for first in range(together)))))
    return times[int(0.99 * len(times))]


def breaker(proxy: RunningProxy) -> dict[str, Any]:
    found: dict[str, Any] = proxy.proxy.cache.stats()["breaker"]
    return found


async def opened(client: httpx.AsyncClient, proxy: RunningProxy) -> None:
    for name in range(20):
        if breaker(proxy)["state"] != "closed":
            return
        await ask(client, name)
    raise AssertionError("it does not open")


async def recovered(client: httpx.AsyncClient, proxy: RunningProxy) -> None:
    end = time.monotonic() + 20
    while breaker(proxy)["state"] != "closed" or (await ask(client, KEPT - 1))[0] != "hit":
        await ask(client, KEPT - 1)
        assert time.monotonic() < end, breaker(proxy)
        await asyncio.sleep(0.05)


async def fails(start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str, many: int) -> None:
    """The same requests without a store and with a broken one: what is added at the 99th percentile."""
    proxy = start()
    async with httpx.AsyncClient(base_url=proxy.openai, timeout=60.0) as client:
        for name in range(KEPT):
            await ask(client, name)
        await asyncio.to_thread(proxy.proxy.cache._coordinator.store.flush)
        assert (await ask(client, 0))[0] == "hit"
        upstream.delay = DELAY
        usual = await p99(client, lambda k: f"before-{k}", many)  # misses, with a disk in good health
        DISK_FAULTS[kind](slow_disk)
        await opened(client, proxy)
        assert slow_disk.injected > 0
        asked = upstream.count()
        broken = await p99(client, lambda k: k % KEPT if k % 3 else f"new-{k}", many)
        assert broken <= usual + ALLOWED
        assert upstream.count() > asked, "answers cannot have come from the disk"
        assert breaker(proxy)["skipped"] > 0
        assert httpx.get(f"{proxy.url}/healthz").status_code == 200
        assert "knapcache_breaker_open 1.0" in httpx.get(f"{proxy.url}/metrics").text
        slow_disk.repair()
        await recovered(client, proxy)
    await asyncio.to_thread(proxy.proxy.cache._coordinator.store.flush)


@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_requests_are_answered_without_the_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await fails(start, upstream, slow_disk, kind, 150)


@pytest.mark.long
@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_many_requests_are_answered_without_the_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await fails(start, upstream, slow_disk, kind, 3000)


async def test_a_proxy_ends_while_its_disk_is_slow(tmp_path: Path, upstream: FakeUpstream, slow_disk: SlowDisk) -> None:
    """What was kept before is there the next time."""
    proxy = RunningProxy(tmp_path / "data", upstream.openai, policy="lru")
    with proxy:
        async with httpx.AsyncClient(base_url=proxy.openai, timeout=60.0) as client:
            assert (await ask(client, "kept"))[0] == "miss"
            await asyncio.to_thread(proxy.proxy.cache._coordinator.store.flush)
            slow_disk.start_fault(0.05)
            assert (await ask(client, "during-the-fault"))[0] == "miss"
    slow_disk.repair()
    with RunningProxy(tmp_path / "data", upstream.openai, policy="lru") as again:
        async with httpx.AsyncClient(base_url=again.openai, timeout=60.0) as client:
            assert (await ask(client, "kept"))[0] == "hit"
