"""The flow to and from a provider: slow sides, uploads, ends that come early or late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.serve.upstream import response as response_module
from knapcache.serve.upstream.response import HIGH_WATER
from tests.support.scripted_server import OK, Run, ServerConnection, client_harness, respond_always, run, wait_until

__all__ = ["run"]


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends its connection does so by itself, not because nobody reads on."""
    monkeypatch.setattr(response_module, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class Trouble(Exception):  # noqa: N818 - of the one who sends
    """An upload that cannot go on."""


# Slow sides.


@pytest.mark.parametrize("framed", ["length", "chunked", "to the end"])
def test_a_slow_reader_makes_the_sender_wait(run: Run, framed: str) -> None:
    size, piece = 50 << 20, random.Random(1).randbytes(1 << 16)
    sent = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        await connection.read_request()
        said = {"length": b"content-length: %d\r\n" % size, "chunked": b"transfer-encoding: chunked\r\n"}
        await connection.send(HEAD + said.get(framed, b"") + b"\r\n")
        while sent < size:
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if framed == "chunked" else piece)
            sent += len(piece)
        if framed == "chunked":
            await connection.send(b"0\r\n\r\n")
        if framed != "to the end":
            await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            response = await harness.request()
            read = most = 0
            async for got in response.iter_bytes():
                if read < 8 << 20:  # slow at first
                    await asyncio.sleep(0.01)
                read += len(got)
                most = max(most, len(got), response._buffered)
                assert sent - read < 32 << 20  # what the sockets hold is much, but not all
            assert read == size
            assert most < HIGH_WATER + (1 << 20)
            await wait_until(lambda: len(harness.client) == (framed != "to the end"))

    run(scenario())


def test_a_slow_server_makes_the_upload_wait(run: Run) -> None:
    size, given, took = 50 << 20, 0, 0

    async def upload() -> AsyncIterator[bytes]:
        nonlocal given
        while given < size:
            given += 1 << 16
            yield bytes(1 << 16)

    async def script(connection: ServerConnection) -> None:
        nonlocal took
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            got = await connection.reader.read(1 << 16)
            if took < 8 << 20:
                await asyncio.sleep(0.002)
            took += len(got)
            tail = (tail + got)[-10:]
            assert given - took < 32 << 20
        await connection.send(OK)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            assert await harness.get(method="POST", content=upload()) == (200, b"hi")
            assert given == size
            assert len(harness.client) == 1

    run(scenario())


# Uploads.


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 16)
        await asyncio.sleep(0)


@pytest.mark.parametrize("content", ["pieces", "bytes"])
def test_an_answer_before_the_upload_is_over_ends_the_connection(run: Run, content: str) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.reader.read(100)
        await connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!")
        await asyncio.sleep(0.1)  # reads no more
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            for count in (1, 2):
                body = endless() if content == "pieces" else bytes(30 << 20)
                assert await harness.get(method="POST", content=body) == (413, b"no!")
                await wait_until(lambda: not len(harness.client))
                assert harness.server.accepted == count
            others = asyncio.all_tasks() - {asyncio.current_task()} - harness.server.open
            await wait_until(lambda: all(task.done() for task in others if "_send_body" in repr(task)))

    run(scenario())


def test_both_at_once(run: Run) -> None:
    """An answer that begins while its request is being sent, and ends after it."""
    halfway = asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        yield b"one"
        await halfway.wait()
        yield b"two"

    async def script(connection: ServerConnection) -> None:
        while True:
            await connection.reader.readuntil(b"one\r\n")
            await connection.send(HEAD + b"content-length: 8\r\n\r\n", b"1st ")
            await connection.reader.readuntil(b"0\r\n\r\n")
            await connection.send(b"2nd!")

    async def scenario() -> None:
        async with client_harness(script) as harness:
            for _ in range(3):
                halfway.clear()
                response = await harness.request(method="POST", content=upload())
                halfway.set()
                assert await response.read() == b"1st 2nd!"
                assert len(harness.client) == harness.server.accepted == 1

    run(scenario())


@pytest.mark.parametrize("after", ["nothing", "head", "some"])
def test_an_upload_that_fails(run: Run, after: str) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.02)
        raise Trouble

    async def script(connection: ServerConnection) -> None:
        await connection.reader.read(100)
        if after != "nothing":
            await connection.send(CHUNKED, b"2\r\nhi\r\n" if after == "some" else b"")
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            with pytest.raises(Trouble):
                await harness.get(method="POST", content=upload())
            await wait_until(lambda: not len(harness.client))
            await wait_until(lambda: not harness.server.open)

    run(scenario())


@pytest.mark.parametrize("said", [2, 5, 7])
def test_an_upload_of_another_length_than_was_said(run: Run, said: int) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"two"
        yield b"two"

    async def script(connection: ServerConnection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(OK)  # does not care; but the next request would begin in the middle of this one
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            with pytest.raises(ValueError, match="as long as"):
                await harness.get(method="POST", content=upload(), headers=[("content-length", str(said))])
            await wait_until(lambda: not len(harness.client))

    run(scenario())


def test_an_upload_that_nobody_reads(run: Run) -> None:
    async def scenario() -> None:
        async def script(_: ServerConnection) -> None:
            await asyncio.sleep(1)

        async with client_harness(script, idle_timeout=0.1) as harness:
            with pytest.raises(UpstreamFailed, match="in time"):
                await harness.get(method="POST", content=endless())
            await wait_until(lambda: not len(harness.client))
            await asyncio.sleep(0.01)
            assert not [task for task in asyncio.all_tasks() if "_send_body" in repr(task.get_coro())]

    run(scenario())


# Ends.


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", CHUNKED, CHUNKED + b"2\r\nhi\r\n"])
def test_whoever_is_called_away_leaves_nothing(run: Run, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "LINGER", 0.05)

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(said)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            task = asyncio.create_task(harness.get())
            await asyncio.sleep(0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await wait_until(lambda: not len(harness.client))
            await wait_until(lambda: not harness.server.open)

    run(scenario())


def test_called_away_at_any_moment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "LINGER", 0.05)

    async def scenario() -> None:
        async with client_harness(respond_always(HEAD, b"content-length: 4\r\n\r\n", b"ab", b"cd")) as harness:
            for moment in range(60):
                task = asyncio.create_task(harness.get())
                for _ in range(moment):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.result() == (200, b"abcd")
                assert await harness.get() == (200, b"abcd")
            await wait_until(lambda: len(harness.client) <= 2)

    run(scenario())


@pytest.mark.parametrize("comes", ["in time", "late", "never", "with more"])
def test_an_end_that_is_still_on_its_way(run: Run, comes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "LINGER", 0.1)

    async def script(connection: ServerConnection) -> None:
        while (await connection.read_request()).target == "/":
            await connection.send(CHUNKED + b"6\r\n[DONE]\r\n")
            await asyncio.sleep(0.25 if comes == "late" else 0.03)
            if comes != "never":
                await connection.send(b"0\r\n\r\n" + (b"x" if comes == "with more" else b""))
        await connection.send(OK)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            response = await harness.request()
            async for piece in response.iter_bytes():
                assert piece == b"[DONE]"
                break
            await response.close()
            await response.close()
            assert len(harness.client) == 1  # for now
            assert not harness.client._idle
            await asyncio.sleep(0.18)
            assert len(harness.client) == (comes == "in time")
            assert await harness.get("/other") == (200, b"hi")
            assert harness.server.accepted == (1 if comes == "in time" else 2)
            await asyncio.sleep(0.1)  # what was set to end the first exchange leaves the second one alone
            assert len(harness.client) == 1

    run(scenario())


def test_an_end_that_lies_behind_too_much_is_not_waited_for(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(HEAD + b"content-length: 90000000\r\n\r\n", *[bytes(1 << 18)] * 20)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            response = await harness.request()
            await wait_until(lambda: response._reading_paused)
            await response.close()
            await wait_until(lambda: not len(harness.client))

    run(scenario())
