"""Answers without end: they are forwarded, and end at the limits of size and time. They are never collected."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.attacks.conftest import Connect
from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import RawClient, chat
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

MAX_ANSWER = 300_000
CAP = 96 << 20
"""Bytes after which an endless upstream gives up: the proxy was to close long before."""
TEXTS = (f"endless {number}" for number in itertools.count())
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
CLOSED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % (b"x" * 1000)
PIECES = {
    "events": EVENT * 16,
    "tiny events": b"data: 1\n\n" * 2000,
    "comments": b": ping\n\n" * 2000,
    "one line": b"x" * 16384,
    "lines of one event": b"data: x\n" * 2000,
    "blank lines": b"\n" * 16384,
    "carriage returns": b"\r" * 16384,
}


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"max_answer": MAX_ANSWER, "abandoned_timeout": 2}


class Endless:
    """A script that sends pieces until the proxy closes the connection."""

    def __init__(self, head: bytes, piece: bytes, pause: float = 0.0, cap: int = CAP) -> None:
        self._head, self._pause, self._cap = head, pause, cap
        self._piece = b"%x\r\n%b\r\n" % (len(piece), piece) if b"chunked" in head else piece
        self.sent = 0
        self.ended = 0
        """Connections that the proxy closed."""

    def __call__(self, side: UpstreamSide, _request: RecordedRequest) -> None:
        side.socket.settimeout(20.0)
        side.send(self._head)
        while side.open and self.sent < self._cap:
            side.send(self._piece)
            self.sent += len(self._piece)
            if self._pause and side.wait(self._pause):
                return
        self.ended += not side.open
        side.open = False


def read(client: RawClient, size: int) -> int:
    """Read at least so many bytes; return how many, fewer at the end of the connection."""
    found = 0
    while found < size and (data := client.receive()):
        found += len(data)
    return found


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_a_stream_ends_at_the_size_limit_after_its_caller_left(
    connect: Connect, upstream: RecordingUpstream, piece: bytes
) -> None:
    endless = Endless(SSE_HEAD, piece)
    upstream.script(endless)
    client = connect().send(chat(next(TEXTS), stream=True))
    assert read(client, 1000) >= 1000
    client.reset()
    wait_until(lambda: endless.ended)
    assert endless.sent < CAP // 4


def test_a_slow_stream_ends_at_the_time_limit_after_its_caller_left(
    connect: Connect, upstream: RecordingUpstream
) -> None:
    endless = Endless(SSE_HEAD, b"data: {}\n\n", pause=0.05)
    upstream.script(endless)
    client = connect().send(chat(next(TEXTS), stream=True))
    read(client, 500)
    client.reset()
    wait_until(lambda: endless.ended)


@pytest.mark.parametrize("piece", [PIECES["events"], PIECES["one line"]], ids=["events", "one line"])
def test_a_long_stream_reaches_its_caller_whole_and_is_not_stored(
    proxy: RunningProxy, connect: Connect, upstream: RecordingUpstream, piece: bytes
) -> None:
    size = 20 * MAX_ANSWER

    def long_stream(side: UpstreamSide, _request: RecordedRequest) -> None:
        side.send(SSE_HEAD, *[b"%x\r\n%b\r\n" % (len(piece), piece)] * (size // len(piece)))
        side.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    text = next(TEXTS)
    upstream.script(long_stream, long_stream)
    for _ in range(2):
        found = connect().send(chat(text, stream=True)).response()
        assert (found.status, found.outcome) == (200, "miss")
        assert found.body == piece * (size // len(piece)) + b"data: [DONE]\n\n"
    assert len(upstream.requests) == 2
    wait_until(lambda: not len(proxy.proxy.cache.engine.single_flight))


def test_those_who_wait_for_a_long_stream_get_their_own(connect: Connect, upstream: RecordingUpstream) -> None:
    text = next(TEXTS)
    endless = Endless(SSE_HEAD, EVENT, pause=0.001)
    upstream.script(endless)
    leader = connect().send(chat(text, stream=True))
    read(leader, 1000)
    waiter = connect().send(chat(text))
    assert read(leader, MAX_ANSWER) >= MAX_ANSWER
    assert waiter.response().text == f"You said: {text}"
    leader.reset()
    wait_until(lambda: endless.ended)


@pytest.mark.parametrize("head", [JSON_HEAD, CLOSED_HEAD, SSE_HEAD], ids=["chunked", "until close", "unasked stream"])
def test_a_plain_answer_ends_at_the_size_limit(connect: Connect, upstream: RecordingUpstream, head: bytes) -> None:
    endless = Endless(head, b" " * 16384)
    upstream.script(endless)
    found = connect().send(chat(next(TEXTS))).response()
    assert found.status == 502
    assert found.json()["error"]["type"] == "upstream_failed"
    wait_until(lambda: endless.ended)
    assert endless.sent < CAP // 4


def test_memory_stays_flat_while_a_long_stream_is_forwarded(process: ProxyProcess, upstream: RecordingUpstream) -> None:
    for name in ("warm-up", "measured"):
        before = process.memory()
        endless = Endless(SSE_HEAD, PIECES["tiny events"], cap=(2 if name == "warm-up" else 16) << 20)
        upstream.script(endless)
        with RawClient(process.url, timeout=60.0) as client:
            client.send(chat(next(TEXTS), stream=True))
            assert read(client, endless._cap // 2) >= endless._cap // 2
            during = process.memory()
    assert during - before < 16 << 20
