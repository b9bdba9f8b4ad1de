"""The two response writers, `RequestCycle` and `AsgiWriter`, send the same responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from knapcache.proxy.http.asgi_request import AsgiRequest
from knapcache.proxy.http.fast_path import MAX_LENGTH
from knapcache.proxy.http.uvicorn_protocol import RequestCycle
from tests.support.asgi_server import echo_and_write, post, serving
from tests.support.scripted_server import Run, run
from tests.support.timing import async_wait_until

__all__ = ["run"]

STREAM = [b"one", b"", b"wait", b"x" * 100_000, b"wait", b"\r\n0\r\n\r\n", b"end"]


REQUESTS = {
    "cycle": post(b"question"),
    "long": post(b"question" + b"." * (MAX_LENGTH + 1)),
    "longer": post(b"question" + b"." * (1 << 20)),
    "old": post(b"question", version="1.0"),
    "last": post(b"question", "connection: close"),
    "expects": post(b"question", "expect: 100-continue"),
    "chunks": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"8;a=b\r\nquestion\r\n0\r\nx: y\r\n\r\n",
    "elsewhere": post(b"question").replace(b"/v1/chat/completions", b"/v1/else"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_stream_is_the_same_with_every_writer(run: Run, kind: str) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write(STREAM)) as (app, connect):
            connection = await connect()
            connection.writer.write(REQUESTS[kind])
            response = await connection.response()
            assert response is not None
            status, headers, body = response
            question = b"question" if len(REQUESTS[kind]) < 1000 else b"question.."
            assert (status, body) == (200, question + b"".join(STREAM))
            assert (b"content-type", b"text/plain") in headers
            assert (
                app.cycle_types[0] is RequestCycle
                if kind in ("cycle", "chunks")
                else app.cycle_types[0] is not RequestCycle
            )
            if kind in ("old", "last"):
                assert await connection.is_closed()
            else:
                connection.writer.write(post(b"again"))
                again = await connection.response()
                assert again is not None
                assert again[2].startswith(b"againone")
            await asyncio.sleep(0)
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_pipelined_requests_are_answered_in_order(run: Run, cut: int) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"!", b"wait"])) as (app, connect):
            connection = await connect()
            sent = b"".join(post(b"%d" % k) for k in range(6)) + post(b"last", "connection: close")
            for k in range(0, len(sent), len(sent) // cut):
                connection.writer.write(sent[k : k + len(sent) // cut])
                await asyncio.sleep(0.001)
            for name in (*(b"%d" % k for k in range(6)), b"last"):
                response = await connection.response()
                assert response is not None
                assert response[2] == name + b"!wait"
            assert await connection.is_closed()
            assert app.errors == []
            assert RequestCycle in app.cycle_types

    run(scenario())


def test_requests_on_one_connection_use_the_request_cycle(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"!"])) as (app, connect):
            connection = await connect()
            for k in range(50):
                connection.writer.write(post(b"%d" % k))
                assert (await connection.response() or (0, [], b""))[2] == b"%d!" % k
            await async_wait_until(lambda: set(app.cycle_types) == {RequestCycle})

    run(scenario())


@pytest.mark.parametrize("more", ["", "connection: close\r\n"])
def test_trailers_are_dropped(run: Run, more: str) -> None:
    seen: list[Any] = []

    async def respond(request: AsgiRequest) -> None:
        await request.read_body(100, 100)
        seen.append(request.headers)
        await request.respond(200, [], b"ok")

    async def scenario() -> None:
        async with serving(respond) as (_, connect):
            connection = await connect()
            sent = REQUESTS["chunks"].replace(b"x: y", b"authorization: Bearer other\r\nhost: evil")
            connection.writer.write(sent.replace(b"host: x\r\n", b"host: x\r\n" + more.encode()))
            assert (await connection.response() or (0, [], b""))[0] == 200
            assert seen[0].keys() - {"connection"} == {"host", "transfer-encoding"}
            assert seen[0]["host"] == "x"

    run(scenario())


# Heads of responses.


@pytest.mark.parametrize("name", ["connection", "Connection"])
def test_connection_close_closes_the_connection(run: Run, name: str) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"x" * 3_000_000], [(name, "close")])) as (_, connect):
            connection = await connect()
            connection.writer.write(post() * 2)
            response = await connection.response()
            assert response is not None
            assert [value for key, value in response[1] if key.lower() == b"connection"] == [b"close"]
            assert len(response[2]) == 3_000_002
            assert await connection.is_closed()

    run(scenario())


@pytest.mark.parametrize(
    ("status", "name"), [(200, "content-length"), (200, "Content-Length"), (529, "content-length")]
)
def test_a_response_with_content_length_is_not_chunked(run: Run, status: int, name: str) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"abc"], [(name, "5")], status)) as (_, connect):
            connection = await connect()
            for _ in range(2):
                connection.writer.write(post())
                response = await connection.response()
                assert response is not None
                assert (response[0], response[2]) == (status, b"{}abc")
                assert not [key for key, _ in response[1] if key.lower() == b"transfer-encoding"]

    run(scenario())


@pytest.mark.parametrize("announced", [4, 6, 0])
@pytest.mark.parametrize("kind", ["cycle", "old"])
def test_a_body_of_another_length_than_announced_is_an_error(run: Run, announced: int, kind: str) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"abc"], [("content-length", str(announced))])) as (app, connect):
            connection = await connect()
            connection.writer.write(post(version="1.1" if kind == "cycle" else "1.0"))
            await connection.response()
            assert await connection.is_closed()
            await async_wait_until(lambda: len(app.errors) == 1)
            assert isinstance(app.errors[0], RuntimeError)

    run(scenario())


@pytest.mark.parametrize(
    "pair", [("x", "a\r\nset-cookie: b"), ("x\r\ny", "a"), ("x", "a\n"), ("x", "\r"), ("x", "a\r\n\r\nhi")]
)
def test_line_breaks_in_headers_are_an_error(run: Run, pair: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"abc"], [pair])) as (app, connect):
            connection = await connect()
            connection.writer.write(post())
            assert await connection.reader.read() == b""
            await async_wait_until(lambda: len(app.errors) == 1)

    run(scenario())


def test_a_204_response_has_no_body(run: Run) -> None:
    async def respond(request: AsgiRequest) -> None:
        await request.read_body(100, 100)
        writer = request.open_writer(204, [])
        writer.write(b"", more=False)

    async def scenario() -> None:
        async with serving(respond) as (_, connect):
            connection = await connect()
            for _ in range(2):
                connection.writer.write(post())
                assert await connection.response() == (204, [], b"")

    run(scenario())


def test_writes_out_of_order_are_errors(run: Run) -> None:
    seen: list[str] = []

    async def respond(request: AsgiRequest) -> None:
        await request.read_body(100, 100)
        assert isinstance(request._writer, RequestCycle)
        writer = request._writer
        with pytest.raises(RuntimeError):
            writer.write(b"x")
        writer.start(200, [])
        with pytest.raises(RuntimeError):
            writer.start(200, [])
        writer.write(b"hi", more=False)
        with pytest.raises(RuntimeError):
            writer.write(b"x")
        seen.append("done")

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection = await connect()
            for _ in range(2):
                connection.writer.write(post())
                assert (await connection.response() or (0, [], b""))[2] == b"hi"
            await async_wait_until(lambda: len(seen) == 2)
            assert app.errors == []

    run(scenario())


def test_the_head_does_not_wait_for_the_body(run: Run) -> None:
    proceed = asyncio.Event()

    async def respond(request: AsgiRequest) -> None:
        await request.read_body(100, 100)
        writer = request.open_writer(200, [("x-head", "here")])
        await proceed.wait()
        writer.write(b"body", more=False)

    async def scenario() -> None:
        async with serving(respond) as (_, connect):
            connection = await connect()
            connection.writer.write(post())
            async with asyncio.timeout(60):
                head = await connection.reader.readuntil(b"\r\n\r\n")
            assert b"x-head: here\r\n" in head
            proceed.set()
            assert await connection.reader.readexactly(14) == b"4\r\nbody\r\n0\r\n\r\n"

    run(scenario())


@pytest.mark.parametrize("ending", ["header", "shutdown"])
def test_a_whole_response_says_that_the_connection_closes(run: Run, ending: str) -> None:
    async def respond(request: AsgiRequest) -> None:
        await request.read_body(100, 100)
        assert isinstance(request._writer, RequestCycle)
        request._writer.keep_alive = ending == "header"
        close = [("Connection", "close")] if ending == "header" else []
        await request.respond(200, [("Date", "never"), *close, ("X-Title", "a")], b"ok")

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection = await connect()
            connection.writer.write(post())
            headers = [(b"x-title", b"a"), (b"content-length", b"2"), (b"connection", b"close")]
            assert await connection.response() == (200, headers, b"ok")
            assert await connection.is_closed()
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb"])
def test_a_line_break_in_a_header_of_a_whole_response_is_an_error(run: Run, value: str) -> None:
    errors: list[RuntimeError] = []

    async def respond(request: AsgiRequest) -> None:
        await request.read_body(100, 100)
        with pytest.raises(RuntimeError, match="line break") as error:
            await request.respond(200, [("x-title", value)], b"ok")
        errors.append(error.value)
        await request.respond(200, [], b"fine")

    async def scenario() -> None:
        async with serving(respond) as (_, connect):
            connection = await connect()
            connection.writer.write(post())
            assert (await connection.response() or (0, [], b""))[2] == b"fine"
            assert len(errors) == 1

    run(scenario())
