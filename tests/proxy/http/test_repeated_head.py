"""A repeated head is recognised exactly where the parser would report the same head."""

from __future__ import annotations

import random

import httptools
import pytest

from knapcache.model import Endpoint
from knapcache.proxy.http.access import RepeatedHead, repeated_head

URL = b"/v1/chat/completions"
LINES = [b"POST " + URL + b" HTTP/1.1", b"Host: a", b"Content-Length: %d", b"Authorization: Bearer k", b"x-long:  b  "]
LIMIT = 5000


class ParsedRequest:
    """Collects what the parser reports."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = self.url = b""
        self.complete = 0
        httptools.HttpRequestParser(self).feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def request(body: bytes, lines: list[bytes] | None = None) -> bytes:
    return b"\r\n".join([line % len(body) if b"%d" in line else line for line in lines or LINES]) + b"\r\n\r\n" + body


def head_of(data: bytes, max_head: int = 1 << 16) -> RepeatedHead | None:
    parsed = ParsedRequest(data)
    return repeated_head(data, parsed.url, Endpoint.CHAT, parsed.headers, max_head=max_head, max_body=LIMIT)


@pytest.mark.parametrize("first", [0, 7, 120])
def test_the_head_is_recognised_with_bodies_of_every_length(first: int) -> None:
    head = head_of(request(b"x" * first))
    assert head is not None
    for size in (*range(130), *range(985, 1015), LIMIT - 5):
        sent = request(b"y" * size)
        assert head.body_of(sent) == b"y" * size
        assert head.headers_with_length(size) == ParsedRequest(sent).headers
        assert head.body_of(sent + b"z") is None
        assert head.body_of(sent[:-1]) is None
    assert head.body_of(request(b"y" * (LIMIT + 10))) is None
    assert head.body_of(b"") is None


def test_what_is_recognised_is_what_the_parser_reports() -> None:
    """Random changes of a request: either it is not recognised, or headers and body are the parser's."""
    head, draw = head_of(request(b'{"a": 1}')), random.Random(1)
    assert head is not None
    recognised = 0
    for _ in range(4000):
        data = bytearray(request(b"b" * draw.choice((5, 9, 10, 99, 100, 101))))
        for _ in range(draw.choice((0, 1, 1, 2))):
            at = draw.randrange(len(data))
            data[at : at + draw.choice((0, 1, 1, 2))] = draw.choice((b"", b"0", b"1", b"b", b"\r\n", b" ", b":", b"C"))
        body = head.body_of(bytes(data))
        if body is not None:
            recognised += 1
            parsed = ParsedRequest(bytes(data))
            assert (parsed.complete, parsed.url, parsed.body) == (1, URL, body)
            assert parsed.headers == head.headers_with_length(len(body))
    assert recognised > 500


@pytest.mark.parametrize(
    "line", [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"content-length: 5"], ids=lambda line: line.decode()
)
def test_a_head_with_two_framings_is_not_stored(line: bytes) -> None:
    headers = [(b"content-length", b"5"), tuple(line.lower().split(b": "))]
    data = request(b"abcde", [*LINES, line])
    assert repeated_head(data, URL, Endpoint.CHAT, headers, max_head=1 << 16, max_body=LIMIT) is None  # type: ignore[arg-type]


def test_a_head_near_the_limit_of_heads_is_not_stored() -> None:
    data = request(b"abcde")
    size = data.find(b"\r\n\r\n") + 4
    assert head_of(data, size + 20) is not None
    assert head_of(data, size + 19) is None


def test_data_that_is_not_one_whole_request_is_not_stored() -> None:
    data = request(b"abcde")
    headers = ParsedRequest(data).headers
    for changed in (
        data + b"\r\n",
        b"\r\n" + data[:-1],
        b"GET" + data[4:],
        request(b"abcde", [LINES[0], *LINES[2:]])[1:],
    ):
        assert repeated_head(changed, URL, Endpoint.CHAT, headers, max_head=1 << 16, max_body=LIMIT) is None
