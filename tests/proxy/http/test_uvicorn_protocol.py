"""The fast path over raw sockets: pipelining, split requests, HTTP/1.0, Expect."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from knapcache.cache.purging import purge_conditions
from knapcache.proxy.http.fast_path import MAX_LENGTH as MAX_BODY
from knapcache.proxy.http.limited_protocol import HEAD, LimitedProtocol
from knapcache.proxy.settings.endpoints import TenantSettings
from knapcache.testing import FakeUpstream
from tests.support.events import EventList
from tests.support.proxy_fixtures import Start
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until


def request(text: str, *, key: str = "k", head: str = "", version: str = "1.1", **more: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()
    lines = [f"POST /v1/chat/completions HTTP/{version}", "Host: 127.0.0.1", f"Authorization: Bearer {key}"]
    lines += [f"Content-Length: {len(body)}", *([head] if head else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


OPEN: list[socket.socket] = []


@pytest.fixture(autouse=True)
def close_sockets() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class RawConnection:
    """A client's socket."""

    def __init__(self, proxy: RunningProxy) -> None:
        host, _, port = proxy.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        OPEN.append(self.socket)
        self._rest = b""

    def response(self) -> tuple[str, dict[str, str], Any]:
        """Return status line, headers and body of the next response."""
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

    def outcome_and_text(self, sent: bytes) -> tuple[str, str]:
        """Send a request; return outcome and text of its answer."""
        self.socket.sendall(sent)
        status, headers, body = self.response()
        assert status == "HTTP/1.1 200 OK"
        return headers["x-knapcache"], body["choices"][0]["message"]["content"]


def warm(proxy: RunningProxy, *texts: str, **more: Any) -> RawConnection:
    """Return a connection on which requests with these texts take the fast path."""
    connection = RawConnection(proxy)
    for text in texts:
        assert [connection.outcome_and_text(request(text, **more))[0] for _ in range(3)] == ["miss", "hit", "hit"]
    return connection


def test_the_fast_path_sends_the_same_headers_and_records_the_same_event(proxy: RunningProxy) -> None:
    seen = EventList()
    proxy.proxy.events.add_consumer(seen)
    connection = RawConnection(proxy)
    responses = []
    for _ in range(4):  # a miss, the handler, its body known, head and body known
        connection.socket.sendall(request("hello"))
        responses.append(connection.response())
    names = [sorted(set(headers) - {"server"}) for _, headers, _ in responses]
    assert names[1] == names[2] == names[3]
    assert all(body == responses[0][2] for _, _, body in responses)
    wait_until(lambda: len(seen) >= 4, "four events")
    events = [event._replace(time=0, seconds=0, ttfb=0) for event in seen]
    assert events[1] == events[2] == events[3]
    assert events[3].outcome == "hit"
    assert events[3].size > 0


def test_split_and_pipelined_requests(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    connection = warm(proxy, "one", "two")
    sent = request("one")
    for k in range(0, len(sent), 7):
        connection.socket.sendall(sent[k : k + 7])
        time.sleep(0.001)
    assert connection.response()[1]["x-knapcache"] == "hit"
    connection.socket.sendall(request("one") + request("new") + request("two") + request("one"))  # pipelined
    found = [connection.response() for _ in range(4)]
    assert [headers["x-knapcache"] for _, headers, _ in found] == ["hit", "miss", "hit", "hit"]
    texts = [body["choices"][0]["message"]["content"] for _, _, body in found]
    assert texts == [f"You said: {text}" for text in ("one", "new", "two", "one")]
    assert upstream.count() == 3


def test_other_credentials_and_special_headers_do_not_take_the_fast_path(start: Start, upstream: FakeUpstream) -> None:
    proxy = start()
    connection = warm(proxy, "hello")
    assert connection.outcome_and_text(request("hello", key="another"))[0] == "miss"
    assert connection.outcome_and_text(request("hello", head="Cache-Control: no-cache"))[0] == "miss"
    assert connection.outcome_and_text(request("hello", head="Cache-Control: no-cache"))[0] == "miss"
    assert connection.outcome_and_text(request("hello", head="anthropic-version: 2"))[0] == "miss"
    assert connection.outcome_and_text(request("hello", head="Origin: http://127.0.0.1"))[0] == "hit"
    connection.socket.sendall(request("hello", head="Origin: https://evil.example"))
    assert connection.response()[0].startswith("HTTP/1.1 403")
    assert upstream.count() == 5


def test_long_bodies_closing_connections_and_old_versions(proxy: RunningProxy) -> None:
    long = "x" * (MAX_BODY + 10)
    connection = warm(proxy, long)
    assert connection.outcome_and_text(request(long)) == ("hit", f"You said: {long}")
    warm(proxy, "short")
    closing = RawConnection(proxy)
    assert closing.outcome_and_text(request("short", head="Connection: close"))[0] == "hit"
    assert closing.socket.recv(1) == b""
    old = RawConnection(proxy)
    old.socket.sendall(request("short", version="1.0"))
    assert old.response()[1]["x-knapcache"] == "hit"
    assert old.socket.recv(1) == b""
    waiting = RawConnection(proxy)
    head, _, body = request("short", head="Expect: 100-continue").partition(b"\r\n\r\n")
    waiting.socket.sendall(head + b"\r\n\r\n")
    assert waiting.socket.recv(100).startswith(b"HTTP/1.1 100")
    waiting.socket.sendall(body)
    assert waiting.response()[1]["x-knapcache"] == "hit"


@pytest.mark.parametrize("kind", [{}, {"version": "1.0"}, {"head": "Connection: close"}])
def test_a_complete_stream_is_recorded_with_status_200(proxy: RunningProxy, kind: dict[str, str]) -> None:
    seen = EventList()
    proxy.proxy.events.add_consumer(seen)
    connection, received = RawConnection(proxy), b""
    connection.socket.sendall(request("hello", stream=True, **kind))
    while b"data: [DONE]" not in received:
        received += connection.socket.recv(65536)
    wait_until(lambda: len(seen) > 0, "an event")
    assert [(event.outcome, event.status) for event in seen] == [("miss", 200)]


def test_purged_answers_are_not_served(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    connection = warm(proxy, "hello")
    proxy.proxy.cache.purge(purge_conditions())
    assert connection.outcome_and_text(request("hello"))[0] == "miss"
    assert upstream.count() == 2


def test_an_incomplete_request_is_dropped(proxy: RunningProxy) -> None:
    connection = warm(proxy, "hello")
    connection.socket.sendall(request("hello")[:-5])
    connection.socket.close()
    assert warm(proxy, "other").outcome_and_text(request("hello"))[0] == "hit"


def test_a_head_of_which_as_many_bytes_as_the_limit_arrive_later_is_not_refused(
    proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of its first read are not counted."""
    reads = list[tuple[int, LimitedProtocol]]()
    check = LimitedProtocol._check_incomplete

    def checking(protocol: LimitedProtocol, size: int) -> None:
        check(protocol, size)
        reads.append((size, protocol))

    monkeypatch.setattr(LimitedProtocol, "_check_incomplete", checking)
    connection = RawConnection(proxy)
    connection.socket.sendall(b"GET / HTTP/1.1\r\nx: ")
    wait_until(lambda: reads)
    protocol = reads.pop()[1]
    limit = protocol._connections.max_headers
    connection.socket.sendall(b"a" * limit)
    wait_until(lambda: sum(size for size, _ in reads) == limit)
    assert protocol.state is HEAD
    connection.socket.sendall(b"a")
    assert b" 431 " in connection.socket.recv(100)


def test_a_repeated_head_is_not_parsed_again(
    proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    parsed: list[bytes] = []
    on_header = LimitedProtocol.on_header

    def count(protocol: LimitedProtocol, name: bytes, value: bytes) -> None:
        parsed.append(name)
        on_header(protocol, name, value)

    monkeypatch.setattr(LimitedProtocol, "on_header", count)
    connection = warm(proxy, "hello")  # its third request stores the head
    parsed.clear()
    assert connection.outcome_and_text(request("hello"))[0] == "hit"
    assert connection.outcome_and_text(request("a longer text")) == ("miss", "You said: a longer text")
    assert connection.outcome_and_text(request("a longer text"))[0] == "hit"
    assert parsed == []
    assert connection.outcome_and_text(request("hello", head="x-title: other"))[0] == "hit"
    assert len(parsed) == 4
    connection.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    received = b""
    while not received.endswith(b"ok\n"):
        received += connection.socket.recv(1000)
    assert connection.outcome_and_text(request("hello"))[0] == "hit"
    assert upstream.count() == 2


def test_a_repeated_head_of_a_tenant_that_was_removed_is_rejected(start: Start) -> None:
    keys = {name: "sha256:" + hashlib.sha256(name.encode()).hexdigest() for name in ("old-key", "new-key")}
    proxy = start(tenants=[{"name": "one", "keys": [keys["old-key"]]}])
    connection = warm(proxy, "hello", key="old-key")
    assert connection.outcome_and_text(request("hello", key="old-key"))[0] == "hit"
    proxy.proxy.authenticator.replace_tenants(
        [TenantSettings.model_validate({"name": "one", "keys": [keys["new-key"]]})]
    )
    for text in ("hello", "another"):
        connection.socket.sendall(request(text, key="old-key"))
        assert connection.response()[0].startswith("HTTP/1.1 401")
    assert connection.outcome_and_text(request("hello", key="new-key"))[0] == "hit"
