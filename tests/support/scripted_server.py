"""A server that sends scripted bytes, a client connected to it, and a fixture that runs a test on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Self

import h11
import pytest

from knapcache.proxy.upstream import Client, Response, encode_headers
from knapcache.proxy.upstream.connect import TlsFiles
from knapcache.proxy.upstream.response import MAX_BODY
from tests.support.programs import find_module
from tests.support.timing import DEADLINE, async_wait_until, within

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on asyncio's and on uvloop's event loop, for at most 60 seconds."""
    loops = asyncio if request.param == "asyncio" else find_module("uvloop", "the package uvloop")

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE):
                await scenario

        with within(DEADLINE, "the scenario"), asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
            runner.run(bounded())

    return run


class ReceivedRequest(NamedTuple):
    """A request as h11 parsed it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class ServerConnection:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._parser = h11.Connection(h11.SERVER)

    async def read_request(self) -> ReceivedRequest:
        """Read the next request with its body. ConnectionError if the client closes the connection before."""
        head: Any = await self._next_event()
        body = b""
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
        headers = {name.decode(): value.decode() for name, value in head.headers}
        self._parser = h11.Connection(h11.SERVER)  # h11 would wait for our response; bytes sent ahead are dropped
        return ReceivedRequest(head.method.decode(), head.target.decode(), headers, body)

    async def _next_event(self) -> Any:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionError
            self._parser.receive_data(data)
        return event

    async def send(self, *pieces: bytes) -> None:
        """Write each piece on its own: the client reads one before the next is written."""
        for k, piece in enumerate(pieces):
            if k:
                for _ in range(3):
                    await asyncio.sleep(0)
            self.writer.write(piece)
            await self.writer.drain()

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def wait_closed(self) -> None:
        """Read and drop bytes until the client closes the connection."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass


Script = Callable[[ServerConnection], Awaitable[None]]
"""A function that serves one connection, which is closed afterwards."""


class ScriptedServer:
    """A server that runs a script on every connection.

    options   of asyncio.start_server, such as ssl
    """

    def __init__(self, script: Script, host: str = "127.0.0.1", **options: Any) -> None:
        self._script, self.host, self._options = script, host, options
        self.accepted = 0
        """Connections so far."""
        self.open: set[asyncio.Task[Any]] = set()
        """Scripts that are running."""
        self._writers: list[asyncio.StreamWriter] = []

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio would run it as a task, and one that is cancelled before it starts closes nothing.
        self.accepted += 1
        self._writers.append(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._script(ServerConnection(reader, writer))
        except (OSError, h11.RemoteProtocolError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except RuntimeError:  # what uvloop raises on a closed connection
            assert writer.is_closing()

    @property
    def url(self) -> str:
        """Base URL, with the address that it listens on."""
        return self.url_of(self.host)

    def url_of(self, host: str) -> str:
        """Base URL with another name of the host."""
        scheme = "https" if "ssl" in self._options else "http"
        name = f"[{host}]" if ":" in host else host
        return f"{scheme}://{name}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, 0, **self._options)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        # A server that closes while asyncio sets up an accepted connection leaves that one open (`Server._attach`).
        for _turn in range(5):
            await asyncio.sleep(0)
        self._server.close()
        for task in list(self.open):
            task.cancel()
        await async_wait_until(lambda: not self.open)
        closing = [asyncio.ensure_future(writer.wait_closed()) for writer in self._writers]
        for writer, closed in zip(self._writers, closing, strict=True):
            await asyncio.wait([closed], timeout=0.2)
            if not closed.done():  # its peer reads nothing, so the transport waits to send
                writer.transport.abort()
        await asyncio.gather(*closing, return_exceptions=True)


class ClientHarness(NamedTuple):
    """A client, and the scripted server that it sends requests to."""

    client: Client
    server: ScriptedServer

    async def request(self, path: str = "/", method: str = "GET", content: Any = None, **more: Any) -> Response:
        """Send a request and return when the head of its response was received. more: `headers`, `url`, `raw`."""
        headers = encode_headers([("x-test", "1"), *more.pop("headers", [])])
        url = more.pop("url", None) or self.server.url
        return await self.client.request(method, url, path, headers, content, **more)

    async def get(self, path: str = "/", method: str = "GET", content: Any = None, **more: Any) -> tuple[int, bytes]:
        """Send a request, read the response and close it. Returns status and body."""
        response = await self.request(path, method, content, **more)
        try:
            return response.status, await response.read()
        finally:
            await response.close()


@contextlib.asynccontextmanager
async def client_harness(
    script: Script,
    idle_timeout: float = 10.0,
    connect_timeout: float = 10.0,
    total_timeout: float | None = None,
    tls: TlsFiles | None = None,
    max_body: int = MAX_BODY,
    **options: Any,
) -> AsyncIterator[ClientHarness]:
    """Start a server and a client. At the end no connection may be open, and no exchange in flight.

    options   of ScriptedServer
    """
    async with ScriptedServer(script, **options) as server:
        client = Client("fake", connect_timeout, idle_timeout, total_timeout, tls=tls, max_body=max_body)
        try:
            yield ClientHarness(client, server)
        finally:
            client.close()
        await async_wait_until(lambda: not len(client))
        assert [connections for connections in client._idle.values() if connections] == []
        assert client.in_flight == 0


def respond_always(*pieces: bytes) -> Script:
    """Send the same bytes for every request."""

    async def script(connection: ServerConnection) -> None:
        while True:
            await connection.read_request()
            await connection.send(*pieces)

    return script


def respond_once(*pieces: bytes) -> Script:
    """Send bytes for the first request, and close the connection."""

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(*pieces)

    return script


def send_and_stall(*pieces: bytes) -> Script:
    """Send bytes for the first request, then nothing until the client closes the connection."""

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        await connection.send(*pieces)
        await connection.wait_closed()

    return script


def parse_with_h11(method: str, sent: bytes, *, closed: bool) -> tuple[int, bytes] | None:
    """Status and body of a response as h11 parses it, or None if it is not complete.

    closed   the connection is closed after these bytes
    """
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        if sent:
            parser.receive_data(sent)
        if closed:
            parser.receive_data(b"")
        while True:
            event = parser.next_event()
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
