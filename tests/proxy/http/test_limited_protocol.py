"""Limits of a connection that the application does not see."""

from __future__ import annotations

import asyncio

import pytest

from knapcache.proxy.http.asgi_request import AsgiRequest
from knapcache.proxy.http.limited_protocol import MAX_PIPELINED
from tests.support.asgi_server import post, serving
from tests.support.scripted_server import Run, run
from tests.support.timing import async_wait_until

__all__ = ["run"]


@pytest.mark.parametrize("excess", [0, 1])
def test_a_connection_is_closed_after_the_responses_if_too_many_requests_wait(run: Run, excess: int) -> None:
    """All requests arrive in one read, while the first one is served."""

    async def scenario() -> None:
        gate = asyncio.Event()

        async def respond(request: AsgiRequest) -> None:
            await gate.wait()
            await request.respond(200, [], await request.read_body(100, 100))

        async with serving(respond) as (app, connect):
            connection = await connect()
            connection.writer.write(b"".join(post(b"%d" % k) for k in range(1 + MAX_PIPELINED + excess)))
            await async_wait_until(lambda: app.cycles)
            gate.set()
            for k in range(1 + MAX_PIPELINED):
                assert (await connection.response() or (0, [], b""))[2] == b"%d" % k
            if excess:
                assert await connection.is_closed()
            else:
                connection.writer.write(post(b"again"))
                assert (await connection.response() or (0, [], b""))[2] == b"again"
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("excess", [0, 1])
def test_a_body_that_is_announced_as_too_large_is_refused_before_it_arrives(run: Run, excess: int) -> None:
    async def respond(request: AsgiRequest) -> None:
        await request.respond(200, [], b"")

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            connection, length = await connect(), app.connections.max_body + excess
            connection.writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length)
            async with asyncio.timeout(60):
                response = await connection.response()
            assert response is not None
            assert response[0] == (413 if excess else 200)

    run(scenario())


def test_a_connection_that_the_client_closes_is_forgotten(run: Run) -> None:
    async def respond(request: AsgiRequest) -> None:
        await request.respond(200, [], b"")

    async def scenario() -> None:
        async with serving(respond) as (app, connect):
            for _ in range(2):
                connection = await connect()
                connection.writer.write(post(b""))
                assert await connection.response() is not None
                assert len(app.connections._open) == 1
                connection.writer.close()
                await async_wait_until(lambda: not app.connections._open)
            app.connections.check()

    run(scenario())
