"""A host with several addresses, some of which lead nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from knapcache.serve.upstream.client import Client
from knapcache.serve.upstream.connect import CONNECT_STAGGER, first_connected
from knapcache.serve.upstream.connection import Connection, Origin
from tests.support.scripted_server import OK, Run, ScriptedServer, respond_once, run, wait_until

__all__ = ["run"]


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port that answers nobody: whoever may wait to be let in does so already."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            asking = waiting.enter_context(socket.socket())
            asking.setblocking(False)
            asking.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@contextlib.contextmanager
def closed() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def attempt(client: Client, port: int) -> Callable[[], asyncio.Future[Connection]]:
    async def connect() -> Connection:
        made = functools.partial(Connection, client, Origin("127.0.0.1", port, False))
        return (await asyncio.get_running_loop().create_connection(made, "127.0.0.1", port))[1]

    return lambda: asyncio.ensure_future(connect())


def test_one_that_says_nothing_is_overtaken(run: Run) -> None:
    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = int(server.url.rpartition(":")[2])
            client = Client("fake", 5, 5)
            with silent() as nowhere:
                began = time.monotonic()
                connection = await first_connected([attempt(client, nowhere), attempt(client, port)])
                assert CONNECT_STAGGER * 0.9 <= time.monotonic() - began < 5
                assert connection.transport.get_extra_info("peername")[1] == port
                connection.transport.abort()

    run(scenario())


def test_one_that_refuses_is_passed_over_at_once(run: Run) -> None:
    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = int(server.url.rpartition(":")[2])
            client = Client("fake", 5, 5)
            with closed() as nobody:
                attempts = [attempt(client, nobody)] * 20 + [attempt(client, port)]
                began = time.monotonic()
                connection = await first_connected(attempts)
                assert time.monotonic() - began < 20 * CONNECT_STAGGER / 2
                connection.transport.abort()

    run(scenario())


def test_the_first_error_is_told_when_all_fail(run: Run) -> None:
    async def scenario() -> None:
        client = Client("fake", 5, 5)
        with closed() as nobody, pytest.raises(ConnectionRefusedError):
            await first_connected([attempt(client, nobody)] * 3)
        with pytest.raises(OSError, match="no address"):
            await first_connected([])

    run(scenario())


def test_whoever_comes_second_is_closed(run: Run) -> None:
    """Both get through, the first one late: nothing of the other is left."""
    came: list[Connection] = []

    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = int(server.url.rpartition(":")[2])
            client = Client("fake", 5, 5)

            async def slow() -> Connection:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(CONNECT_STAGGER + 0.2)
                found = await attempt(client, port)()
                came.append(found)
                return found

            first = await first_connected([slow, attempt(client, port)])
            assert not first.transport.is_closing()
            await wait_until(lambda: bool(came) and came[0].transport.is_closing())
            first.transport.abort()

    run(scenario())


def test_whoever_waits_and_is_cancelled_leaves_nothing(run: Run) -> None:
    async def scenario() -> None:
        client = Client("fake", 5, 5)
        with silent() as nowhere:
            task = asyncio.ensure_future(first_connected([attempt(client, nowhere)] * 3))
            await asyncio.sleep(CONNECT_STAGGER * 1.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.05)
            left = [other for other in asyncio.all_tasks() if other is not asyncio.current_task()]
            assert [other for other in left if "connect" in repr(other)] == []

    run(scenario())


def test_localhost_by_its_name(run: Run) -> None:
    """It has two addresses on most machines, and a server listens on one of them."""

    async def scenario() -> None:
        async with ScriptedServer(respond_once(OK)) as server:
            port = server.url.rpartition(":")[2]
            client = Client("fake", 5, 5)
            answer = await client.request("GET", f"http://localhost:{port}", "/", b"", None)
            assert answer.status == 200
            client.close()

    run(scenario())
