"""Answers on their way to callers who are slow, or who leave; and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from knapcache.serve.http.asgi_request import MOST_UNREAD, AsgiRequest, AsgiWriter, ResponseWriter
from knapcache.serve.http.fast_path import LONGEST
from knapcache.serve.http.uvicorn_protocol import Cycle
from tests.support.asgi_server import request, serving, telling
from tests.support.scripted_server import Run, run, wait_until

__all__ = ["run"]

WAYS = {
    "cycle": request(b"question"),
    "long": request(b"question" + b"." * (LONGEST + 1)),
    "old": request(b"question", version="1.0"),
}


@pytest.mark.parametrize("way", ["cycle", "old"])
def test_a_slow_caller_is_told_all(run: Run, way: str) -> None:
    pieces = [b"%06d" % k * 5000 for k in range(400)]  # 12 MB

    async def scenario() -> None:
        async with serving(telling(pieces)) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS[way])
            await asyncio.sleep(0.1)
            answer = await wire.answer()
            assert answer is not None
            assert answer[2] == b"question" + b"".join(pieces)
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("way", ["cycle", "old"])
def test_a_caller_who_never_reads_is_taken_to_be_gone(run: Run, way: str) -> None:
    """What is held for one who reads nothing is bounded, and whoever fetches for it is not held up."""
    said = 0

    async def tell(asked: AsgiRequest) -> None:
        nonlocal said
        await asked.body(100, 100)
        voice = asked.begin(200, [])
        while not voice.disconnected and said < 4 * MOST_UNREAD:
            voice.say(bytes(1 << 20))
            said += 1 << 20
            await asyncio.sleep(0)
        await asked.said()

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS[way])
            await wait_until(lambda: bool(app.cycles) and said > MOST_UNREAD)
            await asyncio.sleep(0.3)
            assert said < 2 * MOST_UNREAD
            assert app.errors == []

    run(scenario())


def test_whoever_waits_for_a_slow_caller_is_made_to_wait(run: Run) -> None:
    sent = 0

    async def tell(asked: AsgiRequest) -> None:
        nonlocal sent
        await asked.body(100, 100)
        await asked.start(200, [])
        while sent < 50 << 20:
            await asked.piece(bytes(1 << 16))
            sent += 1 << 16
        await asked.piece(b"", more=False)

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            wire.writer.write(request())
            await asyncio.sleep(0.2)
            assert sent < 32 << 20
            answer = await wire.answer()
            assert answer is not None
            assert len(answer[2]) == 50 << 20
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("way", ["cycle", "old", "long", "pipelined"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_caller_who_leaves_is_noticed(run: Run, way: str, when: str) -> None:
    voices: list[ResponseWriter] = []
    go_on, done = asyncio.Event(), asyncio.Event()

    async def tell(asked: AsgiRequest) -> None:
        await asked.body(1 << 20, 1 << 20)
        if when == "before":
            await go_on.wait()
        voice = asked.begin(200, [])
        voices.append(voice)
        for _ in range(200):  # whatever is said now does no harm
            voice.say(b"x" * 1000)
            await asyncio.sleep(0.001)
            if voice.disconnected:
                break
        voice.say(b"", more=False)
        await asked.said()
        done.set()

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS["cycle"] * 2 if way == "pipelined" else WAYS[way])
            if when == "during":
                await wire.reader.read(100)
            else:
                await asyncio.sleep(0.02)
            wire.writer.transport.abort()
            await asyncio.sleep(0.02)
            go_on.set()
            async with asyncio.timeout(2):
                await done.wait()
            assert voices[0].disconnected
            assert app.errors == []

    run(scenario())


def test_nothing_keeps_a_cycle_when_it_is_over(run: Run) -> None:
    async def scenario() -> None:
        async with serving(telling([b"!"])) as (app, connect):
            wire = await connect()
            for _ in range(3):
                wire.writer.write(request())
                await wire.answer()
            wire.writer.close()
            await asyncio.sleep(0.05)
            assert app.kinds == [Cycle] * 3
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

            pump = AsgiWriter(receive, send)
            pump.begin(200, [])
            pump.say(b"", more=False)
            with pytest.raises(RuntimeError) if told else contextlib.nullcontext():
                await pump.done()
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)

    run(scenario())
