"""Flow control, uploads, cancellation, and responses that end early or late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.upstream import response as response_module
from knapcache.proxy.upstream.response import HIGH_WATER
from tests.support.scripted_server import OK, Run, ServerConnection, client_harness, respond_always, run
from tests.support.timing import async_wait_until

__all__ = ["run"]


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that close do so for their own reason, not because of LINGER."""
    monkeypatch.setattr(response_module, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class ContentError(Exception):
    """Raised by the content of a request."""


# Backpressure.


@pytest.mark.parametrize("framing", ["length", "chunked", "until close"])
def test_a_slow_reader_pauses_the_server(run: Run, framing: str) -> None:
    size, piece = 50 << 20, random.Random(1).randbytes(1 << 16)
    sent = 0

    async def script(connection: ServerConnection) -> None:
        nonlocal sent
        await connection.read_request()
        headers = {"length": b"content-length: %d\r\n" % size, "chunked": b"transfer-encoding: chunked\r\n"}
        await connection.send(HEAD + headers.get(framing, b"") + b"\r\n")
        while sent < size:
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" else piece)
            sent += len(piece)
        if framing == "chunked":
            await connection.send(b"0\r\n\r\n")
        if framing != "until close":
            await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            response = await harness.request()
            read = largest = 0
            async for chunk in response.iter_bytes():
                if read < 8 << 20:  # slow at first
                    await asyncio.sleep(0.01)
                read += len(chunk)
                largest = max(largest, len(chunk), response._body.size)
                assert sent - read < 32 << 20  # socket buffers hold the difference
            assert read == size
            assert largest < HIGH_WATER + (1 << 20)
            await async_wait_until(lambda: len(harness.client) == (framing != "until close"))

    run(scenario())


def test_a_slow_server_pauses_the_upload(run: Run) -> None:
    size, produced, received = 50 << 20, 0, 0

    async def upload() -> AsyncIterator[bytes]:
        nonlocal produced
        while produced < size:
            produced += 1 << 16
            yield bytes(1 << 16)

    async def script(connection: ServerConnection) -> None:
        nonlocal received
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await connection.reader.read(1 << 16)
            if received < 8 << 20:
                await asyncio.sleep(0.002)
            received += len(data)
            tail = (tail + data)[-10:]
            assert produced - received < 32 << 20
        await connection.send(OK)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            assert await harness.get(method="POST", content=upload()) == (200, b"hi")
            assert produced == size
            assert len(harness.client) == 1

    run(scenario())


# Uploads.


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 16)
        await asyncio.sleep(0)


@pytest.mark.parametrize("content", ["iterator", "bytes"])
def test_a_response_before_the_end_of_the_upload_closes_the_connection(run: Run, content: str) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.reader.read(100)
        await connection.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nno!")
        await asyncio.sleep(0.1)  # without reading on
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            for count in (1, 2):
                body = endless() if content == "iterator" else bytes(30 << 20)
                assert await harness.get(method="POST", content=body) == (413, b"no!")
                await async_wait_until(lambda: not len(harness.client))
                assert harness.server.accepted == count
            others = asyncio.all_tasks() - {asyncio.current_task()} - harness.server.open
            await async_wait_until(lambda: all(task.done() for task in others if "_send_body" in repr(task)))

    run(scenario())


def test_a_response_that_begins_during_the_upload_and_ends_after_it(run: Run) -> None:
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
def test_an_error_in_the_content_is_raised(run: Run, after: str) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0.02)
        raise ContentError

    async def script(connection: ServerConnection) -> None:
        await connection.reader.read(100)
        if after != "nothing":
            await connection.send(CHUNKED, b"2\r\nhi\r\n" if after == "some" else b"")
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            with pytest.raises(ContentError):
                await harness.get(method="POST", content=upload())
            await async_wait_until(lambda: not len(harness.client))
            await async_wait_until(lambda: not harness.server.open)

    run(scenario())


@pytest.mark.parametrize("length", [2, 5, 7])
def test_content_of_another_length_than_announced_fails(run: Run, length: int) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"two"
        yield b"two"

    async def script(connection: ServerConnection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(OK)  # accepted, but the next request would start inside this body
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            with pytest.raises(ValueError, match="as long as"):
                await harness.get(method="POST", content=upload(), headers=[("content-length", str(length))])
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_an_upload_that_the_server_does_not_read(run: Run) -> None:
    async def scenario() -> None:
        async def script(_: ServerConnection) -> None:
            await asyncio.sleep(1)

        async with client_harness(script, idle_timeout=0.1) as harness:
            with pytest.raises(UpstreamFailed, match="timeout: "):
                await harness.get(method="POST", content=endless())
            await async_wait_until(lambda: not len(harness.client))
            await async_wait_until(
                lambda: not [task for task in asyncio.all_tasks() if "_send_body" in repr(task.get_coro())]
            )

    run(scenario())


# Cancellation and close.


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 2", CHUNKED, CHUNKED + b"2\r\nhi\r\n"])
def test_cancelling_closes_the_connection(run: Run, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "LINGER", 0.05)

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(sent)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            task = asyncio.create_task(harness.get())
            await asyncio.sleep(0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await async_wait_until(lambda: not len(harness.client))
            await async_wait_until(lambda: not harness.server.open)

    run(scenario())


def test_cancelling_at_every_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "LINGER", 0.05)

    async def scenario() -> None:
        async with client_harness(respond_always(HEAD, b"content-length: 4\r\n\r\n", b"ab", b"cd")) as harness:
            for steps in range(60):
                task = asyncio.create_task(harness.get())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.result() == (200, b"abcd")
                assert await harness.get() == (200, b"abcd")
            await async_wait_until(lambda: len(harness.client) <= 2)

    run(scenario())


@pytest.mark.parametrize("end", ["in time", "late", "never", "with surplus"])
def test_a_closed_response_may_end_within_linger_seconds(run: Run, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Either the end comes long before the time is over, or long after it.
    in_time = end in ("in time", "with surplus")
    monkeypatch.setattr(response_module, "LINGER", 20.0 if in_time else 0.1)

    async def script(connection: ServerConnection) -> None:
        while (await connection.read_request()).target == "/":
            await connection.send(CHUNKED + b"6\r\n[DONE]\r\n")
            await asyncio.sleep(0.5 if end == "late" else 0.03)
            if end != "never":
                await connection.send(b"0\r\n\r\n" + (b"x" if end == "with surplus" else b""))
        await connection.send(OK)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            response = await harness.request()
            async for chunk in response.iter_bytes():
                assert chunk == b"[DONE]"
                break
            await response.close()
            await response.close()
            assert len(harness.client) == 1  # lingers
            assert not harness.client._idle
            await async_wait_until(lambda: bool(harness.client._idle) if end == "in time" else not len(harness.client))
            assert len(harness.client) == (end == "in time")
            assert await harness.get("/other") == (200, b"hi")
            assert harness.server.accepted == (1 if end == "in time" else 2)
            await asyncio.sleep(0.1)  # the timer of the first response leaves the second one alone
            assert len(harness.client) == 1

    run(scenario())


def test_close_does_not_wait_for_a_response_that_is_paused(run: Run) -> None:
    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(HEAD + b"content-length: 90000000\r\n\r\n", *[bytes(1 << 18)] * 20)
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            response = await harness.request()
            await async_wait_until(lambda: response._body.paused)
            await response.close()
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())
