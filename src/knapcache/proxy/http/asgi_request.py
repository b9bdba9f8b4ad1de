"""An ASGI request and the ways to respond to it. No framework: on the hit path one costs a third of the throughput.

All input is bounded: the body as sent, the body decompressed, and the head (limited_protocol.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

import orjson

from knapcache.errors import Uncacheable
from knapcache.keys.public import public_reason
from knapcache.proxy.decompress import ENCODINGS, DecompressionError, Decompressor
from knapcache.threads import DeadlinePool

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Pairs = list[tuple[str, str]]
RawPairs = list[tuple[bytes, bytes]]

WRITER_EXTENSION = "knapcache.response_writer"
"""ASGI extension under which our server protocol offers its own `ResponseWriter` (uvicorn_protocol.py)."""
HEAD_EXTENSION = "knapcache.request_head"
"""ASGI extension under which our server protocol passes on what access.py knows about the head, or None."""
SERVER_HEADERS = frozenset(("date", "server"))
"""Headers that our own server adds."""
REFUSED = "knapcache.refused"
"""Key of the scope under which our server protocol stores the status of an error that it sent (limited_protocol.py)."""
NO_EXTENSIONS: dict[str, Any] = {}
CLIENT_CLOSED_REQUEST = 499
"""Status in events of requests whose client has disconnected. nginx uses the same number."""
MAX_UNREAD = 32 << 20
"""Bytes that a client may leave unread before it is disconnected."""
CHUNK_SIZE = 16384
"""Bytes of a cached stream that are sent at once. Chunks need not end where events end."""


class RequestRejected(Exception):  # noqa: N818 - never leaves the package
    """The request cannot be served. Carries the error response.

    reason: what is recorded of it, if the message quotes the request
    """

    def __init__(
        self, status: int, message: str, kind: str, headers: Pairs | None = None, reason: str | None = None
    ) -> None:
        self.reason = message if reason is None else reason
        super().__init__(self.reason)
        self.status, self.message, self.kind, self.headers = status, message, kind, headers or []


class ClientDisconnected(Exception):  # noqa: N818 - never leaves the package
    """The client disconnected before its request was complete."""


class ResponseWriter(Protocol):
    """Non-blocking response writer. Disconnects clients that leave MAX_UNREAD bytes unread."""

    disconnected: bool
    """Whether the client has disconnected."""

    def start(self, status: int, headers: RawPairs) -> None:
        """Send the head."""

    def write(self, body: bytes, more: bool = True) -> None:
        """Send a piece of the body. more=False: it is the last one."""

    @property
    def respond(self) -> Callable[[int, Pairs, bytes], Awaitable[None]] | None:
        """Sends a whole response, whose headers have its length; None: the writer cannot."""


class AsgiWriter:
    """A `ResponseWriter` over plain ASGI, for servers that do not offer their own."""

    respond = None

    def __init__(self, receive: Receive, send: Send) -> None:
        self.disconnected = self._ended = False
        self._unread = 0
        self._queue: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send_queued(send))
        self._watcher = asyncio.create_task(self._watch_for_disconnect(receive))

    def start(self, status: int, headers: RawPairs) -> None:
        """Send the head."""
        self._queue.put_nowait({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, body: bytes, more: bool = True) -> None:
        """Send a piece of the body. more=False: it is the last one."""
        self._ended = not more
        self._unread += len(body)
        if self._unread > MAX_UNREAD:
            self._disconnect()
        self._queue.put_nowait({"type": "http.response.body", "body": body, "more_body": more})

    async def _send_queued(self, send: Send) -> None:
        more = True
        with contextlib.suppress(OSError):
            while more:
                message = await self._queue.get()
                more = message.get("more_body", True)
                await send(message)
                self._unread -= len(message.get("body", b""))
            self._watcher.cancel()  # servers also report the end of a response as a disconnect

    async def _watch_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._disconnect()

    def _disconnect(self) -> None:
        self.disconnected = True
        self._sender.cancel()

    async def drain(self) -> None:
        """Wait until everything is sent or the client has disconnected. Call it after the last `write`."""
        if not self._ended:
            self._sender.cancel()
        await asyncio.wait((self._sender,))
        self._watcher.cancel()
        if not self._sender.cancelled():
            self._sender.result()


class AsgiRequest:
    """One request."""

    __slots__ = (
        "_headers", "_receive", "_scope", "_send", "_writer", "caller", "deployment", "known_head", "method", "path",
        "query", "raw_headers", "raw_path", "response_started", "started",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, started: float, deployment: str = "") -> None:
        self.deployment = deployment
        """Name of the Azure deployment in the path (client_paths.py); empty: there is none."""
        self._scope, self._receive, self._send = scope, receive, send
        extensions = scope.get("extensions", NO_EXTENSIONS)
        self._writer: ResponseWriter | None = extensions.get(WRITER_EXTENSION)
        self.known_head: Any = extensions.get(HEAD_EXTENSION)
        """The `RequestHead` of access.py if the server protocol has looked it up, or None."""
        self.started = started
        """Arrival, by `time.perf_counter`."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.raw_path: bytes | None = scope.get("raw_path")
        """The path before percent-decoding, in which %2F is not a slash."""
        self.raw_headers: RawPairs = scope["headers"]
        self._headers: dict[str, str] | None = None
        self.response_started = False
        self.caller: str | None = None
        """The caller whose requests in flight include this one (access.py)."""

    @property
    def refused(self) -> int | None:
        """Status with which the server protocol refused the request while its body was arriving, or None."""
        return self._scope.get(REFUSED)

    @property
    def headers(self) -> dict[str, str]:
        """Headers by lower-case name. The values of a name that occurs several times are joined by commas."""
        if self._headers is None:
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}
            if len(self._headers) < len(self.raw_headers):
                self._headers = joined_headers(self.raw_headers)
        return self._headers

    @headers.setter
    def headers(self, decoded: dict[str, str]) -> None:
        self._headers = decoded

    @property
    def target(self) -> str:
        """Path and query as sent."""
        path = self.raw_path.decode("latin-1") if self.raw_path else self.path
        return f"{path}?{self.query.decode('latin-1')}" if self.query else path

    async def read_body(self, max_size: int, max_decompressed: int, workers: DeadlinePool | None = None) -> bytes:
        """Return the body, decompressed by `workers`. Raises RequestRejected if it is too large or not valid."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            pieces, size = [body], len(body)
            async for piece in self.iter_body():
                size += len(piece)
                if size > max_size:
                    raise too_large(max_size)
                pieces.append(piece)
            body = b"".join(pieces)
        if len(body) > max_size:
            raise too_large(max_size)
        encoding = self.headers.get("content-encoding")
        if encoding is None:
            return body
        if workers is None:
            return decompress(body, encoding, max_decompressed)
        return await workers.call(functools.partial(decompress, body, encoding, max_decompressed))

    async def iter_body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises ClientDisconnected."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            more = message.get("more_body", False)
            yield message.get("body", b"")

    # Responses: with a writer, piece by piece, or whole.

    def open_writer(self, status: int, headers: Pairs) -> ResponseWriter:
        """Send the head and return a writer for the body. Await `drain` after the last write."""
        self.response_started = True
        if self._writer is None:
            self._writer = AsgiWriter(self._receive, self._send)
        self._writer.start(status, asgi_headers(headers))
        return self._writer

    async def drain(self) -> None:
        """Wait until what was written is sent, or the client has disconnected."""
        if isinstance(self._writer, AsgiWriter):
            await self._writer.drain()

    async def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send status and headers. Waits while the client reads too slowly, like the methods below."""
        self.response_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": asgi_headers(headers)})

    async def send_body(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def respond(self, status: int, headers: Pairs, body: bytes) -> None:
        """Send a whole response."""
        headers.append(("content-length", str(len(body))))
        writer = self._writer
        if writer is not None and writer.respond is not None:
            self.response_started = True
            await writer.respond(status, headers, body)
            return
        await self.send_head(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def respond_blocks(self, status: int, headers: Pairs, blocks: Iterable[bytes]) -> None:
        """Send a whole response whose body is given in blocks, in chunks of about CHUNK_SIZE bytes."""
        await self.send_head(status, headers)
        chunk: list[bytes] = []
        size = 0
        for block in blocks:
            chunk.append(block)
            size += len(block)
            if size > CHUNK_SIZE:
                await self.send_body(b"".join(chunk))
                chunk, size = [], 0
        await self.send_body(b"".join(chunk), more=False)

    async def respond_error(self, status: int, message: str, kind: str, headers: Pairs | None = None) -> None:
        """Send an error as JSON that the SDKs of OpenAI and Anthropic both understand."""
        body = orjson.dumps({"type": "error", "error": {"message": message, "type": kind, "code": kind}})
        await self.respond(status, [("content-type", "application/json"), *(headers or [])], body)


def joined_headers(pairs: RawPairs) -> dict[str, str]:
    """Return headers by name, with all values of a name (RFC 9110, section 5.2)."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: ", ".join(parts) for name, parts in values.items()}


def asgi_headers(headers: Iterable[tuple[str, str]]) -> RawPairs:
    """Encode headers as ASGI has them, without SERVER_HEADERS."""
    return [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() not in SERVER_HEADERS
    ]


def too_large(limit: int) -> RequestRejected:
    """Return the error for a body that is too large. The rest of it is not read, so the connection closes."""
    return RequestRejected(413, f"The body has more than {limit} bytes.", "too_large", [("connection", "close")])


def model_not_found(reason: Uncacheable) -> RequestRejected:
    """Return the error for a body whose model, which selects the upstream, takes too long to find."""
    why = public_reason(reason)
    message = f'The body is too large to find its model: {why}. A body may be longer if "model" is its first field.'
    return RequestRejected(413, message, "too_large")


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the decompressed body. Stops and raises RequestRejected after `limit` bytes."""
    name = encoding.strip().lower()
    if name == "identity":
        return body
    if name not in ENCODINGS:
        message = f"content-encoding must be gzip or deflate, not {encoding[:40]!r}."
        reason = "content-encoding must be gzip or deflate."
        raise RequestRejected(415, message, "unsupported_encoding", reason=reason)
    # A BytesIO: joining tens of megabytes would hold the interpreter's lock for as many milliseconds.
    decompressor, found, size = Decompressor(), io.BytesIO(), 0
    try:
        for chunk in decompressor.feed(body):
            size += len(chunk)
            if size > limit:
                raise RequestRejected(413, f"The body has more than {limit} bytes when decompressed.", "too_large")
            found.write(chunk)
        decompressor.end()
    except DecompressionError as error:
        raise RequestRejected(400, str(error), "bad_encoding") from None
    return found.getvalue()
