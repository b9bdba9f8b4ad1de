"""One of two upstreams is killed under load, and comes back: no request fails, and traffic moves over and returns.

The clients are OpenAI's SDK without retries, half of them with streams. One kind of failure cannot be avoided, and is
counted apart: a stream of which the client had bytes when its upstream was killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from knapcache.proxy.upstream import upstream as upstream_module
from tests.support.front_proxies import free_port
from tests.support.running_proxy import RunningProxy
from tests.support.timing import async_wait_until

SERVE = """
import sys, threading
from knapcache.testing.upstream import FakeUpstream
with FakeUpstream(delay=0.02, port=int(sys.argv[1])):
    print("ready", flush=True)
    threading.Event().wait()
"""
NAMES = ("a", "b")


class UpstreamProcess:
    """A fake provider in a process of its own, which can be killed and started again at the same address."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        with self._process:
            pass


class Load:
    """Clients that ask one question after another, and what became of these."""

    def __init__(self, url: str) -> None:
        self._client = openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=60)
        self._numbers = itertools.count()
        self.answered: list[tuple[float, str]] = []
        """When each request began, and which upstream has answered it."""
        self.failed: list[str] = []
        self.broken = 0
        """Streams that broke off after their first bytes."""
        self.stopped = False

    async def run(self, *, stream: bool) -> None:
        while not self.stopped:
            began, received = time.monotonic(), False
            messages: Any = [{"role": "user", "content": f"question {next(self._numbers)}"}]
            try:
                raw: Any = await self._client.chat.completions.with_raw_response.create(
                    model="gpt", messages=messages, stream=stream
                )
                if stream:
                    finished = None
                    async for chunk in raw.parse():
                        received = True
                        finished = chunk.choices[0].finish_reason if chunk.choices else finished
                    assert finished == "stop"
                else:
                    assert raw.parse().choices[0].message.content
            except (openai.OpenAIError, AssertionError) as error:
                if received:
                    self.broken += 1
                else:
                    self.failed.append(f"stream={stream}: {error!r}")
            else:
                self.answered.append((began, raw.headers["x-knapcache-upstream"]))

    async def until(self, name: str, count: int) -> None:
        """Wait until an upstream has answered so many requests that begin from now on."""
        now = time.monotonic()
        await async_wait_until(
            lambda: sum(began > now and answered == name for began, answered in self.answered) >= count,
            f"{count} answers of {name}",
        )

    async def close(self) -> None:
        await self._client.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[UpstreamProcess, UpstreamProcess]]:
    found = UpstreamProcess(), UpstreamProcess()
    for each in found:
        each.start()
    yield found
    for each in found:
        each.kill()


@pytest.mark.parametrize(
    "balance", ["order", *(pytest.param(name, marks=pytest.mark.long) for name in ("weights", "least-busy"))]
)
async def test_an_upstream_is_killed_under_load_and_comes_back(
    balance: str,
    processes: tuple[UpstreamProcess, UpstreamProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_module, "FIRST_OPEN", 0.1)
    monkeypatch.setattr(upstream_module, "MAX_OPEN", 0.4)
    upstreams = [
        {"name": name, "url": f"http://127.0.0.1:{each.port}/v1", "headers": {"authorization": "Bearer x"}, "proxy": ""}
        for name, each in zip(NAMES, processes, strict=True)
    ]
    route = [{"name": "all", "upstreams": list(NAMES), "balance": balance}]
    with RunningProxy(tmp_path, "", upstreams=upstreams, route=route, cost="seconds") as proxy:
        load = Load(proxy.openai_url)
        clients = [asyncio.create_task(load.run(stream=bool(k % 2))) for k in range(12)]
        await load.until("a", 20)
        if balance != "order":
            await load.until("b", 30)
        await asyncio.to_thread(processes[0].kill)
        await load.until("b", 30)
        killed = time.monotonic()
        await load.until("b", 30)
        after = [name for began, name in load.answered if began > killed]
        assert set(after) == {"b"}
        await asyncio.to_thread(processes[0].start)
        await load.until("a", 20)
        load.stopped = True
        await asyncio.gather(*clients)
        await load.close()
        assert load.failed == []
        assert load.broken <= len(clients) // 2, "at most the streams that were open when it was killed"
        states = {row["name"]: row["health"] for row in proxy.proxy.flow.pipeline.upstream_health.report()}  # type: ignore[union-attr]
        assert states["b"] == "healthy"
