"""Several processes that serve one port and share one store. One of them owns it, and has the record as well.

    owner     decides, writes, keeps the record; listens on a socket in the data directory (owner.sock) for the others
    others    serve what the owner keeps; tell it every event, a few times a second; send it whoever wants the admin API

What the others were asked reaches the owner's policy through the cache itself (cache/keeper.py), which hands over both
what they paid for and what they found in the file. When the owner ends, another becomes it within a second or two, and
events wait for it, as many as the journal has room for.

A call is made once at a time by each process, not by all together: two of them may pay for the same answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import orjson
import uvicorn

from knapcache.errors import UpstreamFailed
from knapcache.serve.http.asgi_request import AsgiRequest, Receive, Refused, Scope, Send
from knapcache.serve.observe.events import ROOM, Event
from knapcache.serve.upstream import Client, encode_headers
from knapcache.serve.upstream.upstream import HOP_BY_HOP

log = logging.getLogger("knapcache.serve")

SOCKET = "owner.sock"
OWNER = "http://owner"
EVENTS = "/inside/events"
TICK = 0.25
CONNECT, ANSWER = 5.0, 30.0
"""Seconds that another process waits for the owner."""
AT_ONCE = 5000
"""Events in one message, about a megabyte."""
MOST = 8 << 20
"""Bytes of a message between processes, and of a request to the admin API on its way to the owner."""

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class OwnerServer:
    """What the owner listens with: the admin API, and the events of the others."""

    def __init__(self, folder: Path, rest: App, absorb: Callable[[Sequence[Event]], None]) -> None:
        self._rest, self._absorb = rest, absorb
        self._path = folder / SOCKET
        config = uvicorn.Config(
            self, uds=str(self._path), lifespan="off", access_log=False, log_config=None, server_header=False
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen. The socket of an owner that was killed is in the way, and is nobody's."""
        self._path.unlink(missing_ok=True)
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup()  # not serve(): signals are the business of the server outside
        self._path.chmod(0o600)
        self._task = asyncio.create_task(self._server.main_loop())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of another process."""
        if scope["type"] != "http" or scope["path"] != EVENTS:
            await self._rest(scope, receive, send)
            return
        request = AsgiRequest(scope, receive, send, 0.0)
        try:
            self._absorb([Event(*line) for line in orjson.loads(await request.body(MOST, MOST))])
        except (Refused, ValueError, TypeError) as error:
            log.error("another process told what cannot be read: %s", error)
        await request.answer(200, [], b"")

    async def close(self) -> None:
        """Hear no more."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        await self._server.shutdown()
        self._path.unlink(missing_ok=True)


class OwnerClient:
    """What another process has in the owner's place."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET
        self._waiting: list[Event] = []
        self.lost = 0
        self._client = Client("the owner", CONNECT, ANSWER, socket_path=self._path)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to tell."""
        self._task = asyncio.create_task(self._tell())

    def listen(self, events: Sequence[Event]) -> None:
        """To be told to the owner."""
        room = ROOM - len(self._waiting)
        self._waiting.extend(events[:room])
        self.lost += max(0, len(events) - room)

    def take(self) -> list[Event]:
        """What was not told yet, for who has become the owner."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            with contextlib.suppress(UpstreamFailed):
                await self.tell()

    async def tell(self) -> None:
        """Tell the owner what waits; it goes on waiting where there is none."""
        while self._waiting:
            told = self._waiting[:AT_ONCE]
            answer = await self._client.request("POST", OWNER, EVENTS, b"", orjson.dumps(list(map(tuple, told))))
            await answer.read()
            if answer.status != 200:  # just changing
                break
            del self._waiting[: len(told)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request for the owner: sent on, and its answer back."""
        request = AsgiRequest(scope, receive, send, 0.0)
        try:
            body = await request.body(MOST, MOST)
            headers = [(n, v) for n, v in request.headers.items() if n == "cookie" or stays(n)]
            headers.append(("host", request.headers.get("host", "")))
            answer = await self._client.request(
                request.method, OWNER, request.target, encode_headers(headers), body, raw=True
            )
            content = await answer.read()
            said = [(n, v) for n, v in answer.pairs if stays(n) and n.lower() not in ("date", "server")]
            await request.answer(answer.status, said, content)
        except Refused as refused:
            await request.error(refused.status, refused.message, refused.kind)
        except UpstreamFailed:
            if not request.sent:
                await request.error(503, "the process that knows is just changing", "no_owner", [("retry-after", "1")])

    async def close(self) -> None:
        """Tell the rest, if somebody listens."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            with contextlib.suppress(UpstreamFailed):
                await self.tell()
        self._client.close()


def stays(name: str) -> bool:
    """Whether a header goes from one process to the other."""
    return name.lower() not in HOP_BY_HOP and name.lower() != "content-length"
