"""Heads of requests that are too large, too many headers, and requests sent ahead of their responses."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import RawClient, chat, get
from tests.support.recording_upstream import RecordingUpstream, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

PATHS = ["POST /v1/chat/completions", "GET /v1/models", "GET /healthz", "GET /admin/v1/summary", "GET /nowhere"]
MAX_HEADERS = 65_536
SOCKET_BUFFERS = 20 << 20
"""More bytes than both sockets of a connection hold before the server reads any."""
KERNEL_BUFFERS = [int(Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text().split()[2]) for name in ("rmem", "wmem")]
MOST_BUFFERED = (4 << 20) + 2 * sum(KERNEL_BUFFERS)
"""More bytes than a server reads of a client that does not, and than the system buffers in both directions."""


def send_until_closed(client: RawClient, piece: bytes, most: int) -> int:
    """Send a piece again and again until the server closes. Returns the bytes that were sent."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most:
            sent += client.socket.send(piece)
    return sent


TOO_MANY = {
    "one name": b"X: y\r\n" * 200,
    "empty values": b"a:\r\n" * 200,
    "different names": b"".join(b"x-%07d: y\r\n" % k for k in range(200)),
}
TOO_LARGE = {
    "one header": b"x-long: %b\r\n" % (b"x" * MAX_HEADERS),
    "one name, often": b"x-one: %b\r\n" % (b"y" * 800) * 90,  # each counts; 72 kB in all
    "many names": b"".join(b"x-%d: %b\r\n" % (k, b"y" * 800) for k in range(90)),
}


@pytest.mark.parametrize("start", PATHS)
@pytest.mark.parametrize("lines", [*TOO_MANY, *TOO_LARGE])
def test_a_large_head_gets_431(connect: Connect, start: str, lines: str) -> None:
    sent = start.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + (TOO_MANY | TOO_LARGE)[lines] + b"\r\n"
    (response,) = connect().send(sent).responses_until_close()
    assert (response.status, response.header("connection")) == (431, "close")
    if lines in TOO_MANY:
        assert response.json()["error"]["message"] == "The head has more than 100 headers."


def test_a_long_target_gets_431(connect: Connect) -> None:
    (response,) = connect().send(get("/v1/models?" + "x" * MAX_HEADERS)).responses_until_close()
    assert response.status == 431


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X: y\r\n" * 10_000),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"y" * 60_000),
        (b"GET /healthz?", b"y" * 60_000),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"x" * 60_000),
    ],
    ids=["many headers", "one value", "target", "one name"],
)
def test_an_endless_head_is_not_buffered(connect: Connect, first: bytes, more: bytes) -> None:
    client = connect().send(first)
    sent = send_until_closed(client, more, 60 << 20)
    assert sent < SOCKET_BUFFERS
    response = client.response_or_none("GET")
    assert response is None or response.status == 431  # None: what was still on its way made TCP reset the connection


def test_an_error_about_a_head_can_be_read_while_the_client_is_sending(connect: Connect) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * (300 << 10) + b"\r\n\r\n"
    client = connect().send(head)
    assert client.sent_all
    (response,) = client.responses_until_close()
    assert response.status == 431


def test_a_head_within_the_limits_is_served(connect: Connect) -> None:
    lines = [f"x-{k}: {'y' * 600}" for k in range(90)]
    client = connect()
    for pieces in ([chat("a large head", *lines)], [bytes([byte]) for byte in chat("a slow head", "x-one: y")]):
        assert client.send(*pieces).response().status == 200
    # The size of a body before it, in the same read, does not count.
    response, again = client.send(chat("z" * 60_000, "x-long: " + "y" * 60_000) * 2).responses(2)
    assert (response.status, again.status) == (200, 200)


def test_line_breaks_before_a_request_are_not_buffered(connect: Connect) -> None:
    client = connect()
    for _ in range(100):
        client.send(b"\r\n" * 10_000)
    response = client.send(get("/healthz")).response("GET")
    assert response.status == 200


def test_requests_sent_ahead_are_limited(connect: Connect) -> None:
    client = connect().send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 5000)
    responses = client.responses_until_close()
    assert {response.status for response in responses} == {200}
    assert 100 <= len(responses) <= 400
    assert responses[-1].header("connection") == "close"


def test_garbage_after_a_request_does_not_change_its_response(connect: Connect) -> None:
    client = connect().send(chat("garbage follows") + b"\x00\x01garbage\r\n\r\n")
    (response,) = client.responses_until_close()
    assert response.text == "You said: garbage follows"


def test_hits_for_a_client_that_does_not_read_are_not_buffered(connect: Connect, proxy: RunningProxy) -> None:
    sent = chat("z" * 50_000)
    client = connect()
    for outcome in ("miss", "hit", "hit"):
        assert client.send(sent).response().outcome == outcome
    client.socket.settimeout(3.0)
    count = 0
    with contextlib.suppress(TimeoutError):
        while len(sent) * count < MOST_BUFFERED:
            client.socket.sendall(sent)
            count += 1
    assert len(sent) * count < MOST_BUFFERED, "the server reads requests although its responses are not read"
    found: list[Any] = list(proxy._server.server_state.connections)
    assert max(each.transport.get_write_buffer_size() for each in found) < 4 << 20


def test_after_too_many_requests_a_client_that_does_not_read_is_not_read(
    connect: Connect, proxy: RunningProxy, upstream: RecordingUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    answer = orjson.dumps(
        {
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "y" * 200_000}, "finish_reason": "stop"}
            ],
            "model": "m",
            "object": "chat.completion",
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )
    upstream.script(send(plain(answer)))
    sent = chat("a long answer")
    client = connect()
    for outcome in ("miss", "hit"):
        assert client.send(sent).response().outcome == outcome
    client.send(sent * 250)  # too many; the responses do not fit into the buffers of both sockets
    time.sleep(1.0)  # now no response can be written
    for _ in range(5):
        client.response()
    client.socket.settimeout(3.0)
    count = 0
    with contextlib.suppress(TimeoutError):
        while 50_000 * count < MOST_BUFFERED:
            client.socket.sendall(b"x" * 50_000)
            count += 1
    assert 50_000 * count < MOST_BUFFERED, "the server reads without end"
    client.socket.close()
    wait_until(lambda: not proxy._server.server_state.connections, "the end of the connection")
    time.sleep(0.2)  # for the requests that have waited
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
