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
