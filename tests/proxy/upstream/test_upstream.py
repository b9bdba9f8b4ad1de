"""Upstreams: failures, retries and their delays, headers and credentials."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.settings import Settings, UpstreamSettings
from knapcache.proxy.upstream import upstream as upstream_module
from knapcache.proxy.upstream.upstream import (
    MAX_KNOWN_MODELS,
    MAX_RETRY_DELAY,
    RETRY_BURST,
    RETRY_RATIO,
    RETRYABLE_STATUSES,
    Upstream,
    retry_after,
)
from knapcache.proxy.upstream.upstreams import Upstreams
from tests.support.scripted_server import OK, ScriptedServer, ServerConnection, respond_always


class BrokenModel:
    """A local model that does not start."""

    async def ready(self) -> str:
        raise ConnectionError("not started")


def configured(**fields: Any) -> Upstream:
    return Upstream(UpstreamSettings.model_validate({"name": "fake", "url": "http://127.0.0.1:9", **fields}))


@pytest.mark.parametrize("local", [None, BrokenModel()])
async def test_a_failure_keeps_its_reason(local: BrokenModel | None) -> None:
    """As the cause, for the log. The message has the upstream's name and no address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        upstream = Upstream(UpstreamSettings.model_validate({"name": "away", "url": url}), local)
        attempts: list[int] = []
        for times in (1, 2, 3):
            with pytest.raises(UpstreamFailed, match="upstream away failed: ") as caught:
                await upstream.send("GET", "/models", b"", None, attempts)
            assert isinstance(caught.value.__cause__, ConnectionError)
            assert caught.value.safe_to_retry
            assert attempts == [0] * times
        assert url not in str(caught.value)


# Retries.


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Delays before retries, which take no time."""
    found: list[float] = []

    class FakeAsyncio:
        @staticmethod
        async def sleep(seconds: float) -> None:
            found.append(seconds)

    monkeypatch.setattr(upstream_module, "asyncio", FakeAsyncio)
    return found


def response(status: int, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\n%bcontent-length: 0\r\n\r\n" % (status, headers)


@contextlib.asynccontextmanager
async def serving(*responses: bytes, **fields: Any) -> AsyncIterator[Upstream]:
    """An upstream that sends one response for each request; an empty one: it closes the connection."""
    remaining = list(responses)

    async def script(connection: ServerConnection) -> None:
        while True:
            await connection.read_request()
            sent = remaining.pop(0)
            await connection.send(sent)
            if not sent.endswith(b"\r\n\r\n"):
                return

    async with asyncio.timeout(60), ScriptedServer(script) as server:
        upstream = configured(url=server.url, retries=2, **fields)
        try:
            yield upstream
        finally:
            upstream.client.close()


@pytest.mark.parametrize("status", RETRYABLE_STATUSES)
async def test_statuses_that_are_retried(status: int, delays: list[float]) -> None:
    attempts: list[int] = []
    async with serving(response(status), response(status), response(200)) as upstream:
        assert (await upstream.send_with_retries("/x", b"", b"{}", attempts)).status == 200
    assert attempts == [status, status, 200]
    assert 0.125 <= delays[0] <= 0.25 <= delays[1] <= 0.5


async def test_the_last_response_is_returned_when_retries_are_used_up(delays: list[float]) -> None:
    attempts: list[int] = []
    async with serving(response(500), response(502), response(503)) as upstream:
        assert (await upstream.send_with_retries("/x", b"", b"{}", attempts)).status == 503
    assert (attempts, len(delays)) == ([500, 502, 503], 2)


@pytest.mark.parametrize("status", [200, 400, 401, 404, 408, 422, 501])
async def test_statuses_that_are_not_retried(status: int, delays: list[float]) -> None:
    async with serving(response(status)) as upstream:
        assert (await upstream.send_with_retries("/x", b"", b"{}", [])).status == status
    assert delays == []


@pytest.mark.parametrize(
    ("sent", "retried"), [(b"", True), (b"HTTP/1.1 2", False), (b"HTTP/1.1 100 Continue\r\n", False)]
)
async def test_failures_are_retried_only_before_the_first_byte(sent: bytes, retried: bool, delays: list[float]) -> None:
    attempts: list[int] = []
    async with serving(sent, response(200)) as upstream:
        if retried:
            assert (await upstream.send_with_retries("/x", b"", b"{}", attempts)).status == 200
            assert attempts == [0, 200]
        else:
            with pytest.raises(UpstreamFailed):
                await upstream.send_with_retries("/x", b"", b"{}", attempts)
            assert (attempts, delays) == ([0], [])


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        (b"retry-after: 3\r\n", 3.0),
        (b"retry-after: 0\r\n", 0.0),
        (b"retry-after-ms: 250\r\nretry-after: 1\r\n", 0.25),
        (b"retry-after: %d\r\n" % MAX_RETRY_DELAY, MAX_RETRY_DELAY),
        (b"retry-after: %d\r\n" % (MAX_RETRY_DELAY + 1), None),
    ],
)
async def test_retry_after_sets_the_delay(headers: bytes, delay: float | None, delays: list[float]) -> None:
    """A longer one than MAX_RETRY_DELAY is returned to the caller."""
    async with serving(response(429, headers), response(200)) as upstream:
        found = await upstream.send_with_retries("/x", b"", b"{}", [])
    assert (found.status, delays) == ((429, []) if delay is None else (200, [delay]))


async def test_retries_are_a_tenth_of_all_requests_after_a_burst(delays: list[float]) -> None:
    requests = 400
    async with ScriptedServer(respond_always(response(503))) as server:
        upstream = configured(url=server.url, retries=10)
        for _ in range(requests):
            await upstream.send_with_retries("/x", b"", b"{}", [])
        upstream.client.close()
    assert RETRY_RATIO * requests - 1 <= len(delays) <= RETRY_BURST + RETRY_RATIO * requests


def test_retry_after_forms() -> None:
    assert retry_after({}) is None
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "-5"}) == 0.0
    assert retry_after({"retry-after": "1.5"}) == 1.5
    assert retry_after({"retry-after-ms": "soon", "retry-after": "2"}) == 2.0
    assert retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=2)
    assert retry_after({"retry-after": formatdate(time.time() - 30, usegmt=True)}) == 0.0


# Paths, headers, models.


def test_paths() -> None:
    openai, anthropic = configured(kind="openai"), configured(kind="anthropic")
    assert openai.path("/v1/chat/completions") == "/chat/completions"
    assert openai.path("/v1beta/x") == "/v1beta/x"
    assert anthropic.path("/v1/messages") == "/v1/messages"


def test_headers_for_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "sk-ours")
    headers = {
        "user-agent": "sdk", "authorization": "Bearer sk-caller", "connection": "close", "cookie": "c", "via": "v",
        "proxy-authorization": "Basic x", "x-forwarded-for": "1.2.3.4", "cache-control": "no-store",
        "content-length": "2",
        "content-encoding": "gzip", "x-team": "caller",
    }  # fmt: skip
    passed = [("user-agent", "sdk"), ("authorization", "Bearer sk-caller"), ("x-team", "caller")]
    assert configured().request_headers(headers, True) == passed
    assert configured().request_headers(headers, False) == [passed[0], passed[2]]
    raw = configured().request_headers(headers, True, raw=True)
    assert ("content-length", "2") in raw
    assert ("content-encoding", "gzip") in raw
    ours = configured(key_env="FAKE_KEY", headers={"X-Team": "ours"}).request_headers(headers, True)
    assert ours == [("user-agent", "sdk"), ("authorization", "Bearer sk-ours"), ("x-team", "ours")]
    anthropic = configured(kind="anthropic", key_env="FAKE_KEY").request_headers({}, True)
    assert anthropic == [("x-api-key", "sk-ours")]


def test_the_upstream_of_a_model() -> None:
    urls = [
        {"name": "a", "url": "http://a.test", "models": "a-*"},
        {"name": "b", "url": "http://b.test", "models": "b"},
    ]
    upstreams = Upstreams(Settings(upstreams=urls))
    for _ in range(2):
        found = [upstreams.for_model(name) for name in ("a-1", "b", "c")]
        assert [None if each is None else each.name for each in found] == ["a", "b", None]
    for k in range(2 * MAX_KNOWN_MODELS):
        upstreams.for_model(f"a-{k}")
    assert len(upstreams._known) == MAX_KNOWN_MODELS
    asyncio.run(upstreams.close())


async def test_the_embedded_model_gets_its_headers() -> None:
    class Model:
        async def ready(self) -> str:
            return server.url

    async with ScriptedServer(respond_always(OK)) as server:
        upstream = Upstream(UpstreamSettings.model_validate({"url": "local"}), Model())
        assert upstream.request_headers({}, True) == [("connection", "close")]
        assert await (await upstream.send("GET", "/models", b"", None, [])).read() == b"hi"
        upstream.client.close()
