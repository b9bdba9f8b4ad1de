"""Answers on their way to a caller, by a voice of the server's own (Cycle) or by ASGI (AsgiWriter): both say the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from knapcache.serve.http.asgi_request import AsgiRequest
from knapcache.serve.http.fast_path import LONGEST
from knapcache.serve.http.uvicorn_protocol import Cycle
from tests.support.asgi_server import request, serving, telling
from tests.support.scripted_server import Run, run, wait_until

__all__ = ["run"]

STREAM = [b"one", b"", b"wait", b"x" * 100_000, b"wait", b"\r\n0\r\n\r\n", b"end"]


# The same by all ways.

WAYS = {
    "cycle": request(b"question"),
    "long": request(b"question" + b"." * (LONGEST + 1)),
    "longer": request(b"question" + b"." * (1 << 20)),
    "old": request(b"question", version="1.0"),
    "last": request(b"question", "connection: close"),
    "expects": request(b"question", "expect: 100-continue"),
    "chunks": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"8;a=b\r\nquestion\r\n0\r\nx: y\r\n\r\n",
    "elsewhere": request(b"question").replace(b"/v1/chat/completions", b"/v1/else"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_the_same_by_all_ways(run: Run, way: str) -> None:
    async def scenario() -> None:
        async with serving(telling(STREAM)) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS[way])
            answer = await wire.answer()
            assert answer is not None
            status, headers, body = answer
            question = b"question" if len(WAYS[way]) < 1000 else b"question.."
            assert (status, body) == (200, question + b"".join(STREAM))
            assert (b"content-type", b"text/plain") in headers
            assert app.kinds[0] is Cycle if way in ("cycle", "chunks") else app.kinds[0] is not Cycle
            if way in ("old", "last"):
                assert await wire.ends()
            else:
                wire.writer.write(request(b"again"))
                again = await wire.answer()
                assert again is not None
                assert again[2].startswith(b"againone")
            await asyncio.sleep(0)
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_requests_in_one_go(run: Run, cut: int) -> None:
    async def scenario() -> None:
        async with serving(telling([b"!", b"wait"])) as (app, connect):
            wire = await connect()
            sent = b"".join(request(b"%d" % k) for k in range(6)) + request(b"last", "connection: close")
            for k in range(0, len(sent), len(sent) // cut):
                wire.writer.write(sent[k : k + len(sent) // cut])
                await asyncio.sleep(0.001)
            for name in (*(b"%d" % k for k in range(6)), b"last"):
                answer = await wire.answer()
                assert answer is not None
                assert answer[2] == name + b"!wait"
            assert await wire.ends()
            assert app.errors == []
            assert Cycle in app.kinds

    run(scenario())


def test_one_after_the_other(run: Run) -> None:
    async def scenario() -> None:
        async with serving(telling([b"!"])) as (app, connect):
            wire = await connect()
            for k in range(50):
                wire.writer.write(request(b"%d" % k))
                assert (await wire.answer() or (0, [], b""))[2] == b"%d!" % k
            await wait_until(lambda: set(app.kinds) == {Cycle})

    run(scenario())


@pytest.mark.parametrize("more", ["", "connection: close\r\n"])
def test_headers_after_the_body_are_none(run: Run, more: str) -> None:
    seen: list[Any] = []

    async def tell(asked: AsgiRequest) -> None:
        await asked.body(100, 100)
        seen.append(asked.headers)
        await asked.answer(200, [], b"ok")

    async def scenario() -> None:
        async with serving(tell) as (_, connect):
            wire = await connect()
            sent = WAYS["chunks"].replace(b"x: y", b"authorization: Bearer other\r\nhost: evil")
            wire.writer.write(sent.replace(b"host: x\r\n", b"host: x\r\n" + more.encode()))
            assert (await wire.answer() or (0, [], b""))[0] == 200
            assert seen[0].keys() - {"connection"} == {"host", "transfer-encoding"}
            assert seen[0]["host"] == "x"

    run(scenario())


# What an answer says of itself.


@pytest.mark.parametrize("name", ["connection", "Connection"])
def test_an_answer_that_is_the_last(run: Run, name: str) -> None:
    async def scenario() -> None:
        async with serving(telling([b"x" * 3_000_000], [(name, "close")])) as (_, connect):
            wire = await connect()
            wire.writer.write(request() * 2)
            answer = await wire.answer()
            assert answer is not None
            assert [value for key, value in answer[1] if key.lower() == b"connection"] == [b"close"]
            assert len(answer[2]) == 3_000_002
            assert await wire.ends()

    run(scenario())


@pytest.mark.parametrize(
    ("status", "name"), [(200, "content-length"), (200, "Content-Length"), (529, "content-length")]
)
def test_an_answer_of_a_known_length(run: Run, status: int, name: str) -> None:
    async def scenario() -> None:
        async with serving(telling([b"abc"], [(name, "5")], status)) as (_, connect):
            wire = await connect()
            for _ in range(2):
                wire.writer.write(request())
                answer = await wire.answer()
                assert answer is not None
                assert (answer[0], answer[2]) == (status, b"{}abc")
                assert not [key for key, _ in answer[1] if key.lower() == b"transfer-encoding"]

    run(scenario())


@pytest.mark.parametrize("said", [4, 6, 0])
@pytest.mark.parametrize("way", ["cycle", "old"])
def test_an_answer_of_another_length_than_was_said(run: Run, said: int, way: str) -> None:
    async def scenario() -> None:
        async with serving(telling([b"abc"], [("content-length", str(said))])) as (app, connect):
            wire = await connect()
            wire.writer.write(request(version="1.1" if way == "cycle" else "1.0"))
            await wire.answer()
            assert await wire.ends()
            await wait_until(lambda: len(app.errors) == 1)
            assert isinstance(app.errors[0], RuntimeError)

    run(scenario())


@pytest.mark.parametrize(
    "pair", [("x", "a\r\nset-cookie: b"), ("x\r\ny", "a"), ("x", "a\n"), ("x", "\r"), ("x", "a\r\n\r\nhi")]
)
def test_header_lines_cannot_be_broken(run: Run, pair: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with serving(telling([b"abc"], [pair])) as (app, connect):
            wire = await connect()
            wire.writer.write(request())
            assert await wire.reader.read() == b""
            await wait_until(lambda: len(app.errors) == 1)

    run(scenario())


def test_a_body_where_there_is_none(run: Run) -> None:
    async def tell(asked: AsgiRequest) -> None:
        await asked.body(100, 100)
        voice = asked.begin(204, [])
        voice.say(b"", more=False)

    async def scenario() -> None:
        async with serving(tell) as (_, connect):
            wire = await connect()
            for _ in range(2):
                wire.writer.write(request())
                assert await wire.answer() == (204, [], b"")

    run(scenario())


def test_words_out_of_order(run: Run) -> None:
    seen: list[str] = []

    async def tell(asked: AsgiRequest) -> None:
        await asked.body(100, 100)
        assert isinstance(asked._own, Cycle)
        voice = asked._own
        with pytest.raises(RuntimeError):
            voice.say(b"x")
        voice.begin(200, [])
        with pytest.raises(RuntimeError):
            voice.begin(200, [])
        voice.say(b"hi", more=False)
        with pytest.raises(RuntimeError):
            voice.say(b"x")
        seen.append("over")

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            for _ in range(2):
                wire.writer.write(request())
                assert (await wire.answer() or (0, [], b""))[2] == b"hi"
            await wait_until(lambda: len(seen) == 2)
            assert app.errors == []

    run(scenario())


def test_the_head_does_not_wait_for_a_body(run: Run) -> None:
    go_on = asyncio.Event()

    async def tell(asked: AsgiRequest) -> None:
        await asked.body(100, 100)
        voice = asked.begin(200, [("x-head", "here")])
        await go_on.wait()
        voice.say(b"body", more=False)

    async def scenario() -> None:
        async with serving(tell) as (_, connect):
            wire = await connect()
            wire.writer.write(request())
            async with asyncio.timeout(2):
                head = await wire.reader.readuntil(b"\r\n\r\n")
            assert b"x-head: here\r\n" in head
            go_on.set()
            assert await wire.reader.readexactly(14) == b"4\r\nbody\r\n0\r\n\r\n"

    run(scenario())
