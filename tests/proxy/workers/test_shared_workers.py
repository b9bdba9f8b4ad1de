"""Several workers of one proxy on a shared store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.support.programs import find_module
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.redis_servers import RedisProcess
from tests.support.timing import check_seconds, wait_until

find_module("redis", "the extra redis")

PASSWORD = "hunter2-of-the-engine"
SECRET = "5e" * 32


def summary(proxy: ProxyProcess) -> Any:
    """Return the summary, or None while the pipeline changes its process."""
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    response = httpx.get(f"{proxy.url}/admin/v1/summary", headers=headers, timeout=60)
    return response.json() if response.status_code == 200 else None


def owns(proxy: ProxyProcess) -> bool:
    found = summary(proxy)
    return found is not None and found["health"]["owner"]


@pytest.mark.long
def test_the_worker_with_the_pipeline_owns_the_store_and_another_one_replaces_it(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    with RedisProcess(tmp_path, "--requirepass", PASSWORD, password=PASSWORD) as engine:
        store = f"redis://:{PASSWORD}@127.0.0.1:{engine.port}"
        environment = {"KNAPCACHE_STORE": store, "KNAPCACHE_SECRET": SECRET}
        with ProxyProcess(tmp_path / "data", upstream.openai_url, environment, workers=2) as proxy:
            for k in range(12):
                body = {"model": "m", "messages": [{"role": "user", "content": f"question {k % 3}"}]}
                assert httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
            assert len(upstream.calls) == 3
            wait_until(lambda: summary(proxy)["all"]["requests"] == 12)
            wait_until(lambda: (tmp_path / "data" / "history.json").exists())
            assert owns(proxy)
            pipeline = int((tmp_path / "data" / "pipeline.lock").read_text().split()[0])
            os.kill(pipeline, signal.SIGKILL)
            wait_until(lambda: owns(proxy))
            assert int((tmp_path / "data" / "pipeline.lock").read_text().split()[0]) != pipeline
            began = time.monotonic()
        check_seconds(time.monotonic() - began, 20.0, "the stop")
        with engine.client() as client:
            assert not client.exists("{knapcache:o}:owner")  # released, not left to run out
        assert not [line for line in proxy.log if PASSWORD in line or SECRET in line]


@pytest.mark.long
def test_a_store_that_cannot_be_used_is_one_error_also_with_workers(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, "--maxmemory-policy", "allkeys-lru") as engine:
        command = [sys.executable, "-m", "knapcache", "serve", "--workers", "2", "--port", "0", "--store", engine.url]
        command += ["--path", str(tmp_path / "data"), "--upstream", "http://127.0.0.1:9/v1"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "knapcache: error: maxmemory-policy of the server must be noeviction, not allkeys-lru: "
        "knapcache decides what to evict\n"
    )
