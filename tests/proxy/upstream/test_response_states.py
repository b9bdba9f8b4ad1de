"""The table of transitions in response.py, row by row, and the limits that cause some of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.upstream import Response
from knapcache.proxy.upstream import response as response_module
from knapcache.proxy.upstream.connection import MAX_INFORMATIONAL, Connection, Origin
from knapcache.proxy.upstream.response import ExchangeState
from tests.support.scripted_server import (
    OK,
    ClientHarness,
    Run,
    ServerConnection,
    client_harness,
    respond_always,
    respond_once,
    run,
    send_and_stall,
)
from tests.support.timing import async_wait_until, within

__all__ = ["run"]

HEAD = b"HTTP/1.1 200 OK\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


def current(harness: ClientHarness) -> Response:
    """The only exchange in progress."""
    (connection,) = harness.client._open
    assert isinstance(connection.response, Response)
    return connection.response


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        (b"", ExchangeState.AWAITING_RESPONSE),
        (b"H", ExchangeState.READING_HEAD),
        (EARLY_HINTS, ExchangeState.READING_HEAD),
        (HEAD + b"content-length: 2\r\n", ExchangeState.READING_HEAD),
        (HEAD + b"content-length: 2\r\n\r\n", ExchangeState.READING_BODY),
        (HEAD + b"\r\n", ExchangeState.READING_BODY),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_states_before_the_end(run: Run, sent: bytes, state: ExchangeState, lost: bool) -> None:
    """A lost connection fails the exchange, except that it ends a body without a length."""
    end = asyncio.Event()

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(sent)
        await end.wait()

    async def scenario() -> None:
        async with client_harness(script) as harness:
            task = asyncio.create_task(harness.request())
            await async_wait_until(lambda: bool(harness.client._open))
            response = current(harness)
            await async_wait_until(lambda: response.state is state)
            if lost:
                end.set()
                ended_by_close = sent.endswith(b"OK\r\n\r\n")
                await async_wait_until(
                    lambda: response.state is (ExchangeState.COMPLETE if ended_by_close else ExchangeState.FAILED)
                )
                assert response.safe_to_retry == (state is ExchangeState.AWAITING_RESPONSE)
                await asyncio.wait([task])
            elif response.status:
                await task
                response.abort()
                assert response.state is ExchangeState.CLOSED
                with pytest.raises(UpstreamFailed):
                    await response.read()
            else:
                await cancel(task)
                assert response.state is ExchangeState.CLOSED
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_nothing_keeps_a_response_that_was_read(run: Run) -> None:
    """A timer that is left would keep it, and its body, until the idle timeout."""

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(HEAD + b"content-length: 2\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(b"ok")
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script, idle_timeout=60) as harness:
            await (await harness.request()).read()
            gc.collect()
            assert not [found for found in gc.get_objects() if isinstance(found, Response)]

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "method", "reused"),
    [
        (OK, "GET", True),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", "GET", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "GET", True),
        (EARLY_HINTS * MAX_INFORMATIONAL + OK, "GET", True),
        (HEAD + b"content-length: 2\r\n\r\n", "HEAD", False),
        (HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", "GET", False),
        (OK + OK, "GET", False),
        (OK + b"x", "GET", False),
    ],
)
def test_complete_responses(run: Run, sent: bytes, method: str, reused: bool) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(sent)) as harness:
            response = await harness.request(method=method)
            await response.read()
            assert response.state is ExchangeState.COMPLETE
            await async_wait_until(lambda: len(harness.client) == reused)

    run(scenario())


@pytest.mark.parametrize("count", [MAX_INFORMATIONAL + 1, 10_000])
def test_informational_responses_are_bounded(run: Run, count: int) -> None:
    async def scenario() -> None:
        async with client_harness(respond_once(*[EARLY_HINTS] * count)) as harness:
            with pytest.raises(UpstreamFailed) as caught:
                await harness.get()
            assert (caught.value.status, caught.value.safe_to_retry) == (502, False)
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_a_reader_is_woken_when_its_response_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_module, "LINGER", 0.01)

    async def scenario() -> None:
        async with client_harness(send_and_stall(HEAD + b"content-length: 9\r\n\r\n")) as harness:
            response = await harness.request()
            reader = asyncio.create_task(response.read())
            await asyncio.sleep(0)
            await response.close()
            with pytest.raises(UpstreamFailed, match="connection closed"):
                await reader
            assert response.state is ExchangeState.CLOSED

    run(scenario())


# The total timeout.


async def trickle(connection: ServerConnection) -> None:
    """One byte every 10 ms, without end: the idle timeout never expires."""
    await connection.read_request()
    await connection.send(HEAD + b"\r\n")
    while True:
        await connection.send(b"x")
        await asyncio.sleep(0.01)


def test_the_total_timeout_ends_a_body_that_trickles(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(trickle, idle_timeout=5, total_timeout=0.5) as harness:
            response = await harness.request()
            with pytest.raises(UpstreamFailed, match=r"timeout: the answer was not complete after 0\.5 s") as caught:
                await response.read()
            assert (caught.value.status, caught.value.safe_to_retry) == (504, False)
            assert response.state is ExchangeState.FAILED
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_the_total_timeout_ends_a_body_that_is_not_read(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(trickle, idle_timeout=5, total_timeout=0.5) as harness:
            response = await harness.request()
            await async_wait_until(lambda: response.state is ExchangeState.FAILED)
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_the_total_timeout_covers_the_wait_for_the_head(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(send_and_stall(b""), idle_timeout=5, total_timeout=0.05) as harness:
            with pytest.raises(UpstreamFailed, match="timeout: ") as caught:
                await harness.get()
            assert (caught.value.status, caught.value.safe_to_retry) == (504, True)

    run(scenario())


def test_the_total_timeout_covers_the_upload(run: Run) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.01)

    async def script(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async def scenario() -> None:
        async with client_harness(script, idle_timeout=5, total_timeout=0.1) as harness:
            with pytest.raises(UpstreamFailed, match="timeout: "):
                await harness.get(method="POST", content=endless())
            await async_wait_until(lambda: not len(harness.client))

    run(scenario())


def test_the_total_timeout_covers_connecting(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK), total_timeout=0.05) as harness:

            async def slow(origin: Origin) -> Connection:
                await asyncio.sleep(5)
                raise AssertionError(origin)

            harness.client._connect = slow  # type: ignore[method-assign]
            with pytest.raises(UpstreamFailed, match=r"timeout: no connection after 0\.05 s") as caught:
                await harness.get()
            assert (caught.value.status, caught.value.safe_to_retry) == (504, True)

    run(scenario())


def test_the_total_timeout_of_one_request_leaves_the_next_one_alone(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK), total_timeout=0.5) as harness:
            for _ in range(6):
                with within(0.4, "a request"):
                    assert await harness.get() == (200, b"hi")
                await asyncio.sleep(0.12)
            assert harness.server.accepted == 1

    run(scenario())


@pytest.mark.parametrize("whole", [False, True])
def test_waiting_for_the_body_keeps_it(run: Run, whole: bool) -> None:
    async def scenario() -> None:
        sent = HEAD + b"content-length: 4\r\n\r\n"
        async with client_harness(respond_once(sent, b"ab", b"cd")) as harness:
            response = await harness.request()
            await response.wait_for_body(whole=whole)
            assert (response.state is ExchangeState.COMPLETE) or not whole
            assert await response.read() == b"abcd"
        async with client_harness(respond_once(sent, b"ab")) as harness:
            response = await harness.request()
            if whole:
                with pytest.raises(UpstreamFailed, match="before the answer was complete"):
                    await response.wait_for_body(whole=True)
            else:
                await response.wait_for_body(whole=False)
        async with client_harness(respond_once(sent)) as harness:
            response = await harness.request()
            with pytest.raises(UpstreamFailed, match="before the answer was complete"):
                await response.wait_for_body(whole=whole)

    run(scenario())


def test_waiting_for_the_whole_body_ends_where_reading_pauses(run: Run) -> None:
    async def scenario() -> None:
        size = 4 * response_module.HIGH_WATER
        async with client_harness(respond_once(HEAD + b"content-length: %d\r\n\r\n" % size, b"x" * size)) as harness:
            response = await harness.request()
            await response.wait_for_body(whole=True)
            assert response.state is ExchangeState.READING_BODY
            assert len(await response.read()) == size

    run(scenario())
