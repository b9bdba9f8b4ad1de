"""Limits hold for concurrent callers of two worker processes: no request too many, at most one call's dollars."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.proxy.settings.secrets import digest_of
from knapcache.testing import FakeUpstream
from tests.support.programs import find_module
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until

CALLERS = 80
MANY_CALLERS = 500
REQUESTS, DOLLARS = 40, 0.003
CONFIG = f"""
[[tenants]]
name = "counted"
keys = ["{digest_of("key-counted")}"]
limits = {{ requests_per_minute = {REQUESTS} }}

[[tenants]]
name = "paying"
keys = ["{digest_of("key-paying")}"]
limits = {{ usd_per_day = {DOLLARS} }}
"""


async def call_until_refused(client: httpx.AsyncClient, tenant: str, number: int) -> int:
    """Return 200, or 429 when the limit is used up. Calls in flight that may use it up are waited for."""
    message = {"role": "user", "content": f"question {number:03} of one of many callers"}
    question = {"model": "gpt-4o", "max_tokens": 60, "messages": [message]}
    headers = {"authorization": f"Bearer key-{tenant}", "connection": "close"}
    while True:
        response = await client.post("/v1/chat/completions", json=question, headers=headers)
        assert response.status_code in (200, 429), response.text
        final = tenant == "counted" or response.headers.get("x-should-retry") == "false"
        if response.status_code == 200 or final:
            return response.status_code
        await asyncio.sleep(0.2)


async def all_callers(url: str, tenant: str, callers: int) -> list[int]:
    connections = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=connections) as client:
        return await asyncio.gather(*(call_until_refused(client, tenant, number) for number in range(callers)))


def used(proxy: ProxyProcess, tenant: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    rows = httpx.get(f"{proxy.url}/admin/v1/limits", headers=headers, timeout=60).json()["rows"]
    found: dict[str, Any] = next(row for row in rows if row["name"] == tenant)
    return found


def check(proxy: ProxyProcess, upstream: FakeUpstream, callers: int = MANY_CALLERS) -> None:
    assert len(proxy.pids()) == 2
    found = asyncio.run(all_callers(proxy.url, "counted", callers))
    assert found.count(200) == REQUESTS == upstream.count()
    assert found.count(429) == callers - REQUESTS
    found = asyncio.run(all_callers(proxy.url, "paying", callers))
    wait_until(lambda: used(proxy, "paying")["reserved"] == 0)
    spent = used(proxy, "paying")["used"]
    one_call = spent / found.count(200)
    assert DOLLARS / one_call > 10
    assert DOLLARS <= spent < DOLLARS + one_call
    assert upstream.count() == REQUESTS + found.count(200)


@pytest.mark.parametrize("callers", [CALLERS, pytest.param(MANY_CALLERS, marks=pytest.mark.long)])
def test_callers_of_two_workers_stay_within_limits(tmp_path: Path, upstream: FakeUpstream, callers: int) -> None:
    with ProxyProcess(tmp_path / "data", upstream.openai_url, config=CONFIG, workers=2) as proxy:
        check(proxy, upstream, callers)


@pytest.mark.long
def test_500_callers_stay_within_limits_on_a_shared_store(tmp_path: Path, upstream: FakeUpstream) -> None:
    find_module("redis", "the extra redis")
    with RedisProcess(tmp_path) as engine:
        environment = {"KNAPCACHE_STORE": f"redis://127.0.0.1:{engine.port}", "KNAPCACHE_SECRET": "5e" * 32}
        with ProxyProcess(tmp_path / "data", upstream.openai_url, environment, CONFIG, workers=2) as proxy:
            check(proxy, upstream)
