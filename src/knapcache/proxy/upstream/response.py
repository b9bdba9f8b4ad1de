"""One exchange: a request on its way out and its response (parsed by connection.py).

    AWAITING_RESPONSE   no byte was received: the request can safely be sent again
    READING_HEAD        a part of the head, or 1xx responses, were received
    READING_BODY        status and headers are known
    COMPLETE            the whole response was received
    FAILED              every further read raises the error
    CLOSED              the caller closed the exchange before its end

    state               event                                              next state     the connection is
    AWAITING_RESPONSE   first byte                                         READING_HEAD
    READING_HEAD        1xx head, at most MAX_INFORMATIONAL                READING_HEAD
    READING_HEAD        final head                                         READING_BODY
    READING_HEAD        final head of a response to HEAD                   COMPLETE       closed
    READING_BODY        end by content-length, last chunk or status        COMPLETE       released or closed
    READING_BODY        connection closed, and the body has no length      COMPLETE       closed
    COMPLETE            more bytes in the same read                        COMPLETE       closed
    the first three     invalid HTTP, a limit, a timeout, a lost           FAILED         closed
                        connection, an error of the request body
    the first three     abort(), or LINGER seconds after close()           CLOSED         closed

A connection is reusable if HTTP keeps it alive, the whole request was written, and no byte followed the response. The
exchange owns the connection (`Connection.response`) until it is released or closed. It never outlives COMPLETE: a
response that is complete before its request was written closes the connection.

Independent of the state: whether the request is written, whether reading is paused (backpressure), how the body ends.

Time limits: `Pool.idle_timeout` while a reader waits, and the deadline of the whole exchange.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator

from knapcache.errors import UpstreamFailed
from knapcache.proxy.decompress import DecompressionError, Decompressor
from knapcache.proxy.upstream.connection import Connection, Pairs, Pool, ResponseParser
from knapcache.proxy.upstream.failures import (
    ConnectionLost,
    TimeLimit,
    TotalTimeout,
    upstream_failed,
    without_traceback,
)

LINGER = 0.25
"""Seconds that a response may take to end after close(): waiting is cheaper than a new connection."""
HIGH_WATER = 1 << 20
"""Bytes of a body that are buffered before reading is paused."""
MAX_BODY = 256 << 20
"""Bytes of a body that `read` returns, unless the client has another limit."""
JOIN_LIMIT = 1 << 16
"""Request bodies up to this many bytes are written together with the head, in one system call."""


class ExchangeState(enum.Enum):
    """State of an exchange; the table of transitions is in the module's docstring."""

    AWAITING_RESPONSE = enum.auto()
    READING_HEAD = enum.auto()
    READING_BODY = enum.auto()
    COMPLETE = enum.auto()
    FAILED = enum.auto()
    CLOSED = enum.auto()


# As names of the module: `ExchangeState.COMPLETE` takes 0.3 µs in Python 3.11, and an exchange looks at its state ten
# times.
AWAITING_RESPONSE, READING_HEAD, READING_BODY, COMPLETE, FAILED, CLOSED = ExchangeState


class BodyBuffer:
    """The blocks of a body that were received and not yet read. More than HIGH_WATER bytes pause reading."""

    __slots__ = ("_transport", "blocks", "paused", "size")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.blocks: list[bytes] = []
        self.size = 0
        self.paused = False
        """Whether the transport reads no more (backpressure)."""

    def add(self, blocks: list[bytes]) -> None:
        """Take over all blocks of a list."""
        self.blocks += blocks
        self.size += sum(map(len, blocks))
        blocks.clear()
        if self.size > HIGH_WATER and not self.paused:
            self.paused = True
            self._transport.pause_reading()

    def take(self) -> bytes:
        """Empty the buffer and resume reading."""
        block = self.blocks[0] if len(self.blocks) == 1 else b"".join(self.blocks)
        self.blocks.clear()
        self.size = 0
        self.resume_reading()
        return block

    def resume_reading(self) -> None:
        """End the backpressure."""
        if self.paused:
            self.paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()


class Response:
    """One exchange.

    method   of the request; a response to HEAD has no body
    raw      return the body as it is encoded; otherwise it is decompressed
    """

    def __init__(self, pool: Pool, connection: Connection, method: str, raw: bool) -> None:
        self._pool, self._connection = pool, connection
        connection.response = self
        self._parser, self._body = ResponseParser(method, raw), BodyBuffer(connection.transport)
        self._decompressor: Decompressor | None = None
        self.state = AWAITING_RESPONSE
        self.status = 0
        """0 until the head was received."""
        self.pairs: Pairs = []
        """The headers as they were received."""
        self.headers: dict[str, str] = {}
        """The headers by lower-case name; of several with one name, the last."""
        self.safe_to_retry = False
        """The exchange failed before the first byte of a response."""
        self._request_written = True
        self._upload: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting_since = 0.0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The request.

    async def send(
        self, head: bytes, content: bytes | AsyncIterator[bytes] | None, length: int | None, deadline: float | None
    ) -> None:
        """Send the request, and return when the head of the response was received.

        length     of a content that is an iterator; None: it is sent in chunks
        deadline   the event loop's time at which the exchange fails; None: never
        """
        transport = self._connection.transport
        if deadline is not None:
            self._deadline = asyncio.get_running_loop().call_at(deadline, self._fail_total)
        if content is None:
            transport.write(head)
        elif isinstance(content, bytes):
            if len(content) <= JOIN_LIMIT:
                transport.write(head + content)
            else:
                transport.write(head)
                transport.write(content)
        else:
            transport.write(head)
            self._request_written = False
            self._upload = asyncio.create_task(self._send_body(content, length))
        while not self.status:
            await self._wait()

    async def _send_body(self, content: AsyncIterator[bytes], length: int | None) -> None:
        """Write an iterator. A body of another length than announced fails, or it would shift the next request."""
        connection, size = self._connection, 0
        try:
            async for chunk in content:
                if chunk:
                    size += len(chunk)
                    if length is not None and size > length:
                        break
                    connection.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if length is None else chunk)
                    await connection.drain()
            if length is None:
                connection.transport.write(b"0\r\n\r\n")
            elif size != length:
                raise ValueError(f"the request body is not as long as its content-length, {length} bytes")
        except Exception as error:  # raised by the caller's iterator; the caller gets it from `send` or a read
            self._fail(error)
            return
        self._request_written = True

    # The response.

    def feed(self, data: bytes) -> None:
        """Parse bytes of the connection."""
        if self.state is AWAITING_RESPONSE:
            self.state = READING_HEAD
        error = self._parser.feed(data)
        self._take_parsed()
        if error is not None:
            self._fail(error)
            return
        if self.state is COMPLETE:
            self._give_up_connection()
        self._wake()

    def _take_parsed(self) -> None:
        """Change the state as the parser found, and take the blocks of the body."""
        parser = self._parser
        if self.state is READING_HEAD and parser.status:
            self.status, self.pairs, self.headers, self.state = (
                parser.status,
                parser.pairs,
                parser.headers,
                READING_BODY,
            )
            if parser.compressed:
                self._decompressor = Decompressor()
        if parser.blocks:
            self._body.add(parser.blocks)
        if parser.complete and self.state is READING_BODY:
            self._end(COMPLETE)

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection, which ends a body without a length."""
        if self.state is READING_BODY and self._parser.until_close and error is None:
            self._end(COMPLETE)
            self.abort()
            self._wake()
        else:
            self._fail(error if isinstance(error, OSError) else ConnectionLost("the connection was closed"))

    def _end(self, state: ExchangeState) -> None:
        """Enter one of the last three states."""
        self.state = state
        self._pool.in_flight -= 1
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _fail(self, error: Exception) -> None:
        """Close the connection. A response that is complete stays so, and the first error stays."""
        if self._error is None and self.state is not COMPLETE:
            self.safe_to_retry = self.state is AWAITING_RESPONSE
            self._error = error
            self._end(FAILED)
        self.abort()
        self._wake()

    def _give_up_connection(self) -> None:
        """Release the connection of a complete exchange if it is reusable; close it otherwise."""
        connection = self._connection
        if connection.response is not self:
            return
        transport = connection.transport
        written = self._request_written and not transport.is_closing() and not transport.get_write_buffer_size()
        if self._parser.keep_alive and written:
            self._body.resume_reading()
            self._parser.close()
            connection.release()
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection now, unless it was given up before."""
        if self._upload is not None and self._upload is not asyncio.current_task():
            self._upload.cancel()
        if self._connection.response is self:
            self._parser.close()
            self._connection.response = None
            self._connection.transport.abort()
            if self._error is None and self.state is not COMPLETE:
                self._error = ConnectionLost("the response was closed")
                self._end(CLOSED)
                self._wake()

    def _check_idle(self) -> None:
        """Fail if a reader has waited for `idle_timeout`; check again when that may be the case."""
        loop, self._idle_timer = asyncio.get_running_loop(), None
        if self._waiter is None:
            return  # no reader waits; the next one starts the timer again
        remaining = self._waiting_since + self._pool.idle_timeout - loop.time()
        if remaining <= 0:
            self._fail(TimeLimit(f"timeout: no data for {self._pool.idle_timeout:g} s"))
        else:
            self._idle_timer = loop.call_later(remaining, self._check_idle)

    def _fail_total(self) -> None:
        self._fail(TotalTimeout(f"timeout: the answer was not complete after {self._pool.total_timeout:g} s"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Wait for the next bytes or the end. Raises the exchange's error."""
        if self._error is None and self.state is not COMPLETE:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            self._waiting_since = loop.time()
            if self._idle_timer is None:  # it stays until the end: a timer for each read would take as long as the read
                self._idle_timer = loop.call_later(self._pool.idle_timeout, self._check_idle)
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error

    # The caller's side.

    async def wait_for_body(self, *, whole: bool) -> None:
        """Wait for the first bytes of the body, or for all of it up to HIGH_WATER. Raises UpstreamFailed."""
        try:
            while self.state is READING_BODY and not self._body.paused and (whole or not self._body.blocks):
                await self._wait()
        except OSError as error:
            raise upstream_failed(self._pool.name, error) from without_traceback(error)

    async def read(self) -> bytes:
        """Return the whole body. UpstreamFailed if it is longer than the client's `max_body`."""
        if self.state is COMPLETE and self._decompressor is None and self._body.size <= self._pool.max_body:
            # Short bodies arrive with their head.
            return self._body.take() if self._body.blocks else b""
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.iter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._pool.max_body:
                raise UpstreamFailed(502, f"upstream {self._pool.name} sent more than {self._pool.max_body} bytes")
        if size > HIGH_WATER:
            # 16 MB take 40 ms in fresh memory. Other threads run meanwhile: `join` releases the interpreter's lock.
            return await asyncio.to_thread(b"".join, chunks)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it is received. Raises UpstreamFailed."""
        try:
            while True:
                if self._body.blocks:
                    chunk = self._body.take()
                    if self._decompressor is None:
                        yield chunk
                    else:
                        for block in self._decompressor.feed(chunk):
                            yield block
                elif self.state is COMPLETE:
                    break
                else:
                    await self._wait()
            if self._decompressor is not None:
                self._decompressor.end()
        except (OSError, DecompressionError) as error:
            raise upstream_failed(self._pool.name, error) from without_traceback(error)

    async def close(self) -> None:
        """End the exchange. A response whose end may arrive within LINGER seconds gets that time."""
        if self._connection.response is self:
            if self._body.paused or self._parser.until_close:
                self.abort()
            else:
                asyncio.get_running_loop().call_later(LINGER, self.abort)
