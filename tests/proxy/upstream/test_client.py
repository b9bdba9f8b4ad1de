"""The upstream client: message framing at every split of the bytes, reuse of connections, request heads."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import UpstreamFailed
from knapcache.proxy.upstream import client as client_module
from knapcache.proxy.upstream import response as response_module
from knapcache.proxy.upstream.client import Client, encode_headers, parse_base_url
from tests.support.scripted_server import (
    OK,
    Run,
    ServerConnection,
    client_harness,
    parse_with_h11,
    respond_always,
    respond_once,
    run,
)
from tests.support.timing import async_wait_until, within

__all__ = ["run"]


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that close do so for their own reason, not because of LINGER."""
    monkeypatch.setattr(response_module, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKS = b"transfer-encoding: chunked\r\n\r\n"
# The response, whether the connection is reused, and the request's method.
COMPLETE_RESPONSES = {
    "length": (HEAD + b"Content-Length: 5\r\nx-one:two\r\n\r\nhello", True, "GET"),
    "length 0": (HEAD + b"content-length: 0\r\n\r\n", True, "GET"),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", True, "GET"),
    "chunked": (HEAD + CHUNKS + b"5\r\nhello\r\n1\r\n \r\nA\r\nworld\r\n!!!\r\n0\r\n\r\n", True, "GET"),
    "extensions": (HEAD + CHUNKS + b'5;a="b";c\r\nhello\r\n0;last=1\r\n\r\n', True, "GET"),
    "trailers": (HEAD + CHUNKS + b"2\r\nhi\r\n0\r\nx-sum: 12\r\nx-more:\r\n\r\n", True, "GET"),
    "empty chunks": (HEAD + CHUNKS + b"0\r\n\r\n", True, "GET"),
    "no content": (b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n", True, "GET"),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", True, "GET"),
    "head": (HEAD + b"content-length: 5\r\n\r\n", False, "HEAD"),
    "head chunked": (HEAD + CHUNKS, False, "HEAD"),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nhi", True, "POST"),
    "early hints": (
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3 + HEAD + CHUNKS + b"2\r\nhi\r\n0\r\n\r\n", True, "GET"
    ),
    "upgrade offered": (HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi", True, "GET"),
    "error": (b"HTTP/1.1 529 Overloaded\r\ncontent-length: 4\r\n\r\nbusy", True, "GET"),
    "close": (HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", False, "GET"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False, "GET"),
    "HTTP/1.0, keep-alive": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi", True, "GET"),
}  # fmt: skip
UNTIL_CLOSE = {
    "until close": HEAD + b"content-type: text/plain\r\n\r\nall of it",
    "HTTP/1.0, until close": b"HTTP/1.0 200 OK\r\n\r\nall of it",
}


class ResponsePlan:
    """The pieces of the next response, and whether the connection is closed after them."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.close = False

    async def script(self, connection: ServerConnection) -> None:
        while True:
            await connection.read_request()
            await connection.send(*self.pieces)
            if self.close:
                return


def splits(sent: bytes) -> list[list[bytes]]:
    """Split bytes in two at every place, and into single bytes."""
    return [[sent[:k], sent[k:]] for k in range(1, len(sent))] + [[sent[k : k + 1] for k in range(len(sent))]]


@pytest.mark.parametrize("kind", COMPLETE_RESPONSES)
def test_every_split_of_a_response(run: Run, kind: str) -> None:
    sent, reused, method = COMPLETE_RESPONSES[kind]
    expected = parse_with_h11(method, sent, closed=False)
    assert expected is not None

    async def scenario() -> None:
        plan = ResponsePlan()
        async with client_harness(plan.script) as harness:
            for count, pieces in enumerate(splits(sent), 1):
                plan.pieces = pieces
                assert await harness.get(method=method) == expected, pieces
                await async_wait_until(lambda: len(harness.client) == reused)
                assert harness.server.accepted == (1 if reused else count)

    run(scenario())


@pytest.mark.parametrize("kind", UNTIL_CLOSE)
def test_every_split_of_a_response_that_ends_with_the_connection(run: Run, kind: str) -> None:
    sent = UNTIL_CLOSE[kind]
    expected = parse_with_h11("GET", sent, closed=True)
    assert expected == (200, b"all of it")

    async def scenario() -> None:
        plan = ResponsePlan()
        plan.close = True
        async with client_harness(plan.script) as harness:
            for pieces in splits(sent):
                plan.pieces = pieces
                assert await harness.get() == expected
                await async_wait_until(lambda: not len(harness.client))

    run(scenario())


@pytest.mark.parametrize("kind", [*COMPLETE_RESPONSES, *UNTIL_CLOSE])
def test_truncated_responses_fail(run: Run, kind: str) -> None:
    sent, _, method = COMPLETE_RESPONSES[kind] if kind in COMPLETE_RESPONSES else (UNTIL_CLOSE[kind], False, "GET")

    async def scenario() -> None:
        plan = ResponsePlan()
        plan.close = True
        async with client_harness(plan.script) as harness:
            for k in range(len(sent)):
                plan.pieces = [sent[:k]]
                expected = parse_with_h11(method, sent[:k], closed=True)
                if expected is not None:
                    assert await harness.get(method=method) == expected, sent[:k]
                else:
                    with pytest.raises(UpstreamFailed) as caught:
                        await harness.get(method=method)
                    assert (caught.value.status, caught.value.safe_to_retry) == (502, k == 0)
                await async_wait_until(lambda: not len(harness.client))

    run(scenario())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_chunks_at_any_splits(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.binary(min_size=1, max_size=400), max_size=8))
    sent = HEAD + CHUNKS + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    places = sorted(data.draw(st.lists(st.integers(1, len(sent) - 1), max_size=6, unique=True)))
    pieces = [sent[a:b] for a, b in zip([0, *places], [*places, len(sent)], strict=True)]

    async def scenario() -> None:
        async with client_harness(respond_always(*pieces)) as harness:
            for _ in range(2):
                assert await harness.get() == parse_with_h11("GET", sent, closed=False) == (200, b"".join(chunks))
            assert harness.server.accepted == 1

    asyncio.run(scenario())


def test_headers_leave_out_1xx_responses_and_trailers(run: Run) -> None:
    sent = b"HTTP/1.1 103 Early Hints\r\nlink: no\r\n\r\n" + HEAD + b"X-A: 1\r\nx-a: 2\r\n" + CHUNKS
    sent += b"0\r\nx-b: no\r\n\r\n"

    async def scenario() -> None:
        async with client_harness(respond_always(sent)) as harness:
            response = await harness.request()
            assert response.pairs == [("X-A", "1"), ("x-a", "2"), ("transfer-encoding", "chunked")]
            assert response.headers == {"x-a": "2", "transfer-encoding": "chunked"}
            assert await response.read() == b""

    run(scenario())


def test_request_heads_and_bodies(run: Run) -> None:
    seen: list[Any] = []

    async def script(connection: ServerConnection) -> None:
        while True:
            seen.append(await connection.read_request())
            await connection.send(OK)

    async def content() -> Any:
        for piece in (b"a" * 10, b"", b"b" * 70000):
            yield piece

    async def scenario() -> None:
        async with client_harness(script) as harness:
            await harness.get("/a?b=c%20d")
            await harness.get(method="POST", content=b"x" * 100)
            await harness.get(method="POST", content=b"x" * 200_000)
            await harness.get(method="PUT", content=content())
            await harness.get(method="PUT", content=content(), headers=[("content-length", "70010")], raw=True)
            assert harness.server.accepted == 1
            host = harness.server.url.removeprefix("http://")
        base = {"host": host, "x-test": "1"}
        gzip_accepted = {"accept-encoding": "gzip"}
        assert seen[0] == ("GET", "/a?b=c%20d", base | gzip_accepted, b"")
        assert seen[1] == ("POST", "/", base | gzip_accepted | {"content-length": "100"}, b"x" * 100)
        assert seen[2].body == b"x" * 200_000
        assert seen[3] == (
            "PUT",
            "/",
            base | gzip_accepted | {"transfer-encoding": "chunked"},
            b"a" * 10 + b"b" * 70000,
        )
        assert seen[4] == ("PUT", "/", base | {"content-length": "70010"}, b"a" * 10 + b"b" * 70000)

    run(scenario())


# Connections.

SURPLUS = {
    "one byte": OK + b"!",
    "garbage": OK + b"GARBAGE\r\n\r\n",
    "another response": OK + OK,
    "the first byte of another": OK + b"H",
    "after close": HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi" + OK,
    "after chunks": HEAD + CHUNKS + b"2\r\nhi\r\n0\r\n\r\n5\r\nhello\r\n",
    "a body of a response without one": b"HTTP/1.1 204 No Content\r\n\r\nhi",
}


@pytest.mark.parametrize("kind", SURPLUS)
def test_bytes_after_a_response_close_its_connection(run: Run, kind: str) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(SURPLUS[kind])) as harness:
            for count in (1, 2, 3):
                response = await harness.request()
                assert await response.read() == (b"" if "without one" in kind else b"hi")
                await async_wait_until(lambda: not len(harness.client))  # also without close()
                assert harness.server.accepted == count

    run(scenario())


def test_bytes_on_an_idle_connection_close_it(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(OK)
        await asyncio.sleep(0.02)
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad")
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            assert await harness.get() == (200, b"hi")
            assert len(harness.client) == 1
            await async_wait_until(lambda: not len(harness.client))
            assert await harness.get() == (200, b"hi")
            assert harness.server.accepted == 2

    run(scenario())


@pytest.mark.parametrize("outcome", ["closed", "reset"])
def test_an_idle_connection_that_the_server_closes_is_not_used(run: Run, outcome: str) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(OK)
        if outcome == "reset":
            connection.reset()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            for count in (1, 2, 3):
                assert await harness.get() == (200, b"hi")
                await async_wait_until(lambda: not len(harness.client))
                assert harness.server.accepted == count

    run(scenario())


def test_connections_are_closed_after_keep_alive_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "KEEP_ALIVE", 1.0)

    async def scenario() -> None:
        async with client_harness(respond_always(OK)) as harness:
            await asyncio.gather(*(harness.get() for _ in range(5)))
            assert len(harness.client) == 5
            while len(harness.client) > 1:  # uses one of them; the others expire
                with within(1.0, "the time between two requests"):
                    await asyncio.sleep(0.1)
                    assert await harness.get() == (200, b"hi")
            assert len(harness.client) == 1
            await async_wait_until(lambda: not len(harness.client))
            await async_wait_until(lambda: not harness.server.open)
            assert harness.server.accepted == 5
            assert await harness.get() == (200, b"hi")  # the expiry timer starts again
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_closing_the_client_fails_requests_in_progress_and_later_ones(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        while (await connection.read_request()).target == "/":
            await connection.send(OK)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            await asyncio.gather(harness.get(), harness.get())
            waiting = asyncio.create_task(harness.get("/never"))
            await asyncio.sleep(0.02)
            assert len(harness.client) == 2
            harness.client.close()
            with pytest.raises(UpstreamFailed, match="connection closed"):
                await waiting
            await async_wait_until(lambda: not len(harness.client))
            async with asyncio.timeout(60):
                with pytest.raises(UpstreamFailed):
                    await harness.get()

    run(scenario())


@pytest.mark.parametrize(
    "kind", ["length", "close", "until close", "chunked", "compressed", "broken", "after", "unread"]
)
def test_a_finished_response_is_freed_without_the_garbage_collector(run: Run, kind: str) -> None:
    body = gzip.compress(b"hi")
    sent = {
        "compressed": HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body,
        "broken": HEAD + b"content-length: 9\r\n\r\nhi",
        "after": OK + b"x",
        "unread": OK,
        "until close": UNTIL_CLOSE["until close"],
    }.get(kind) or COMPLETE_RESPONSES[kind][0]

    async def scenario() -> None:
        async with client_harness(respond_once(sent)) as harness:
            response = await harness.request()
            reference = weakref.ref(response)
            if kind == "broken":
                with pytest.raises(UpstreamFailed):
                    await response.read()
            elif kind != "unread":
                await response.read()
            del response
            await async_wait_until(lambda: reference() is None)

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


# URLs and heads.


def test_parse_base_url() -> None:
    assert parse_base_url("http://[::1]:8080/v1/") == (("::1", 8080, False), "[::1]:8080", "/v1")
    assert parse_base_url("https://[2001:db8::1]") == (("2001:db8::1", 443, True), "[2001:db8::1]", "")
    assert parse_base_url("https://Api.Example:443/a/b") == (("api.example", 443, True), "api.example", "/a/b")
    assert parse_base_url("http://bücher.example") == (
        ("xn--bcher-kva.example", 80, False),
        "xn--bcher-kva.example",
        "",
    )
    assert parse_base_url("http://api.example:443") == (("api.example", 443, False), "api.example:443", "")


def test_ipv6(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        request = await connection.read_request()
        await connection.send(
            HEAD + b"content-length: %d\r\n\r\n" % len(request.headers["host"]), request.headers["host"].encode()
        )

    async def scenario() -> None:
        try:
            async with client_harness(script, host="::1") as harness:
                assert await harness.get() == (200, f"[::1]:{harness.server.port}".encode())
        except OSError:
            pytest.skip("this machine has no IPv6")

    run(scenario())


@pytest.mark.parametrize("broken", ["a\r\nx: y", "a\nx: y", "a\r", "\n", "a\r\n\r\nGET / HTTP/1.1", "a\r\n b"])
def test_line_breaks_in_headers_are_refused(broken: str) -> None:
    assert encode_headers([("a", "b"), ("c", "")]) == b"a: b\r\nc: \r\n"
    for pairs in ([("x", broken)], [(broken, "x")], [("a", "b"), ("x", broken), ("c", "d")]):
        with pytest.raises(ValueError, match="line break"):
            encode_headers(pairs)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/\n", "/a HTTP/1.1\r\n\r\nGET /b", "/\x00", "/\x7f"])
def test_unsafe_characters_in_a_path_are_refused(run: Run, path: str) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK)) as harness:
            with pytest.raises(ValueError, match="path"):
                await harness.request(path)
            assert harness.server.accepted == 0

    run(scenario())


def test_closing_an_unused_client() -> None:
    client = Client("fake", 1, 1)
    assert len(client) == 0
    client.close()
