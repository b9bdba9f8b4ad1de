"""A shared store that accepts connections and does not answer: limits hold, and no request waits for long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.proxy.test_shared_store import CHAT, SharedProxy
from tests.support.programs import find_module
from tests.support.recording_upstream import RecordingUpstream
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until, within

find_module("redis", "the extra redis")

REQUESTS = 12


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server


def status_of(proxy: SharedProxy, number: int) -> int:
    body = CHAT | {"messages": [{"role": "user", "content": f"question {number}"}]}
    return httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60).status_code


def used(proxy: SharedProxy, limit: str) -> float:
    rows = proxy.get("/limits")["rows"]
    return float(next(row["used"] for row in rows if row["limit"] == limit))


def test_limits_hold_while_the_engine_hangs(engine: RedisProcess, upstream: RecordingUpstream, tmp_path: Path) -> None:
    prices = {CHAT["model"]: {"input": 1e5, "output": 0.0}}
    limits = {"requests_per_minute": REQUESTS, "usd_per_day": 1000.0}
    with SharedProxy(tmp_path, upstream.openai_url, engine.url, limits=limits, prices=prices) as proxy:
        assert [status_of(proxy, k) for k in range(4)] == [200] * 4
        wait_until(lambda: used(proxy, "usd_per_day") > 0)
        paid = used(proxy, "usd_per_day")
        engine.signal(signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(8) as pool, within(10, "20 requests"):
                statuses = list(pool.map(lambda k: status_of(proxy, k), range(4, 24)))
            assert statuses.count(200) == REQUESTS - 4, "what was counted before still counts"
            assert statuses.count(429) == 20 - (REQUESTS - 4)
            with within(1, "the health check"):
                assert httpx.get(f"{proxy.url}/healthz", timeout=60).status_code == 200
            assert proxy.get("/limits")["alone"], "the admin API says why each process counts for itself"
        finally:
            engine.signal(signal.SIGCONT)
        wait_until(lambda: not proxy.get("/limits")["alone"])
        wait_until(lambda: used(proxy, "usd_per_day") == pytest.approx(paid / 4 * REQUESTS))
