"""Trailers after a chunked body are dropped. They must not act as headers."""

from __future__ import annotations

import pytest

from tests.attacks.conftest import Connect
from tests.attacks.test_request_heads import SOCKET_BUFFERS, send_until_closed
from tests.support.raw_client import chat_body, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy

TRAILERS = "Host: evil.example\r\nOrigin: https://evil.example\r\nAuthorization: Bearer other\r\nX-Api-Key: other\r\n"


def chunked_with(body: bytes, trailers: str) -> bytes:
    return b"%x\r\n%b\r\n0\r\n" % (len(body), body) + trailers.encode() + b"\r\n"


def post(path: str, key: str, body: bytes, trailers: str = TRAILERS) -> bytes:
    headers = (f"Authorization: Bearer {key}", "Content-Type: application/json", "Transfer-Encoding: chunked")
    return message(f"POST {path} HTTP/1.1", *headers, length=False) + chunked_with(body, trailers)


@pytest.mark.parametrize("size", [10, 100_000])
def test_trailers_do_not_change_the_credential_of_a_cached_endpoint(
    connect: Connect, upstream: RecordingUpstream, size: int
) -> None:
    sent = post("/v1/chat/completions", f"caller-{size}", chat_body("z" * size))
    head, _, body = sent.partition(b"\r\n\r\n")
    client = connect()
    for pieces in ([sent], [sent], [head + b"\r\n\r\n", body]):  # the head is complete before the trailers arrive
        assert client.send(*pieces, pause=0.05).response().status == 200
    (request,) = upstream.requests
    assert request.values("authorization") == [f"Bearer caller-{size}"]
    assert request.values("x-api-key") == []


@pytest.mark.parametrize("split", [False, True])
def test_trailers_do_not_reach_the_upstream_in_a_passthrough(
    connect: Connect, upstream: RecordingUpstream, split: bool
) -> None:
    head, _, body = post("/v1/files", "own", b'{"a": 1}').partition(b"\r\n\r\n")
    pieces = [head + b"\r\n\r\n", body] if split else [head + b"\r\n\r\n" + body]
    connect().send(*pieces, pause=0.05).response()
    (request,) = upstream.requests
    assert request.values("authorization") == ["Bearer own"]
    assert request.values("x-api-key") == []


@pytest.mark.parametrize("split", [False, True])
def test_the_admin_token_in_a_trailer_is_not_accepted(connect: Connect, proxy: RunningProxy, split: bool) -> None:
    token = proxy.proxy.admin_token
    head = message("POST /admin/v1/purge HTTP/1.1", "Transfer-Encoding: chunked", length=False)
    body = chunked_with(b"{}", f"Authorization: Bearer {token}\r\n")
    pieces = [head, body] if split else [head + body]
    assert connect().send(*pieces, pause=0.05).response().status == 401


def test_headers_of_the_next_request_are_its_own(connect: Connect, upstream: RecordingUpstream) -> None:
    first, second = post("/v1/files", "one", b"{}"), post("/v1/files", "two", b"{}", "")
    responses = connect().send(first + second).responses(2)
    assert len(responses) == 2
    assert [each.values("authorization") for each in upstream.requests] == [["Bearer one"], ["Bearer two"]]


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"2\r\n{}\r\n0\r\n", b"X: y\r\n" * 10_000),
        (b"2\r\n{}\r\n0\r\nX: ", b"y" * 60_000),
        (b"2\r\n{}\r\n0;", b"y" * 60_000),
        (b"2;", b"y" * 60_000),
    ],
    ids=["many trailers", "one trailer", "last extension", "first extension"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/admin/v1/login"])
def test_endless_framing_is_not_read(connect: Connect, path: str, first: bytes, more: bytes) -> None:
    client = connect().send(message(f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked", length=False) + first)
    assert send_until_closed(client, more, 60 << 20) < SOCKET_BUFFERS


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
def test_a_body_that_is_mostly_framing_is_refused(connect: Connect, path: str) -> None:
    client = connect().send(message(f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked", length=False))
    assert send_until_closed(client, b"1;x\r\nz\r\n" * 10_000, 60 << 20) < SOCKET_BUFFERS


def test_small_chunks_and_trailers_are_served(connect: Connect) -> None:
    body = chat_body("z" * 40_000)
    pieces = b"".join(b"10\r\n%b\r\n" % body[k : k + 16] for k in range(0, len(body) // 16 * 16, 16))
    rest = body[len(body) // 16 * 16 :]
    sent = message("POST /v1/chat/completions HTTP/1.1", "Transfer-Encoding: chunked", length=False) + pieces
    assert connect().send(sent + chunked_with(rest, "X-Checksum: 1\r\n")).response().status == 200
