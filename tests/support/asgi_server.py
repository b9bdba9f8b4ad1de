"""An ASGI application under uvicorn's protocol classes, and a client connection that parses responses with h11."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import h11
import uvicorn
from uvicorn.server import ServerState

from knapcache.proxy.http.asgi_request import AsgiRequest, ClientDisconnected
from knapcache.proxy.http.connections import Connections
from knapcache.proxy.http.uvicorn_protocol import FastPathProtocol
from knapcache.proxy.settings import Settings
from tests.support.timing import async_wait_until

Respond = Callable[[AsgiRequest], Awaitable[None]]
"""A function that serves one request of the application."""
RawResponse = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers, body."""


class RecordingApp:
    """An application that calls `respond`, and records errors and the cycles of its requests."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.connections = Connections(Settings(upstreams=[{"url": "http://127.0.0.1:9/v1"}]))
        self.errors: list[BaseException] = []
        self.cycles: list[weakref.ref[Any]] = []
        self.cycle_types: list[type] = []

    def fast_response(self, *_: object) -> None:
        """Return None: every request goes to the application."""

    known_head = repeated_head = fast_response

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.cycles.append(weakref.ref(send.__self__))
        self.cycle_types.append(type(send.__self__))
        try:
            await self._respond(AsgiRequest(scope, receive, send, 0.0))
        except ClientDisconnected:
            pass
        except Exception as error:
            self.errors.append(error)
            raise


class ClientConnection:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._rest = b""

    async def response(self) -> RawResponse | None:
        """Return the next response, or None if it is truncated."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        head: Any = None
        body: list[bytes] = []
        data, self._rest = self._rest, b""
        ended = False
        while True:
            if data or ended:
                parser.receive_data(data)
            try:
                while (event := parser.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Response):
                        head = event
                    elif isinstance(event, h11.Data):
                        body.append(event.data)
                    elif isinstance(event, h11.EndOfMessage):
                        self._rest = parser.trailing_data[0]
                        return head.status_code, list(head.headers), b"".join(body)
                    elif isinstance(event, h11.ConnectionClosed):
                        return None
            except h11.RemoteProtocolError:
                return None
            data = await self.reader.read(65536)
            ended = not data

    async def is_closed(self) -> bool:
        """Return whether the server closes the connection without sending more."""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                return not self._rest and not await self.reader.read(1)
        return True


Connect = Callable[[], Awaitable[ClientConnection]]


@contextlib.asynccontextmanager
async def serving(respond: Respond, protocol: type = FastPathProtocol) -> AsyncIterator[tuple[RecordingApp, Connect]]:
    """Serve an application. Yields it, and a function that opens a connection."""
    app, connections = RecordingApp(respond), []
    quiet: dict[str, Any] = {"log_config": None, "server_header": False, "date_header": False, "proxy_headers": False}
    config = uvicorn.Config(app, ws="none", interface="asgi3", lifespan="off", **quiet)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def connect() -> ClientConnection:
        connections.append(ClientConnection(*await asyncio.open_connection("127.0.0.1", port)))
        return connections[-1]

    try:
        yield app, connect
    finally:
        for connection in connections:
            connection.writer.close()
        server.close()
        await async_wait_until(lambda: not state.tasks and not state.connections)


def post(body: bytes = b"{}", *headers: str, version: str = "1.1") -> bytes:
    """Return the bytes of a request."""
    lines = [f"POST /v1/chat/completions HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def echo_and_write(pieces: Iterable[bytes], headers: Iterable[tuple[str, str]] = (), status: int = 200) -> Respond:
    """Write the first ten bytes of the request's body, then these pieces. The piece `wait` is followed by a pause."""

    async def respond(request: AsgiRequest) -> None:
        body = await request.read_body(1 << 30, 1 << 30)
        writer = request.open_writer(status, [("content-type", "text/plain"), *headers])
        for piece in (body[:10], *pieces):
            writer.write(piece)
            if piece == b"wait":
                await asyncio.sleep(0.01)
        writer.write(b"", more=False)
        await request.drain()
        assert not writer.disconnected

    return respond
