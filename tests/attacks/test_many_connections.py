"""Idle and slow connections by the hundred, and in the long suite by the thousand: other callers do not notice."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import RawClient, chat, get
from tests.support.recording_upstream import RecordingUpstream
from tests.support.timing import check_seconds, wait_until

ATTACKER = "127.0.0.2"
MAX_SECONDS = 2.0
"""For a hit during the attack. On a calm machine it takes milliseconds."""
BYTES_PER_CONNECTION = 64 << 10
"""Memory of a connection whose client is idle or slow."""
OTHER_BYTES = 40 << 20
"""Growth of the process beside that."""
OTHER_FILES = 10
"""Files of the store and the log that the proxy opens meanwhile."""
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_BODY = chat("half")[:-3]


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Let this process open as many files as it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """Replace the check of conftest.py: each test has a proxy of its own."""


def ask(client: RawClient, seconds: list[float]) -> str | None:
    """Return the outcome of a request that was answered before, and note the time that it took."""
    start = time.perf_counter()
    response = client.send(chat("known", model="gpt-4o-mini")).response()
    seconds.append(time.perf_counter() - start)
    return response.outcome


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_idle_and_slow_connections_leave_others_their_hits(
    upstream: RecordingUpstream, tmp_path: Path, count: int
) -> None:
    """Three times as many connections as the address may have: idle ones, half a head, half a body, and silent ones."""
    limits: dict[str, Any] = {"max_connections": 2 * count, "max_connections_per_address": count, "idle_timeout": 600}
    seconds: list[float] = []
    with ProxyProcess(tmp_path / "data", upstream.openai_url, **limits) as process, contextlib.ExitStack() as stack:
        victim = stack.enter_context(RawClient(process.url))

        def attack(sent: bytes, times: int) -> list[RawClient]:
            clients = []
            for k in range(times):
                clients.append(stack.enter_context(RawClient(process.url, source=ATTACKER)).send(sent))
                if k % (count // 10) == 0:
                    assert ask(victim, seconds) == "hit"
                    with RawClient(process.url) as new:
                        assert ask(new, seconds) == "hit"
            return clients

        assert ask(victim, []) == "miss"
        files, memory = process.open_files(), process.memory()
        idle = attack(get("/healthz"), count)
        for client in idle:
            client.response("GET")
        attack(HALF_HEAD, count // 2)
        for client in idle[: count // 2]:  # the oldest are closed for the new ones
            assert client.read_until_close() == b""
        for client in idle[count // 2 :]:
            response = client.send(get("/healthz")).response("GET")
            assert response.status == 200
        attack(HALF_BODY, count)
        attack(b"", count // 2)
        assert process.open_files() <= files + count + OTHER_FILES
        assert process.memory() <= memory + count * BYTES_PER_CONNECTION + OTHER_BYTES
        assert ask(victim, seconds) == "hit"
        stack.close()
        wait_until(lambda: process.open_files() <= files + OTHER_FILES, "the end of the connections")
    assert process.problems() == []
    check_seconds(max(seconds), MAX_SECONDS, "a hit during the attack")
