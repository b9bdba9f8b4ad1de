"""One connection to a provider, and one exchange at a time on it.

    Connection   bytes, and who they are for
    Response     one exchange: the request on its way out, the answer as llhttp reads it, and whoever waits for it

A body ends by its length, by its last chunk, or with the connection. Which of them, and whether the connection may be
used again, is known when the parser says so; until then the exchange owns it. Whoever waits is woken by a future, and
waits no longer than the client's time-out between two pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import httptools

from knapcache.errors import UpstreamFailed
from knapcache.serve.upstream.decompress import Decompressor
from knapcache.serve.upstream.failures import ConnectionLost, ProtocolError, upstream_failed, without_traceback

Pairs = list[tuple[str, str]]

LINGER = 0.25
"""Seconds that the end of an answer has to come when nobody reads on: a new connection costs more."""
HIGH = 1 << 20
"""Bytes of an answer that are held before its sender is made to wait."""
MOST = 256 << 20
"""Bytes of an answer that is not a stream: more is no answer of a language model."""
MOST_HEAD = 256 << 10
"""Bytes that may come with nothing of a body among them. Counted as they come: a header without end is never told."""
PACKED = ("gzip", "x-gzip", "deflate")
PRESSED = 1 << 16
"""Bytes of a request that are joined to its head."""


class Origin(NamedTuple):
    """Whom a connection leads to."""

    host: str
    port: int
    tls: bool


class Pool(Protocol):
    """Whose connection it is."""

    name: str
    timeout: float

    def lost(self, connection: Connection) -> None:
        """It is gone."""

    def waits(self, connection: Connection) -> None:
        """It may be used again."""


class Connection(asyncio.Protocol):
    """One connection: bytes, and who they are for."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool, origin: Origin) -> None:
        self._pool, self.origin = pool, origin
        self.response: Response | None = None
        self.since = 0.0
        self._writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no asyncio.Transport

    def data_received(self, data: bytes) -> None:
        """For whoever has asked; nobody: then it is of no use any more."""
        if self.response is None:
            self.transport.abort()
        else:
            self.response.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._pool.lost(self)
        if self.response is not None:
            self.response.broke_off(error)
        self.resume_writing()

    def pause_writing(self) -> None:
        """The other side is slow."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """It goes on."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    async def drain(self) -> None:
        """Wait until more can be written."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def free(self) -> None:
        """Its exchange is over, and all is well."""
        self.response = None
        self._pool.waits(self)


class Response:
    """One exchange; the callbacks are the parser's."""

    def __init__(self, pool: Pool, connection: Connection, method: str, raw: bool) -> None:
        self._pool, self._connection = pool, connection
        connection.response = self
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._headless, self._raw = method == "HEAD", raw
        self.status = 0
        self.pairs: Pairs = []
        self.headers: dict[str, str] = {}
        """By lower-case names."""
        self._pieces: list[bytes] = []
        self._held = self._plain = 0
        self.heard = False
        """Something has come, if only a word in between."""
        self._ended = self._again = self._more_came = self._paused = False
        self._to_the_end = False  # of the connection: nothing says how long the body is
        self._sent = True
        self._upload: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._unpacker: Decompressor | None = None

    # Out.

    async def begin(self, head: bytes, content: bytes | AsyncIterator[bytes] | None, length: int | None) -> None:
        """Send the request; returns when the head of the answer has come."""
        transport = self._connection.transport
        if content is None:
            transport.write(head)
        elif isinstance(content, bytes):
            if len(content) <= PRESSED:
                transport.write(head + content)
            else:
                transport.write(head)
                transport.write(content)
        else:
            transport.write(head)
            self._sent = False
            self._upload = asyncio.create_task(self._send(content, length))
        while not self.status:
            await self._wait()

    async def _send(self, content: AsyncIterator[bytes], length: int | None) -> None:
        """length: what was said of it; None: in chunks. Of another length, the next request would be taken for it."""
        connection, size = self._connection, 0
        try:
            async for piece in content:
                if piece:
                    size += len(piece)
                    if length is not None and size > length:
                        break
                    connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if length is None else piece)
                    await connection.drain()
            if length is None:
                connection.transport.write(b"0\r\n\r\n")
            elif size != length:
                raise ValueError("the body is not as long as was said")
        except Exception as error:  # the caller's: it has left
            self._fail(error)
            return
        self._sent = True
        self._settle()

    # In.

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        assert self._parser is not None
        self.heard = True
        self._plain += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ProtocolError(type(error).__name__))
            return
        if self._plain > MOST_HEAD:
            self._fail(ProtocolError("the head is too long"))
            return
        self._settle()
        self._wake()

    def on_message_begin(self) -> None:
        """An answer; another one after it was not asked for."""
        self._more_came = self._ended

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer, of which none is wanted."""
        if not self.status:
            self.pairs.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """The head."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:  # not yet the answer
            self.pairs.clear()
            return
        if self._ended:
            return
        if status > 599:
            raise ProtocolError("no status that there is")
        self.headers = headers = {name.lower(): value for name, value in self.pairs}
        if "content-encoding" in headers and not self._raw and not self._headless:
            packed = (
                ", ".join(value for name, value in self.pairs if name.lower() == "content-encoding").strip().lower()
            )
            if packed in PACKED:
                self._unpacker = Decompressor()
            elif packed not in ("", "identity"):
                raise ProtocolError("packed in a way that was not asked for")
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._to_the_end = not chunked and "content-length" not in headers
        self.status = status
        if self._headless:
            self._ended = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._plain = 0
        if not self._ended:
            self._pieces.append(body)
            self._held += len(body)
            if self._held > HIGH and not self._paused:
                self._paused = True
                self._connection.transport.pause_reading()

    def on_message_complete(self) -> None:
        """The end, unless it was only a word in between."""
        if self.status and not self._ended:
            assert self._parser is not None
            self._ended, self._again = True, self._parser.should_keep_alive()

    def broke_off(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self.status and self._to_the_end and error is None:
            self._ended = True
            self.abort()
            self._wake()
        else:
            self._fail(error if isinstance(error, OSError) else ConnectionLost("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        """An answer that was whole before stays so, but its connection does not."""
        if not self._ended:
            self._ended, self._error = True, error
        self.abort()
        self._wake()

    def _settle(self) -> None:
        """Let go of the connection where nothing more will come."""
        connection = self._connection
        if not self._ended or connection.response is not self:
            return
        if self._again and not self._more_came and self._all_sent():
            self._resume()
            self._parser = None  # each holds the other
            connection.free()
        else:
            self.abort()

    def _all_sent(self) -> bool:
        """An answer that came early may be to a request that is still being written."""
        transport = self._connection.transport
        return self._sent and not transport.is_closing() and not transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection now, if it is still ours."""
        if self._upload is not None and self._upload is not asyncio.current_task():
            self._upload.cancel()
        if self._connection.response is self:
            self._parser = self._connection.response = None
            self._connection.transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Until something comes; the error, if it was one."""
        if self._error is None and not self._ended:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(self._pool.timeout, self._fail, TimeoutError())
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        if self._error is not None:
            raise self._error

    # For whoever has asked.

    async def read(self) -> bytes:
        """All of the body."""
        if self._ended and self._error is None and self._unpacker is None:  # it came with its head, as short ones do
            return self._taken() if self._pieces else b""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.iter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > MOST:
                raise UpstreamFailed(502, f"{self._pool.name} sent more than {MOST} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        try:
            while True:
                if self._pieces:
                    piece = self._taken()
                    if self._unpacker is None:
                        yield piece
                    else:
                        for unpacked in self._unpacker.feed(piece):
                            yield unpacked
                elif self._ended and self._error is None:
                    break
                else:
                    await self._wait()
            if self._unpacker is not None:
                self._unpacker.end()
        except OSError as error:
            raise upstream_failed(self._pool.name, error) from without_traceback(error)

    def _taken(self) -> bytes:
        """What is held."""
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        self._resume()
        return piece

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._connection.transport.is_closing():
                self._connection.transport.resume_reading()

    async def close(self) -> None:
        """Let go of it. Its end may be on the way: then the connection can be used again."""
        if self._connection.response is self:
            if self._paused or self._to_the_end:
                self.abort()
            else:
                asyncio.get_running_loop().call_later(LINGER, self.abort)
