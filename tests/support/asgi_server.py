"""An application under uvicorn that tells what it is told to, and a caller that reads it with h11."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import h11
import uvicorn
from uvicorn.server import ServerState

from knapcache.serve.http.asgi_request import AsgiRequest, Left
from knapcache.serve.http.uvicorn_protocol import Protocol
from tests.support.scripted_server import wait_until

Tell = Callable[[AsgiRequest], Awaitable[None]]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


class Told:
    """An application that tells what it is told to, with the voice that the server has."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.errors: list[BaseException] = []
        self.cycles: list[weakref.ref[Any]] = []
        self.kinds: list[type] = []

    def short(self, *_: object) -> None:
        """Nothing is known by heart."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.cycles.append(weakref.ref(send.__self__))
        self.kinds.append(type(send.__self__))
        try:
            await self._tell(AsgiRequest(scope, receive, send, 0.0))
        except Left:
            pass
        except Exception as error:
            self.errors.append(error)
            raise


class Wire:
    """A connection on the side of the caller, read by h11."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._rest = b""

    async def answer(self) -> Answer | None:
        """The next one; None where it is cut off."""
        judge = h11.Connection(h11.CLIENT)
        judge.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        judge.send(h11.EndOfMessage())
        head: Any = None
        body: list[bytes] = []
        data, self._rest = self._rest, b""
        ended = False
        while True:
            if data or ended:
                judge.receive_data(data)
            try:
                while (event := judge.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Response):
                        head = event
                    elif isinstance(event, h11.Data):
                        body.append(event.data)
                    elif isinstance(event, h11.EndOfMessage):
                        self._rest = judge.trailing_data[0]
                        return head.status_code, list(head.headers), b"".join(body)
                    elif isinstance(event, h11.ConnectionClosed):
                        return None
            except h11.RemoteProtocolError:
                return None
            data = await self.reader.read(65536)
            ended = not data

    async def ends(self) -> bool:
        """Whether nothing more comes."""
        async with asyncio.timeout(2):
            with contextlib.suppress(ConnectionError):
                return not self._rest and not await self.reader.read(1)
        return True


@contextlib.asynccontextmanager
async def serving(tell: Tell, protocol: type = Protocol) -> AsyncIterator[tuple[Told, Callable[[], Awaitable[Wire]]]]:
    app, wires = Told(tell), []
    quiet: dict[str, Any] = {"log_config": None, "server_header": False, "date_header": False, "proxy_headers": False}
    config = uvicorn.Config(app, ws="none", interface="asgi3", lifespan="off", **quiet)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def wire() -> Wire:
        wires.append(Wire(*await asyncio.open_connection("127.0.0.1", port)))
        return wires[-1]

    try:
        yield app, wire
    finally:
        for each in wires:
            each.writer.close()
        server.close()
        await wait_until(lambda: not state.tasks and not state.connections)


def request(body: bytes = b"{}", *headers: str, version: str = "1.1") -> bytes:
    said = [f"POST /v1/chat/completions HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(said).encode() + body


def telling(pieces: Iterable[bytes], headers: Iterable[tuple[str, str]] = (), status: int = 200) -> Tell:
    """Says the body of a request, and these pieces after it."""
    seen: list[bool] = []

    async def tell(asked: AsgiRequest) -> None:
        body = await asked.body(1 << 30, 1 << 30)
        voice = asked.begin(status, [("content-type", "text/plain"), *headers])
        for piece in (body[:10], *pieces):
            voice.say(piece)
            if piece == b"wait":
                await asyncio.sleep(0.01)
        voice.say(b"", more=False)
        await asked.said()
        seen.append(voice.disconnected)
        assert not any(seen), "nobody has left"

    return tell
