"""Responses to clients that read slowly or disconnect, and what remains in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from asyncio import sslproto
from typing import Any

import pytest

from knapcache.proxy.http.asgi_request import MAX_UNREAD, AsgiRequest, AsgiWriter, ResponseWriter
from knapcache.proxy.http.fast_path import MAX_LENGTH
from knapcache.proxy.http.uvicorn_protocol import RequestCycle
from tests.support.asgi_server import echo_and_write, post, serving
from tests.support.scripted_server import Run, run
from tests.support.timing import async_wait_until

__all__ = ["run"]

REQUESTS = {
    "cycle": post(b"question"),
    "long": post(b"question" + b"." * (MAX_LENGTH + 1)),
    "old": post(b"question", version="1.0"),
}


@pytest.mark.parametrize("kind", ["cycle", "old"])
def test_a_slow_client_gets_everything(run: Run, kind: str) -> None:
    pieces = [b"%06d" % k * 5000 for k in range(400)]  # 12 MB

    async def scenario() -> None:
        async with serving(echo_and_write(pieces)) as (app, connect):
            connection = await connect()
            connection.writer.write(REQUESTS[kind])
            await asyncio.sleep(0.1)
            response = await connection.response()
            assert response is not None
            assert response[2] == b"question" + b"".join(pieces)
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("kind", ["cycle", "old"])
def test_a_client_that_reads_nothing_is_disconnected(run: Run, kind: str) -> None:
    written = 0

    async def respond(request: AsgiRequest) -> None:
        nonlocal written
        await request.read_body(100, 100)
        writer = request.open_writer(200, [])
        while not writer.disconnected and written < 4 * MAX_UNREAD:
            writer.write(bytes(1 << 20))
            written += 1 << 20
            await asyncio.sleep(0)
        await request.drain()

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection = await connect()
            connection.writer.write(REQUESTS[kind])
            await async_wait_until(lambda: bool(app.cycles) and written > MAX_UNREAD)
            await asyncio.sleep(0.3)
            assert written < 2 * MAX_UNREAD
            assert app.errors == []

    run(scenario())


def test_send_waits_for_a_slow_client(run: Run) -> None:
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


@pytest.mark.parametrize("kind", ["cycle", "old", "long", "pipelined"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_disconnect_is_noticed(run: Run, kind: str, when: str) -> None:
    writers: list[ResponseWriter] = []
    proceed, done = asyncio.Event(), asyncio.Event()

    async def respond(request: AsgiRequest) -> None:
        await request.read_body(1 << 20, 1 << 20)
        if when == "before":
            await proceed.wait()
        writer = request.open_writer(200, [])
        writers.append(writer)
        for _ in range(200):  # writes after the disconnect do no harm
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
            connection.writer.write(REQUESTS["cycle"] * 2 if kind == "pipelined" else REQUESTS[kind])
            if when == "during":
                await connection.reader.read(100)
            else:
                await asyncio.sleep(0.02)
            connection.writer.transport.abort()
            await asyncio.sleep(0.02)
            proceed.set()
            await async_wait_until(done.is_set)
            assert writers[0].disconnected
            assert app.errors == []

    run(scenario())


def test_a_finished_cycle_is_freed_without_the_collector(run: Run) -> None:
    async def scenario() -> None:
        async with serving(echo_and_write([b"!"])) as (app, connect):
            connection = await connect()
            for _ in range(3):
                connection.writer.write(post())
                await connection.response()
            connection.writer.close()
            await async_wait_until(lambda: [cycle() for cycle in app.cycles] == [None] * 3)
            assert app.cycle_types == [RequestCycle] * 3

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


def test_drain_raises_what_send_raised_unless_the_client_is_gone(run: Run) -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    async def scenario() -> None:
        for error, raises in ((RuntimeError("no"), True), (OSError("gone"), False)):

            async def send(_: Any, error: Exception = error) -> None:
                raise error

            writer = AsgiWriter(receive, send)
            writer.start(200, [])
            writer.write(b"", more=False)
            with pytest.raises(RuntimeError) if raises else contextlib.nullcontext():
                await writer.drain()
        await async_wait_until(lambda: len(asyncio.all_tasks()) == 1)

    run(scenario())


def test_a_tls_transport_of_asyncio_that_was_closed_twice_is_a_disconnect() -> None:
    """After the client's end of TLS, uvicorn closes it again: then it has no buffer, and raises for most methods."""
    protocol: Any = None
    transport: Any = sslproto._SSLProtocolTransport(protocol, protocol)
    transport._closed = True
    transport.close()
    cycle: Any = object.__new__(RequestCycle)
    cycle.transport, cycle.disconnected = transport, False
    with pytest.raises(AttributeError):
        transport.get_write_buffer_size()
    assert cycle._check_disconnected()
