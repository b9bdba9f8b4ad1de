"""A request as ASGI brings it, and the ways to answer it. Raw, for this is the hot path: a framework costs a third.

Everything that comes from outside is bounded: the body as it is sent, the body unpacked, the headers (by the server).
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

import orjson

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Pairs = list[tuple[str, str]]
RawPairs = list[tuple[bytes, bytes]]

VOICE = "knapcache.voice"
"""Where a server that has one puts the voice of a request, among the extensions of ASGI."""
CLIENT_CLOSED_REQUEST = 499
"""Status in events of requests whose client has disconnected. nginx uses the same number."""
NONE: dict[str, Any] = {}
MOST_UNREAD = 32 << 20
GROUP = 16384
"""Bytes of a kept stream that are sent at once. Where events begin and end a client reads off the stream."""


class Refused(Exception):  # noqa: N818 - never leaves the package
    """A request that cannot be served, and what the caller is told."""

    def __init__(self, status: int, message: str, kind: str, headers: Pairs | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.headers = status, message, kind, headers or []


class Left(Exception):  # noqa: N818 - never leaves the package
    """The caller has gone before its request was here."""


class ResponseWriter(Protocol):
    """Says an answer bit by bit, and never waits: what a slow caller has not read yet is held for it, MOST_UNREAD bytes
    of it; who reads nothing for longer than that is taken to be gone.
    """

    disconnected: bool
    """Nobody listens any more."""

    def begin(self, status: int, headers: RawPairs) -> None:
        """The head."""

    def say(self, body: bytes, more: bool = True) -> None:
        """A piece of the body."""


class AsgiWriter:
    """A voice by way of ASGI, for servers whose requests have none of their own (protocol.py)."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.disconnected = self._ended = False
        self._unread = 0
        self._said: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._tasks = asyncio.create_task(self._pump(send)), asyncio.create_task(self._listen(receive))

    def begin(self, status: int, headers: RawPairs) -> None:
        """The head."""
        self._said.put_nowait({"type": "http.response.start", "status": status, "headers": headers})

    def say(self, body: bytes, more: bool = True) -> None:
        """A piece of the body."""
        self._ended = not more
        self._unread += len(body)
        if self._unread > MOST_UNREAD:
            self._gone()
        self._said.put_nowait({"type": "http.response.body", "body": body, "more_body": more})

    async def _pump(self, send: Send) -> None:
        more = True
        with contextlib.suppress(OSError):
            while more:
                message = await self._said.get()
                more = message.get("more_body", True)
                await send(message)
                self._unread -= len(message.get("body", b""))
            self._tasks[1].cancel()  # the end of an answer reads like the end of its caller

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone()

    def _gone(self) -> None:
        self.disconnected = True
        self._tasks[0].cancel()

    async def done(self) -> None:
        """Wait until all was said, or nobody listens. The end was said, or never will be."""
        pump, listen = self._tasks
        if not self._ended:
            pump.cancel()
        await asyncio.wait((pump,))
        listen.cancel()
        if not pump.cancelled():
            pump.result()


class AsgiRequest:
    """One request."""

    __slots__ = (
        "_headers", "_own", "_receive", "_send", "method", "path", "query", "raw_headers", "sent", "spelled", "started"
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, started: float) -> None:
        self._receive, self._send = receive, send
        self._own: ResponseWriter | None = scope.get("extensions", NONE).get(VOICE)
        self.started = started
        """When it came, by the monotonic clock."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.spelled: bytes | None = scope.get("raw_path")
        """The path as it came; %2F is no slash."""
        self.raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._headers: dict[str, str] | None = None
        self.sent = False
        """The answer has begun."""

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case names, as ASGI has them; of several of one name the last."""
        if self._headers is None:
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}
        return self._headers

    @headers.setter
    def headers(self, known: dict[str, str]) -> None:
        """Where they were read before."""
        self._headers = known

    @property
    def target(self) -> str:
        """Path and query as they came."""
        path = self.spelled.decode("latin-1") if self.spelled else self.path
        return f"{path}?{self.query.decode('latin-1')}" if self.query else path

    async def body(self, most: int, most_unpacked: int) -> bytes:
        """All of it, unpacked; Refused where it is too much."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Left
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            pieces, size = [body], len(body)
            async for piece in self.pieces():
                size += len(piece)
                if size > most:
                    raise too_large(most)
                pieces.append(piece)
            body = b"".join(pieces)
        if len(body) > most:
            raise too_large(most)
        packed = self.headers.get("content-encoding")
        return body if packed is None else unpacked(body, packed, most_unpacked)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes; Left where the caller goes in the middle of it."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Left
            more = message.get("more_body", False)
            yield message.get("body", b"")

    # Answers.

    def begin(self, status: int, headers: Pairs) -> ResponseWriter:
        """The head of an answer that is said bit by bit. `said` is to be waited for at its end."""
        self.sent = True
        if self._own is None:
            self._own = AsgiWriter(self._receive, self._send)
        self._own.begin(status, encoded(headers))
        return self._own

    async def said(self) -> None:
        """All of what was said has gone out, or nobody listens."""
        if isinstance(self._own, AsgiWriter):
            await self._own.done()

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """The head of the answer."""
        self.sent = True
        await self._send({"type": "http.response.start", "status": status, "headers": encoded(headers)})

    async def piece(self, body: bytes, *, more: bool = True) -> None:
        """A piece of its body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, status: int, headers: Pairs, body: bytes) -> None:
        """All of the answer."""
        headers.append(("content-length", str(len(body))))
        await self.start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def raw(self, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """All of a good answer, its headers as bytes."""
        self.sent = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def blocks(self, status: int, headers: Pairs, blocks: Iterable[bytes]) -> None:
        """An answer in blocks that are all at hand."""
        await self.start(status, headers)
        held: list[bytes] = []
        size = 0
        for block in blocks:
            held.append(block)
            size += len(block)
            if size > GROUP:
                await self.piece(b"".join(held))
                held, size = [], 0
        await self.piece(b"".join(held), more=False)

    async def error(self, status: int, message: str, kind: str, headers: Pairs | None = None) -> None:
        """An error, in the words of both SDKs."""
        body = orjson.dumps({"type": "error", "error": {"message": message, "type": kind, "code": kind}})
        await self.answer(status, [("content-type", "application/json"), *(headers or [])], body)


def encoded(headers: Iterable[tuple[str, str]]) -> RawPairs:
    """As ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]


def too_large(most: int) -> Refused:
    """The body is too large."""
    return Refused(413, f"the body has more than {most} bytes", "too_large", [("connection", "close")])


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """A body unpacked, no further than `most`."""
    kind = encoding.strip().lower()
    if kind == "identity":
        return body
    if kind not in ("gzip", "x-gzip", "deflate"):
        raise Refused(415, f"content-encoding must be gzip or deflate, not {encoding[:40]!r}", "unsupported_encoding")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out by itself which of the two it is
    try:
        found = unpacker.decompress(body, most + 1)
        if len(found) > most or unpacker.unconsumed_tail:
            raise Refused(413, f"the body unpacks to more than {most} bytes", "too_large")
    except zlib.error:
        raise Refused(400, "the body cannot be unpacked", "bad_encoding") from None
    if not unpacker.eof:
        raise Refused(400, "the body ends before it is unpacked", "bad_encoding")
    return found
