"""The flow to and from a provider: slow sides, uploads, ends that come early or late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.serve.upstream import connection
from knapcache.serve.upstream.connection import HIGH
from tests.support.scripted_server import OK, Run, Talk, forever, pair, run, until

__all__ = ["run"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends its connection does so by itself, not because nobody reads on."""
    monkeypatch.setattr(connection, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class Trouble(Exception):  # noqa: N818 - of the one who sends
    """An upload that cannot go on."""


# Slow sides.


@pytest.mark.parametrize("framed", ["length", "chunked", "to the end"])
def test_a_slow_reader_makes_the_sender_wait(run: Run, framed: str) -> None:
    size, piece = 50 << 20, random.Random(1).randbytes(1 << 16)
    sent = 0

    async def play(talk: Talk) -> None:
        nonlocal sent
        await talk.asked()
        said = {"length": b"content-length: %d\r\n" % size, "chunked": b"transfer-encoding: chunked\r\n"}
        await talk.say(HEAD + said.get(framed, b"") + b"\r\n")
        while sent < size:
            await talk.say(b"%x\r\n%b\r\n" % (len(piece), piece) if framed == "chunked" else piece)
            sent += len(piece)
        if framed == "chunked":
            await talk.say(b"0\r\n\r\n")
        if framed != "to the end":
            await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            response = await both.ask()
            read = most = 0
            async for got in response.pieces():
                if read < 8 << 20:  # slow at first
                    await asyncio.sleep(0.01)
                read += len(got)
                most = max(most, len(got), response._held)
                assert sent - read < 32 << 20  # what the sockets hold is much, but not all
            assert read == size
            assert most < HIGH + (1 << 20)
            await until(lambda: len(both.client) == (framed != "to the end"))

    run(scenario())


def test_a_slow_server_makes_the_upload_wait(run: Run) -> None:
    size, given, took = 50 << 20, 0, 0

    async def upload() -> AsyncIterator[bytes]:
        nonlocal given
        while given < size:
            given += 1 << 16
            yield bytes(1 << 16)

    async def play(talk: Talk) -> None:
        nonlocal took
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            got = await talk.reader.read(1 << 16)
            if took < 8 << 20:
                await asyncio.sleep(0.002)
            took += len(got)
            tail = (tail + got)[-10:]
            assert given - took < 32 << 20
        await talk.say(OK)
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            assert await both.get(method="POST", content=upload()) == (200, b"hi")
            assert given == size
            assert len(both.client) == 1

    run(scenario())


# Uploads.


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 16)
        await asyncio.sleep(0)


@pytest.mark.parametrize("content", ["pieces", "bytes"])
def test_an_answer_before_the_upload_is_over_ends_the_connection(run: Run, content: str) -> None:
    async def play(talk: Talk) -> None:
        await talk.reader.read(100)
        await talk.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!")
        await asyncio.sleep(0.1)  # reads no more
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            for count in (1, 2):
                body = endless() if content == "pieces" else bytes(30 << 20)
                assert await both.get(method="POST", content=body) == (413, b"no!")
                await until(lambda: not len(both.client))
                assert both.server.taken == count
            others = asyncio.all_tasks() - {asyncio.current_task()} - both.server.open
            await until(lambda: all(task.done() for task in others if "_send" in repr(task)))

    run(scenario())


def test_both_at_once(run: Run) -> None:
    """An answer that begins while its request is being sent, and ends after it."""
    halfway = asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        yield b"one"
        await halfway.wait()
        yield b"two"

    async def play(talk: Talk) -> None:
        while True:
            await talk.reader.readuntil(b"one\r\n")
            await talk.say(HEAD + b"content-length: 8\r\n\r\n", b"1st ")
            await talk.reader.readuntil(b"0\r\n\r\n")
            await talk.say(b"2nd!")

    async def scenario() -> None:
        async with pair(play) as both:
            for _ in range(3):
                halfway.clear()
                response = await both.ask(method="POST", content=upload())
                halfway.set()
                assert await response.read() == b"1st 2nd!"
                assert len(both.client) == both.server.taken == 1

    run(scenario())


@pytest.mark.parametrize("after", ["nothing", "head", "some"])
def test_an_upload_that_fails(run: Run, after: str) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.02)
        raise Trouble

    async def play(talk: Talk) -> None:
        await talk.reader.read(100)
        if after != "nothing":
            await talk.say(CHUNKED, b"2\r\nhi\r\n" if after == "some" else b"")
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            with pytest.raises(Trouble):
                await both.get(method="POST", content=upload())
            await until(lambda: not len(both.client))
            await until(lambda: not both.server.open)

    run(scenario())


@pytest.mark.parametrize("said", [2, 5, 7])
def test_an_upload_of_another_length_than_was_said(run: Run, said: int) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"two"
        yield b"two"

    async def play(talk: Talk) -> None:
        await talk.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await talk.say(OK)  # does not care; but the next request would begin in the middle of this one
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            with pytest.raises(ValueError, match="as long as"):
                await both.get(method="POST", content=upload(), headers=[("content-length", str(said))])
            await until(lambda: not len(both.client))

    run(scenario())


def test_an_upload_that_nobody_reads(run: Run) -> None:
    async def scenario() -> None:
        async def play(_: Talk) -> None:
            await asyncio.sleep(1)

        async with pair(play, timeout=0.1) as both:
            with pytest.raises(UpstreamFailed, match="in time"):
                await both.get(method="POST", content=endless())
            await until(lambda: not len(both.client))
            await asyncio.sleep(0.01)
            assert not [task for task in asyncio.all_tasks() if "_send" in repr(task.get_coro())]

    run(scenario())


# Ends.


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", CHUNKED, CHUNKED + b"2\r\nhi\r\n"])
def test_whoever_is_called_away_leaves_nothing(run: Run, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.05)

    async def play(talk: Talk) -> None:
        await talk.asked()
        await talk.say(said)
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            task = asyncio.create_task(both.get())
            await asyncio.sleep(0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not len(both.client))
            await until(lambda: not both.server.open)

    run(scenario())


def test_called_away_at_any_moment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.05)

    async def scenario() -> None:
        async with pair(forever(HEAD, b"content-length: 4\r\n\r\n", b"ab", b"cd")) as both:
            for moment in range(60):
                task = asyncio.create_task(both.get())
                for _ in range(moment):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.result() == (200, b"abcd")
                assert await both.get() == (200, b"abcd")
            await until(lambda: len(both.client) <= 2)

    run(scenario())


@pytest.mark.parametrize("comes", ["in time", "late", "never", "with more"])
def test_an_end_that_is_still_on_its_way(run: Run, comes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.1)

    async def play(talk: Talk) -> None:
        while (await talk.asked()).target == "/":
            await talk.say(CHUNKED + b"6\r\n[DONE]\r\n")
            await asyncio.sleep(0.25 if comes == "late" else 0.03)
            if comes != "never":
                await talk.say(b"0\r\n\r\n" + (b"x" if comes == "with more" else b""))
        await talk.say(OK)
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            response = await both.ask()
            async for piece in response.pieces():
                assert piece == b"[DONE]"
                break
            await response.close()
            await response.close()
            assert len(both.client) == 1  # for now
            assert not both.client._idle
            await asyncio.sleep(0.18)
            assert len(both.client) == (comes == "in time")
            assert await both.get("/other") == (200, b"hi")
            assert both.server.taken == (1 if comes == "in time" else 2)
            await asyncio.sleep(0.1)  # what was set to end the first exchange leaves the second one alone
            assert len(both.client) == 1

    run(scenario())


def test_an_end_that_lies_behind_too_much_is_not_waited_for(run: Run) -> None:
    async def play(talk: Talk) -> None:
        await talk.asked()
        await talk.say(HEAD + b"content-length: 90000000\r\n\r\n", *[bytes(1 << 18)] * 20)
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            response = await both.ask()
            await until(lambda: response._paused)
            await response.close()
            await until(lambda: not len(both.client))

    run(scenario())
