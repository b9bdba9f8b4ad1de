"""HTTP/1.1 to providers: how bodies end, wherever they are cut, and what becomes of their connections."""

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
from knapcache.serve.upstream import client as pool
from knapcache.serve.upstream import response as response_module
from knapcache.serve.upstream.client import Client, encode_headers, parse_base_url
from tests.support.scripted_server import (
    OK,
    ClientHarness,
    Run,
    ServerConnection,
    client_harness,
    parse_with_h11,
    respond_always,
    respond_once,
    run,
    wait_until,
)

__all__ = ["run"]


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends its connection does so by itself, not because nobody reads on."""
    monkeypatch.setattr(response_module, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKS = b"transfer-encoding: chunked\r\n\r\n"
# What is said, whether the connection may be used again, and the method.
WHOLE = {
    "length": (HEAD + b"Content-Length: 5\r\nx-one:two\r\n\r\nhello", True, "GET"),
    "length none": (HEAD + b"content-length: 0\r\n\r\n", True, "GET"),
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
    "old": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False, "GET"),
    "old, keeps": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi", True, "GET"),
}  # fmt: skip
TO_THE_END = {
    "to the end": HEAD + b"content-type: text/plain\r\n\r\nall of it",
    "old, to the end": b"HTTP/1.0 200 OK\r\n\r\nall of it",
}


class ResponsePlan:
    """What is said next, and whether that was the end."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.leave = False

    async def script(self, connection: ServerConnection) -> None:
        while True:
            await connection.read_request()
            await connection.send(*self.pieces)
            if self.leave:
                return


def cuts(sent: bytes) -> list[list[bytes]]:
    """In two, at every place; and byte by byte."""
    return [[sent[:k], sent[k:]] for k in range(1, len(sent))] + [[sent[k : k + 1] for k in range(len(sent))]]


@pytest.mark.parametrize("kind", WHOLE)
def test_bodies_wherever_they_are_cut(run: Run, kind: str) -> None:
    sent, again, method = WHOLE[kind]
    wanted = parse_with_h11(method, sent, closed=False)
    assert wanted is not None

    async def scenario() -> None:
        plan = ResponsePlan()
        async with client_harness(plan.script) as harness:
            for count, pieces in enumerate(cuts(sent), 1):
                plan.pieces = pieces
                assert await harness.get(method=method) == wanted, pieces
                await wait_until(lambda: len(harness.client) == again)
                assert harness.server.accepted == (1 if again else count)

    run(scenario())


@pytest.mark.parametrize("kind", TO_THE_END)
def test_bodies_to_the_end_of_the_connection(run: Run, kind: str) -> None:
    sent = TO_THE_END[kind]
    wanted = parse_with_h11("GET", sent, closed=True)
    assert wanted == (200, b"all of it")

    async def scenario() -> None:
        plan = ResponsePlan()
        plan.leave = True
        async with client_harness(plan.script) as harness:
            for pieces in cuts(sent):
                plan.pieces = pieces
                assert await harness.get() == wanted
                await wait_until(lambda: not len(harness.client))

    run(scenario())


@pytest.mark.parametrize("kind", [*WHOLE, *TO_THE_END])
def test_answers_that_are_cut_off_are_no_answers(run: Run, kind: str) -> None:
    sent, _, method = WHOLE[kind] if kind in WHOLE else (TO_THE_END[kind], False, "GET")

    async def scenario() -> None:
        plan = ResponsePlan()
        plan.leave = True
        async with client_harness(plan.script) as harness:
            for k in range(len(sent)):
                plan.pieces = [sent[:k]]
                wanted = parse_with_h11(method, sent[:k], closed=True)
                if wanted is not None:
                    assert await harness.get(method=method) == wanted, sent[:k]
                else:
                    with pytest.raises(UpstreamFailed) as told:
                        await harness.get(method=method)
                    assert (told.value.status, told.value.safe_to_retry) == (502, k == 0)
                await wait_until(lambda: not len(harness.client))

    run(scenario())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_chunks_in_any_pieces(data: st.DataObject) -> None:
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


def test_headers_are_those_of_the_answer(run: Run) -> None:
    sent = b"HTTP/1.1 103 Early Hints\r\nlink: no\r\n\r\n" + HEAD + b"X-A: 1\r\nx-a: 2\r\n" + CHUNKS
    sent += b"0\r\nx-b: no\r\n\r\n"

    async def scenario() -> None:
        async with client_harness(respond_always(sent)) as harness:
            response = await harness.request()
            assert response.pairs == [("X-A", "1"), ("x-a", "2"), ("transfer-encoding", "chunked")]
            assert response.headers == {"x-a": "2", "transfer-encoding": "chunked"}
            assert await response.read() == b""

    run(scenario())


def test_what_is_sent(run: Run) -> None:
    seen: list[Any] = []

    async def script(connection: ServerConnection) -> None:
        while True:
            seen.append(await connection.read_request())
            await connection.send(OK)

    async def upload() -> Any:
        for piece in (b"a" * 10, b"", b"b" * 70000):
            yield piece

    async def scenario() -> None:
        async with client_harness(script) as harness:
            await harness.get("/a?b=c%20d")
            await harness.get(method="POST", content=b"x" * 100)
            await harness.get(method="POST", content=b"x" * 200_000)
            await harness.get(method="PUT", content=upload())
            await harness.get(method="PUT", content=upload(), headers=[("content-length", "70010")], raw=True)
            assert harness.server.accepted == 1
            host = harness.server.url.removeprefix("http://")
        base = {"host": host, "x-test": "1"}
        packed = {"accept-encoding": "gzip"}
        assert seen[0] == ("GET", "/a?b=c%20d", base | packed, b"")
        assert seen[1] == ("POST", "/", base | packed | {"content-length": "100"}, b"x" * 100)
        assert seen[2].body == b"x" * 200_000
        assert seen[3] == ("PUT", "/", base | packed | {"transfer-encoding": "chunked"}, b"a" * 10 + b"b" * 70000)
        assert seen[4] == ("PUT", "/", base | {"content-length": "70010"}, b"a" * 10 + b"b" * 70000)

    run(scenario())


# Connections.

AFTER = {
    "more of it": OK + b"!",
    "garbage": OK + b"GARBAGE\r\n\r\n",
    "another answer": OK + OK,
    "the beginning of another": OK + b"H",
    "after close": HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi" + OK,
    "after chunks": HEAD + CHUNKS + b"2\r\nhi\r\n0\r\n\r\n5\r\nhello\r\n",
    "a body where there is none": b"HTTP/1.1 204 No Content\r\n\r\nhi",
}


@pytest.mark.parametrize("kind", AFTER)
def test_bytes_after_the_answer_end_its_connection(run: Run, kind: str) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(AFTER[kind])) as harness:
            for count in (1, 2, 3):
                response = await harness.request()
                assert await response.read() == (b"" if "none" in kind else b"hi")
                await wait_until(lambda: not len(harness.client))  # whether it is let go of or not
                assert harness.server.accepted == count

    run(scenario())


def test_what_comes_on_a_connection_that_waits_ends_it(run: Run) -> None:
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
            await wait_until(lambda: not len(harness.client))
            assert await harness.get() == (200, b"hi")
            assert harness.server.accepted == 2

    run(scenario())


@pytest.mark.parametrize("outcome", ["closed", "reset"])
def test_a_connection_that_the_server_ends_while_it_waits_is_not_used(run: Run, outcome: str) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(OK)
        if outcome == "reset":
            connection.reset()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            for count in (1, 2, 3):
                assert await harness.get() == (200, b"hi")
                await wait_until(lambda: not len(harness.client))
                assert harness.server.accepted == count

    run(scenario())


def test_connections_that_wait_for_too_long_are_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "KEEP_ALIVE", 0.15)

    async def scenario() -> None:
        async with client_harness(respond_always(OK)) as harness:
            await asyncio.gather(*(harness.get() for _ in range(5)))
            assert len(harness.client) == 5
            for _ in range(10):  # one of them is in use, the others grow old
                await asyncio.sleep(0.03)
                assert await harness.get() == (200, b"hi")
            assert len(harness.client) == 1
            await wait_until(lambda: not len(harness.client))
            await wait_until(lambda: not harness.server.open)
            assert harness.server.accepted == 5
            assert await harness.get() == (200, b"hi")  # and the sweeper comes again
            await wait_until(lambda: not len(harness.client))

    run(scenario())


def test_the_end_of_a_client(run: Run) -> None:
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
            with pytest.raises(UpstreamFailed, match="closed the connection"):
                await waiting
            await wait_until(lambda: not len(harness.client))
            async with asyncio.timeout(2):  # whoever comes later is told, and does not wait
                with pytest.raises(UpstreamFailed):
                    await harness.get()

    run(scenario())


@pytest.mark.parametrize("kind", ["length", "close", "to the end", "chunked", "packed", "broken", "after", "unread"])
def test_nothing_keeps_a_response_when_it_is_over(run: Run, kind: str) -> None:
    packed = gzip.compress(b"hi")
    sent = {
        "packed": HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed,
        "broken": HEAD + b"content-length: 9\r\n\r\nhi",
        "after": OK + b"x",
        "unread": OK,
        "to the end": TO_THE_END["to the end"],
    }.get(kind) or WHOLE[kind][0]

    async def scenario() -> None:
        async with client_harness(respond_once(sent)) as harness:
            response = await harness.request()
            known = weakref.ref(response)
            if kind == "broken":
                with pytest.raises(UpstreamFailed):
                    await response.read()
            elif kind != "unread":
                await response.read()
            del response
            await asyncio.sleep(0.02)
            assert known() is None

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


# What leads where.


def test_addresses() -> None:
    assert parse_base_url("http://[::1]:8080/v1/") == (("::1", 8080, False), "[::1]:8080", "/v1")
    assert parse_base_url("https://[2001:db8::1]") == (("2001:db8::1", 443, True), "[2001:db8::1]", "")
    assert parse_base_url("https://Api.Example:443/a/b") == (("api.example", 443, True), "api.example", "/a/b")
    assert parse_base_url("http://api.example:443") == (("api.example", 443, False), "api.example:443", "")


def test_the_other_internet(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        asked = await connection.read_request()
        await connection.send(
            HEAD + b"content-length: %d\r\n\r\n" % len(asked.headers["host"]), asked.headers["host"].encode()
        )

    async def scenario() -> None:
        try:
            async with client_harness(script, host="::1") as harness:
                assert await harness.get() == (200, f"[::1]:{harness.server.port}".encode())
        except OSError:
            pytest.skip("no IPv6 here")

    run(scenario())


@pytest.mark.parametrize("broken", ["a\r\nx: y", "a\nx: y", "a\r", "\n", "a\r\n\r\nGET / HTTP/1.1", "a\r\n b"])
def test_header_lines_cannot_be_broken(broken: str) -> None:
    assert encode_headers([("a", "b"), ("c", "")]) == b"a: b\r\nc: \r\n"
    for pairs in ([("x", broken)], [(broken, "x")], [("a", "b"), ("x", broken), ("c", "d")]):
        with pytest.raises(ValueError, match="line break"):
            encode_headers(pairs)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/\n", "/a HTTP/1.1\r\n\r\nGET /b", "/\x00", "/\x7f"])
def test_nor_can_the_first_line(run: Run, path: str) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK)) as harness:
            with pytest.raises(ValueError, match="path"):
                await harness.request(path)
            assert harness.server.accepted == 0

    run(scenario())


def test_a_client_that_was_never_used() -> None:
    client = Client("fake", 1, 1)
    assert len(client) == 0
    client.close()
    assert isinstance(ClientHarness(client, None), tuple)  # type: ignore[arg-type]
