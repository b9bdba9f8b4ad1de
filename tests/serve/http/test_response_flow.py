"""Answers on their way to callers who are slow, or who leave; and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from knapcache.serve.http.asgi_request import MAX_UNREAD, AsgiRequest, AsgiWriter, ResponseWriter
from knapcache.serve.http.fast_path import MAX_LENGTH
from knapcache.serve.http.uvicorn_protocol import RequestCycle
from tests.support.asgi_server import echo_and_write, post, serving
from tests.support.scripted_server import Run, run, wait_until

__all__ = ["run"]

WAYS = {
    "cycle": post(b"question"),
    "long": post(b"question" + b"." * (MAX_LENGTH + 1)),
    "old": post(b"question", version="1.0"),
}


@pytest.mark.parametrize("way", ["cycle", "old"])
def test_a_slow_caller_is_told_all(run: Run, way: str) -> None:
    pieces = [b"%06d" % k * 5000 for k in range(400)]  # 12 MB

    async def scenario() -> None:
        async with serving(echo_and_write(pieces)) as (app, connect):
            connection = await connect()
            connection.writer.write(WAYS[way])
            await asyncio.sleep(0.1)
            response = await connection.response()
            assert response is not None
            assert response[2] == b"question" + b"".join(pieces)
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("way", ["cycle", "old"])
def test_a_caller_who_never_reads_is_taken_to_be_gone(run: Run, way: str) -> None:
    """What is held for one who reads nothing is bounded, and whoever fetches for it is not held up."""
    said = 0

    async def respond(request: AsgiRequest) -> None:
        nonlocal said
        await request.read_body(100, 100)
        writer = request.open_writer(200, [])
        while not writer.disconnected and said < 4 * MAX_UNREAD:
            writer.write(bytes(1 << 20))
            said += 1 << 20
            await asyncio.sleep(0)
        await request.drain()

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection = await connect()
            connection.writer.write(WAYS[way])
            await wait_until(lambda: bool(app.cycles) and said > MAX_UNREAD)
            await asyncio.sleep(0.3)
            assert said < 2 * MAX_UNREAD
            assert app.errors == []

    run(scenario())


def test_whoever_waits_for_a_slow_caller_is_made_to_wait(run: Run) -> None:
    sent = 0

    async def respond(request: AsgiRequest) -> None:
        nonlocal sent
        await request.read_body(100, 100)
        await request.send_head(200, [])
        while sent < 50 << 20:
            await request.send_body(bytes(1 << 16))
            sent += 1 << 16
        await request.send_body(b"", more=False)

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection = await connect()
            connection.writer.write(post())
            await asyncio.sleep(0.2)
            assert sent < 32 << 20
            response = await connection.response()
            assert response is not None
            assert len(response[2]) == 50 << 20
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("way", ["cycle", "old", "long", "pipelined"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_caller_who_leaves_is_noticed(run: Run, way: str, when: str) -> None:
    writers: list[ResponseWriter] = []
    go_on, done = asyncio.Event(), asyncio.Event()

    async def respond(request: AsgiRequest) -> None:
        await request.read_body(1 << 20, 1 << 20)
        if when == "before":
            await go_on.wait()
        writer = request.open_writer(200, [])
        writers.append(writer)
        for _ in range(200):  # whatever is said now does no harm
            writer.write(b"x" * 1000)
            await asyncio.sleep(0.001)
            if writer.disconnected:
                break
        writer.write(b"", more=False)
        await request.drain()
        done.set()

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection = await connect()
            connection.writer.write(WAYS["cycle"] * 2 if way == "pipelined" else WAYS[way])
            if when == "during":
                await connection.reader.read(100)
            else:
                await asyncio.sleep(0.02)
            connection.writer.transport.abort()
            await asyncio.sleep(0.02)
            go_on.set()
            async with asyncio.timeout(2):
                await done.wait()
            assert writers[0].disconnected
            assert app.errors == []

    run(scenario())


def test_nothing_keeps_a_cycle_when_it_is_over(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"!"])) as (app, connect):
            connection = await connect()
            for _ in range(3):
                connection.writer.write(post())
                await connection.response()
            connection.writer.close()
            await asyncio.sleep(0.05)
            assert app.cycle_types == [RequestCycle] * 3
            assert [cycle() for cycle in app.cycles] == [None] * 3

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


def test_a_pump_that_cannot_send_says_so(run: Run) -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    async def scenario() -> None:
        for error, told in ((RuntimeError("no"), True), (OSError("gone"), False)):

            async def send(_: Any, error: Exception = error) -> None:
                raise error

            writer = AsgiWriter(receive, send)
            writer.start(200, [])
            writer.write(b"", more=False)
            with pytest.raises(RuntimeError) if told else contextlib.nullcontext():
                await writer.drain()
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)

    run(scenario())
