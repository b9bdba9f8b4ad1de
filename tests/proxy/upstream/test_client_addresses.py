"""Hosts with several addresses, some of which do not answer or refuse."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from knapcache.proxy.upstream.client import Client
from knapcache.proxy.upstream.connect import CONNECT_STAGGER, first_connected
from knapcache.proxy.upstream.connection import Connection, Origin
from tests.support.scripted_server import OK, Run, ScriptedServer, respond_once, run
from tests.support.timing import async_wait_until, check_seconds, within

__all__ = ["run"]


@contextlib.contextmanager
def unanswered_port() -> Iterator[int]:
    """A port whose backlog is full: connects to it are not answered."""
    with socket.socket() as full, contextlib.ExitStack() as backlog:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            client = backlog.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def attempt(client: Client, port: int) -> Callable[[], asyncio.Future[Connection]]:
    async def connect() -> Connection:
        new = functools.partial(Connection, client, Origin("127.0.0.1", port, False))
        return (await asyncio.get_running_loop().create_connection(new, "127.0.0.1", port))[1]

    return lambda: asyncio.ensure_future(connect())


def test_the_next_address_is_tried_beside_one_that_does_not_answer(run: Run) -> None:
    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = int(server.url.rpartition(":")[2])
            client = Client("fake", 60, 60)
            with unanswered_port() as unanswered:
                started = time.monotonic()
                connection = await first_connected([attempt(client, unanswered), attempt(client, port)])
                seconds = time.monotonic() - started
                assert seconds >= CONNECT_STAGGER * 0.9
                check_seconds(seconds, 30, "a connection to the second address")
                assert connection.transport.get_extra_info("peername")[1] == port
                connection.transport.abort()

    run(scenario())


def test_the_next_address_is_tried_at_once_after_a_refusal(run: Run) -> None:
    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = int(server.url.rpartition(":")[2])
            client = Client("fake", 5, 5)
            with refusing_port() as refusing:
                attempts = [attempt(client, refusing)] * 100 + [attempt(client, port)]
                with within(100 * CONNECT_STAGGER / 2, "a connection after 100 refusals"):
                    connection = await first_connected(attempts)
                connection.transport.abort()

    run(scenario())


def test_the_first_error_is_raised_when_all_fail(run: Run) -> None:
    async def scenario() -> None:
        client = Client("fake", 5, 5)
        with refusing_port() as refusing, pytest.raises(ConnectionRefusedError):
            await first_connected([attempt(client, refusing)] * 3)
        with pytest.raises(OSError, match="no address"):
            await first_connected([])

    run(scenario())


def test_the_slower_connection_is_closed(run: Run) -> None:
    late: list[Connection] = []

    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = int(server.url.rpartition(":")[2])
            client = Client("fake", 5, 5)

            async def slow() -> Connection:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(CONNECT_STAGGER + 0.2)
                found = await attempt(client, port)()
                late.append(found)
                return found

            first = await first_connected([slow, attempt(client, port)])
            assert not first.transport.is_closing()
            await async_wait_until(lambda: bool(late) and late[0].transport.is_closing())
            first.transport.abort()

    run(scenario())


def test_cancelling_leaves_no_task(run: Run) -> None:
    async def scenario() -> None:
        client = Client("fake", 5, 5)
        with unanswered_port() as unanswered:
            task = asyncio.ensure_future(first_connected([attempt(client, unanswered)] * 3))
            await asyncio.sleep(CONNECT_STAGGER * 1.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            def connecting() -> list[asyncio.Task[Any]]:
                rest = [other for other in asyncio.all_tasks() if other is not asyncio.current_task()]
                return [other for other in rest if "connect" in repr(other)]

            await async_wait_until(lambda: not connecting())

    run(scenario())


def test_localhost(run: Run) -> None:
    """Most machines have two addresses for it, and the server listens on one of them."""

    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = server.url.rpartition(":")[2]
            client = Client("fake", 5, 5)
            response = await client.request("GET", f"http://localhost:{port}", "/", b"", None)
            assert response.status == 200
            client.close()

    run(scenario())
