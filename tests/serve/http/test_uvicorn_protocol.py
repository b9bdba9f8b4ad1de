"""Hits that are answered where their bytes come in: raw sockets, for the edges that no client library goes to."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from knapcache.serve.http.fast_path import MAX_LENGTH
from knapcache.testing import FakeUpstream
from tests.serve.conftest import Start
from tests.support.events import EventList
from tests.support.running_proxy import RunningProxy


def request(text: str, *, key: str = "k", head: str = "", version: str = "1.1", **more: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()
    lines = [f"POST /v1/chat/completions HTTP/{version}", "Host: 127.0.0.1", f"Authorization: Bearer {key}"]
    lines += [f"Content-Length: {len(body)}", *([head] if head else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


OPEN: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Wire:
    """A connection, byte by byte."""

    def __init__(self, proxy: RunningProxy) -> None:
        host, _, port = proxy.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        OPEN.append(self.socket)
        self._rest = b""

    def answer(self) -> tuple[str, dict[str, str], Any]:
        """The next one: status line, headers, body."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self.socket.recv(65536) or b"\r\n\r\n"
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        while len(self._rest) < int(headers["content-length"]):
            self._rest += self.socket.recv(65536)
        size = int(headers["content-length"])
        body, self._rest = self._rest[:size], self._rest[size:]
        return status, headers, json.loads(body)

    def ask(self, sent: bytes) -> tuple[str, str]:
        """Where the answer came from, and what it says."""
        self.socket.sendall(sent)
        status, headers, body = self.answer()
        assert status == "HTTP/1.1 200 OK"
        return headers["x-knapcache"], body["choices"][0]["message"]["content"]


def warm(proxy: RunningProxy, *texts: str, **more: Any) -> Wire:
    """A connection whose requests are known by heart."""
    wire = Wire(proxy)
    for text in texts:
        assert [wire.ask(request(text, **more))[0] for _ in range(3)] == ["miss", "hit", "hit"]
    return wire


def test_the_same_headers_and_the_same_line_in_the_record_as_the_long_way(proxy: RunningProxy) -> None:
    seen = EventList()
    proxy.proxy.events.add_consumer(seen)
    wire = Wire(proxy)
    told = []
    for _ in range(4):  # a miss, the long way, by its body, by head and body
        wire.socket.sendall(request("hello"))
        told.append(wire.answer())
    names = [sorted(set(headers) - {"server"}) for _, headers, _ in told]
    assert names[1] == names[2] == names[3]
    assert all(body == told[0][2] for _, _, body in told)
    end = time.monotonic() + 10
    while len(seen) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    lines = [event._replace(time=0, seconds=0, ttfb=0) for event in seen]
    assert lines[1] == lines[2] == lines[3]
    assert lines[3].outcome == "hit"
    assert lines[3].size > 0


def test_in_pieces_and_one_after_the_other(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    wire = warm(proxy, "one", "two")
    sent = request("one")
    for k in range(0, len(sent), 7):
        wire.socket.sendall(sent[k : k + 7])
        time.sleep(0.001)
    assert wire.answer()[1]["x-knapcache"] == "hit"
    wire.socket.sendall(request("one") + request("new") + request("two") + request("one"))  # pipelined
    found = [wire.answer() for _ in range(4)]
    assert [headers["x-knapcache"] for _, headers, _ in found] == ["hit", "miss", "hit", "hit"]
    said = [body["choices"][0]["message"]["content"] for _, _, body in found]
    assert said == [f"You said: {text}" for text in ("one", "new", "two", "one")]
    assert upstream.count() == 3


def test_who_is_somebody_else_or_wants_something_else_goes_the_long_way(start: Start, upstream: FakeUpstream) -> None:
    proxy = start()
    wire = warm(proxy, "hello")
    assert wire.ask(request("hello", key="another"))[0] == "miss"
    assert wire.ask(request("hello", head="Cache-Control: no-cache"))[0] == "miss"
    assert wire.ask(request("hello", head="Cache-Control: no-cache"))[0] == "miss"
    assert wire.ask(request("hello", head="anthropic-version: 2"))[0] == "miss"
    assert wire.ask(request("hello", head="Origin: http://127.0.0.1"))[0] == "hit"
    wire.socket.sendall(request("hello", head="Origin: https://evil.example"))
    assert wire.answer()[0].startswith("HTTP/1.1 403")
    assert upstream.count() == 5


def test_long_requests_and_old_clients(proxy: RunningProxy) -> None:
    long = "x" * (MAX_LENGTH + 10)
    wire = warm(proxy, long)
    assert wire.ask(request(long)) == ("hit", f"You said: {long}")
    warm(proxy, "short")
    closing = Wire(proxy)
    assert closing.ask(request("short", head="Connection: close"))[0] == "hit"
    assert closing.socket.recv(1) == b""
    old = Wire(proxy)
    old.socket.sendall(request("short", version="1.0"))
    assert old.answer()[1]["x-knapcache"] == "hit"
    assert old.socket.recv(1) == b""
    waiting = Wire(proxy)
    head, _, body = request("short", head="Expect: 100-continue").partition(b"\r\n\r\n")
    waiting.socket.sendall(head + b"\r\n\r\n")
    assert waiting.socket.recv(100).startswith(b"HTTP/1.1 100")
    waiting.socket.sendall(body)
    assert waiting.answer()[1]["x-knapcache"] == "hit"


@pytest.mark.parametrize("way", [{}, {"version": "1.0"}, {"head": "Connection: close"}])
def test_a_stream_that_was_told_to_its_end_is_written_down_so(proxy: RunningProxy, way: dict[str, str]) -> None:
    seen = EventList()
    proxy.proxy.events.add_consumer(seen)
    wire, told = Wire(proxy), b""
    wire.socket.sendall(request("hello", stream=True, **way))
    while b"data: [DONE]" not in told:
        told += wire.socket.recv(65536)
    end = time.monotonic() + 10
    while not seen and time.monotonic() < end:
        time.sleep(0.02)
    assert [(event.outcome, event.status) for event in seen] == [("miss", 200)]


def test_what_was_purged_is_not_given(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    wire = warm(proxy, "hello")
    proxy.proxy.cache.purge()
    assert wire.ask(request("hello"))[0] == "miss"
    assert upstream.count() == 2


def test_half_a_request_is_nobodys(proxy: RunningProxy) -> None:
    wire = warm(proxy, "hello")
    wire.socket.sendall(request("hello")[:-5])
    wire.socket.close()
    assert warm(proxy, "other").ask(request("hello"))[0] == "hit"
