"""Bodies over max_body: status 413 that the client can read, on every path, and nothing of them is stored."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import httpx
import pytest

from tests.attacks.conftest import Connect
from tests.support.events import EventList
from tests.support.raw_client import message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

MAX_BODY = 4_000_000
PATHS = ["/v1/chat/completions", "/v1/embeddings", "/v1/files", "/admin/v1/purge", "/healthz", "/nowhere"]


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"max_body": MAX_BODY}


@pytest.mark.parametrize("path", PATHS)
def test_an_announced_body_that_is_too_large_gets_413_at_once(connect: Connect, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    (response,) = connect().send(head.encode()).responses_until_close()
    assert (response.status, response.header("connection")) == (413, "close")
    error = response.json()["error"]
    assert (error["type"], error["message"]) == ("too_large", f"The body has more than {MAX_BODY} bytes.")


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_sends_everything_first_can_read_the_413(
    connect: Connect, upstream: RecordingUpstream, path: str
) -> None:
    client = connect().send(message(f"POST {path} HTTP/1.1", body=bytes(3 * MAX_BODY)))
    assert client.sent_all
    (response,) = client.responses_until_close()
    assert response.status == 413
    assert upstream.requests == []


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/healthz"])
def test_chunks_that_are_too_large_together_get_413(connect: Connect, proxy: RunningProxy, path: str) -> None:
    token = proxy.proxy.admin_token
    headers = (f"Authorization: Bearer {token}", "Transfer-Encoding: chunked")
    client = connect().send(message(f"POST {path} HTTP/1.1", *headers, length=False))
    piece = b"186a0\r\n" + b"z" * 100_000 + b"\r\n"
    for _ in range(60):
        client.send(piece)
    found = client.responses_until_close()
    # A path that reads no body may have answered before.
    assert [response.status for response in found] == [413] or path in ("/nowhere", "/admin/v1/purge")


def test_an_endless_upload_is_not_forwarded(connect: Connect, upstream: RecordingUpstream) -> None:
    client = connect().send(message("POST /v1/files HTTP/1.1", "Transfer-Encoding: chunked", length=False))
    piece = b"186a0\r\n" + b"z" * 100_000 + b"\r\n"
    sent = 0
    with contextlib.suppress(OSError):
        for _ in range(600):
            sent += client.socket.send(piece)
    assert sent < 10 * MAX_BODY
    assert all(len(request.body) <= MAX_BODY for request in upstream.requests)


def test_expect_100_continue_gets_413_and_no_100(connect: Connect) -> None:
    for path in PATHS:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
        )
        assert connect().send(head.encode()).read_until_close().startswith(b"HTTP/1.1 413 ")


def test_a_body_of_exactly_the_limit_is_served(proxy: RunningProxy) -> None:
    start, end = b'{"model": "m", "messages": [{"role": "user", "content": "', b'"}]}'
    body = start + b"z" * (MAX_BODY - len(start) - len(end)) + end
    for content in (body, iter([body[:10], body[10:]])):
        assert httpx.post(f"{proxy.url}/v1/chat/completions", content=content).status_code == 200
    assert httpx.post(f"{proxy.url}/v1/chat/completions", content=body + b" ").status_code == 413


def test_refused_requests_are_recorded(connect: Connect, proxy: RunningProxy) -> None:
    events, start = EventList(), time.time()
    proxy.proxy.events.add_consumer(events)
    try:
        connect().send(message("POST /v1/files HTTP/1.1", body=bytes(2 * MAX_BODY))).responses_until_close()
        chunk = b"%x\r\n%b\r\n" % (2 * MAX_BODY, bytes(2 * MAX_BODY))
        head = message("POST /v1/chat/completions HTTP/1.1", "Transfer-Encoding: chunked", length=False)
        connect().send(head + chunk).responses_until_close()
        wait_until(lambda: sum(event.time > start for event in events) >= 2, "two events")
        found = [(event.outcome, event.status) for event in events if event.time > start]
        assert found == [("rejected", 413)] * 2
    finally:
        proxy.proxy.events.remove_consumer(events)
