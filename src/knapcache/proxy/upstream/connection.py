"""One connection to an upstream, and the parser of its responses.

The connection is an asyncio protocol that passes bytes to the exchange in progress. The parser, llhttp, reads status,
headers and the blocks of the body from them. It does no I/O.
"""

from __future__ import annotations

import asyncio
import select
from typing import NamedTuple, Protocol

import httptools

from knapcache.proxy.decompress import ENCODINGS
from knapcache.proxy.upstream.failures import ProtocolError

Pairs = list[tuple[str, str]]

MAX_HEAD = 256 << 10
"""Bytes in a row without a byte of the body: heads, chunk extensions, trailers.

Counted as they are received, because llhttp reports a header only when it is complete.
"""
MAX_INFORMATIONAL = 16
"""1xx responses before the final one."""


class Origin(NamedTuple):
    """The server that requests are for."""

    host: str
    port: int
    tls: bool


def bracketed(host: str) -> str:
    """A host as URLs and Host headers have it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


class Pool(Protocol):
    """The owner of connections."""

    name: str
    """The upstream's name in error messages."""
    idle_timeout: float
    """Longest wait in seconds between two reads of a response."""
    total_timeout: float | None
    """Longest time in seconds of a whole exchange; None: no limit."""
    max_body: int
    """Bytes of a body that `Response.read` returns."""
    in_flight: int
    """Exchanges that have begun and have not ended."""

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed."""

    def release(self, connection: Connection) -> None:
        """Take back a connection that is ready for the next request."""


class BytesReceiver(Protocol):
    """The exchange in progress, as its connection uses it."""

    def feed(self, data: bytes) -> None:
        """Parse bytes of the connection."""

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""


class Connection(asyncio.Protocol):
    """A connection with at most one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool, origin: Origin) -> None:
        self._pool, self.origin = pool, origin
        self.response: BytesReceiver | None = None
        """The exchange that owns the connection; None while it is idle."""
        self.idle_since = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._poll: select.poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are not an asyncio.Transport

    def data_received(self, data: bytes) -> None:
        if self.response is None:  # nothing was requested: the next request would take these bytes for its response
            self.transport.abort()
        else:
            self.response.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.remove(self)
        if self.response is not None:
            self.response.connection_lost(error)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    async def drain(self) -> None:
        """Wait until the transport's write buffer has space."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def has_unread_bytes(self) -> bool:
        """Return whether bytes have arrived on the idle connection, or it was closed, and the event loop has not read
        that yet.
        """
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def release(self) -> None:
        """End the exchange and give the connection back to the pool."""
        self.response = None
        self._pool.release(self)


class ResponseParser:
    """Parses one response. Methods named on_… are callbacks of llhttp.

    method   of the request; a response to HEAD has no body
    raw      the body is wanted as it is encoded
    """

    def __init__(self, method: str, raw: bool) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._is_head, self._raw = method == "HEAD", raw
        self.status = 0
        """0 until the final head was received."""
        self.pairs: Pairs = []
        self.headers: dict[str, str] = {}
        self.compressed = False
        """Whether the body has to be decompressed."""
        self.until_close = False
        """Whether the body ends with the connection."""
        self.blocks: list[bytes] = []
        """Blocks of the body; the caller takes them."""
        self.complete = False
        """Whether the whole response was received."""
        self.keep_alive = False
        """Whether HTTP lets the connection be used again, and no byte followed the response."""
        self._overhead = self._informational = 0

    def feed(self, data: bytes) -> ProtocolError | None:
        """Parse bytes of the connection. Return why they are not valid, or None."""
        assert self._parser is not None
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return ProtocolError(type(error).__name__)
        return ProtocolError(f"more than {MAX_HEAD} bytes of headers") if self._overhead > MAX_HEAD else None

    def close(self) -> None:
        """Break the reference cycle: llhttp's parser and this object refer to each other."""
        self._parser = None

    def on_message_begin(self) -> None:
        if self.complete:  # a second response, which was not requested
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it is a trailer, and trailers are dropped
            self.pairs.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self.status:  # the head of a second response
            return
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise ProtocolError(f"more than {MAX_INFORMATIONAL} informational responses")
            self.pairs.clear()
            return
        if status > 599:
            raise ProtocolError(f"status {status}")
        # The bytes received so far may be those of the body, which came with the end of the head.
        if self._overhead > MAX_HEAD and sum(len(name) + len(value) + 4 for name, value in self.pairs) > MAX_HEAD:
            raise ProtocolError(f"more than {MAX_HEAD} bytes of headers")
        self.headers = headers = {name.lower(): value for name, value in self.pairs}
        if "content-encoding" in headers and not self._raw and not self._is_head:
            self.compressed = self._is_compressed()
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self.until_close = not chunked and "content-length" not in headers
        self.status, self.complete = status, self._is_head

    def _is_compressed(self) -> bool:
        encodings = [value for name, value in self.pairs if name.lower() == "content-encoding"]
        encoding = ", ".join(encodings).strip().lower()
        if encoding not in ENCODINGS and encoding not in ("", "identity"):
            raise ProtocolError("a content-encoding that was not requested")
        return encoding in ENCODINGS

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if not self.complete:
            self.blocks.append(body)

    def on_message_complete(self) -> None:
        if self.status and not self.complete:  # else it was a 1xx response
            assert self._parser is not None
            self.keep_alive = self._parser.should_keep_alive()
            self.complete = True
