"""A server that says what it is told, byte by byte; a judge of HTTP (h11); both event loops that the proxy runs on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Self

import h11
import pytest

from knapcache.serve.upstream import Client, Response, encode_headers

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario on either loop, no longer than it may take."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await scenario

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run


class ReceivedRequest(NamedTuple):
    """A request as h11 has read it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class ServerConnection:
    """One connection, on the side of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._judge = h11.Connection(h11.SERVER)

    async def read_request(self) -> ReceivedRequest:
        """The next request, all of it."""
        head: Any = await self._next()
        body = b""
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
        headers = {name.decode(): value.decode() for name, value in head.headers}
        self._judge = h11.Connection(h11.SERVER)  # what was sent ahead of its time is in nobody's interest here
        return ReceivedRequest(head.method.decode(), head.target.decode(), headers, body)

    async def _next(self) -> Any:
        while (event := self._judge.next_event()) is h11.NEED_DATA:
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionError
            self._judge.receive_data(data)
        return event

    async def send(self, *pieces: bytes) -> None:
        """Each on its own: the other side has read one before the next is sent."""
        for k, piece in enumerate(pieces):
            if k:
                for _ in range(3):
                    await asyncio.sleep(0)
            self.writer.write(piece)
            await self.writer.drain()

    def reset(self) -> None:
        """Break off, as a machine does that has gone."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def wait_closed(self) -> None:
        """Until the other side has left; whatever it still says is thrown away."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass


Script = Callable[[ServerConnection], Awaitable[None]]


class ScriptedServer:
    """The server. taken: connections so far; open: those that stand."""

    def __init__(self, script: Script, host: str = "127.0.0.1", **options: Any) -> None:
        self._play, self._host, self._options = script, host, options
        self.accepted = 0
        self.open: set[asyncio.Task[Any]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self.open.add(task)
        try:
            await self._play(ServerConnection(reader, writer))
        except (OSError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass
        except RuntimeError:  # in these words uvloop says that a connection is closed
            assert writer.is_closing()
        finally:
            self.open.discard(task)
            writer.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        scheme = "https" if "ssl" in self._options else "http"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, **self._options)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self.open):
            task.cancel()
        await wait_until(lambda: not self.open)


async def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for it; it must come."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.002)


class ClientHarness(NamedTuple):
    """A client and the server that it asks."""

    client: Client
    server: ScriptedServer

    async def request(self, path: str = "/", method: str = "GET", content: Any = None, **more: Any) -> Response:
        """The head of an answer."""
        said = encode_headers([("x-test", "1"), *more.pop("headers", [])])
        return await self.client.request(method, self.server.url, path, said, content, **more)

    async def get(self, path: str = "/", method: str = "GET", content: Any = None, **more: Any) -> tuple[int, bytes]:
        """All of an answer; let go of as everybody does."""
        response = await self.request(path, method, content, **more)
        try:
            return response.status, await response.read()
        finally:
            await response.close()


@contextlib.asynccontextmanager
async def client_harness(
    script: Script, timeout: float = 10.0, connect_timeout: float = 10.0, **options: Any
) -> AsyncIterator[ClientHarness]:
    """Both; at the end no connection is left on either side."""
    async with ScriptedServer(script, **options) as server:
        client = Client("fake", connect_timeout, timeout)
        try:
            yield ClientHarness(client, server)
        finally:
            client.close()
        await wait_until(lambda: not len(client))
        assert [several for several in client._idle.values() if several] == []


def respond_always(*pieces: bytes) -> Script:
    """Says the same to every request, and stays."""

    async def script(connection: ServerConnection) -> None:
        while True:
            await connection.read_request()
            await connection.send(*pieces)

    return script


def respond_once(*pieces: bytes) -> Script:
    """Says it to the first request, and leaves."""

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(*pieces)

    return script


def parse_with_h11(method: str, sent: bytes, *, ended: bool) -> tuple[int, bytes] | None:
    """Status and body as h11 reads them; None where they are not whole. ended: the connection is, after that."""
    judge = h11.Connection(h11.CLIENT)
    judge.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    judge.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        if sent:
            judge.receive_data(sent)
        if ended:
            judge.receive_data(b"")
        while True:
            event = judge.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None
