"""If the disk fails, hangs or takes seconds for every read, the proxy answers from upstream without delay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.cache.test_breaker import slow_disk
from tests.support.faulty_disk import DISK_FAULTS, SlowDisk
from tests.support.proxy_fixtures import Start
from tests.support.proxy_scenarios import FAILING_DISKS, answers_with_a_failing_disk, latency_with_a_broken_disk, post
from tests.support.running_proxy import RunningProxy

__all__ = ["slow_disk"]
"""A disk with faults under the store. It has no memory tier, so every hit is a disk read."""


@pytest.mark.parametrize("kind", ["black-holed", "stopped"])
async def test_requests_are_answered_without_the_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await latency_with_a_broken_disk(start(), upstream, slow_disk, kind, 150, max_added=0.5)


@pytest.mark.long
@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_many_requests_are_answered_without_the_disk(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await latency_with_a_broken_disk(start(), upstream, slow_disk, kind, 3000)


@pytest.mark.parametrize("kind", FAILING_DISKS)
async def test_requests_are_answered_while_the_disk_fails(
    start: Start, upstream: FakeUpstream, slow_disk: SlowDisk, kind: str
) -> None:
    await answers_with_a_failing_disk(start(), upstream, slow_disk, kind, 200)


async def test_a_proxy_stops_while_its_disk_is_slow_and_keeps_its_entries(
    tmp_path: Path, upstream: FakeUpstream, slow_disk: SlowDisk
) -> None:
    proxy = RunningProxy(tmp_path / "data", upstream.openai_url)
    with proxy:
        async with httpx.AsyncClient(base_url=proxy.openai_url, timeout=60.0) as client:
            assert (await post(client, "kept"))[0] == "miss"
            await asyncio.to_thread(proxy.proxy.cache.coordinator.store.flush)
            slow_disk.start_fault(0.05)
            assert (await post(client, "during-the-fault"))[0] == "miss"
    slow_disk.repair()
    with RunningProxy(tmp_path / "data", upstream.openai_url) as again:
        async with httpx.AsyncClient(base_url=again.openai_url, timeout=60.0) as client:
            assert (await post(client, "kept"))[0] == "hit"
