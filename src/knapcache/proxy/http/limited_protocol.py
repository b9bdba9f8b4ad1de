"""uvicorn's HTTP protocol with limits on what a client may send and how long it may take.

Limits apply while bytes arrive, before the application or its access checks see the request:

    head       max_header_count headers, and max_headers bytes with the target. A head that is not complete holds at
               most two reads more
    body       max_body bytes, by Content-Length and by count. Framing (chunk sizes and extensions) may take as many
               bytes as the body, and 2 * max_headers more; without any byte of the body between, max_headers
    trailers   are dropped
    pipeline   MAX_PIPELINED requests wait for earlier responses
    time       connections.py

A request over a limit gets an error (400, 408, 413, 431), and the connection is closed. If the server closed at once
while the client is still sending, TCP would reset the connection, and the client might not see the error. So only the
server's side is closed, and what still arrives is discarded (DISCARDING).

    state of the message that is being parsed
    IDLE        between two messages
    HEAD        the head is not complete
    HOLDING     the head is complete, the body is collected by FastPathProtocol
    PASSED_ON   the head is complete, uvicorn's cycle gets the body
    DISCARDING  nothing is parsed any more: the connection will be closed

`Upgrade` is not supported. httptools does not parse the body of such a request: its bytes would be the next request. So
one with a body gets status 400. One without a body is served as if it had no Upgrade, and the connection is closed.

This uses fewer internals of uvicorn than uvicorn_protocol.py. `uvicorn_check.py` tests them at start-up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Any, NoReturn

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from knapcache.proxy.http import connections
from knapcache.proxy.http.asgi_request import REFUSED
from knapcache.proxy.http.connections import Connections, Stage

UNSUPPORTED_METHODS = (b"CONNECT", b"TRACE")
"""TRACE echoes a request: an upstream that supports it would show the provider's key to the caller."""
MAX_PIPELINED = 100
"""Maximum pipelined requests. At the limit, the connection closes after they are answered."""
MAX_DISCARDED = 1 << 20
"""Bytes that are discarded after an error. After a body that is too large it is DISCARDED_BODIES * max_body."""
DISCARDED_BODIES = 4
CLOSE_SECONDS = 1.0
"""Seconds that an idle connection may take to close when the process stops."""
MAX_LENGTH_DIGITS = 20
"""Digits of Content-Length. 2^64 has 20."""


class ParseState(Enum):
    """State of the message that is being parsed."""

    IDLE = "idle"
    HEAD = "head"
    HOLDING = "holding"
    PASSED_ON = "passed on"
    DISCARDING = "discarding"


IDLE, HEAD, HOLDING, PASSED_ON, DISCARDING = ParseState


class ParsingStopped(Exception):  # noqa: N818 - never leaves the parser
    """Stops httptools: the request is over a limit."""


class SentBytes:
    """Bytes that were written to a connection, as far as they are counted."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    state = IDLE
    messages = 0
    """Requests that have begun."""
    body_size = 0
    """Bytes of the current body that have arrived."""
    _error: tuple[int, str, str] | None = None
    """Status, type and message of the error that stopped the parser."""
    _counted = 0
    """The message that the next three belong to."""
    _raw_size = 0
    """Bytes of the message, without the read in which it began."""
    _framing_size = 0
    """Bytes of whole reads since the last byte of the body."""
    _body_seen = 0
    """`body_size` after the last read."""
    _closing = False
    """Whether the connection closes after the response to the current message."""
    _discardable = 0
    """Bytes that are still discarded before the connection is closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        app: Any = self.app
        self._connections: Connections = app.connections
        self._max_header_count = self._connections.max_header_count
        self.sent = SentBytes()
        self._cycles: deque[Any] = deque()
        """uvicorn's cycles whose response may be incomplete. uvicorn itself knows only the last one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        if self._connections.add(self):
            return
        if self._connections.add_refused(self):
            self._respond(503, "too_many_connections", "Too many connections are open.", b"retry-after: 1\r\n")
        else:
            self.evict()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.remove(self)
        super().connection_lost(exc)
        for cycle in self._cycles:  # writing to a closed transport of uvloop raises
            cycle.disconnected = True
            cycle.message_event.set()
        self._cycles.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what arrives, within the limits."""
        if self.state is DISCARDING:
            self._discardable -= len(data)
            if self._discardable < 0:
                if self._responding():  # the connection closes after the responses, which the client may never read
                    self.flow.pause_reading()
                else:
                    self.transport.close()
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(*(self._error or (400, "invalid_request", "This is not a valid HTTP/1.1 request.")))
        except httptools.HttpParserUpgrade:
            pass  # the connection closes after the response
        else:
            if self.state is not IDLE:
                self._check_incomplete(len(data))

    def _check_incomplete(self, size: int) -> None:
        """Limit what belongs to an incomplete message, after a read of `size` bytes."""
        limit = self._connections.max_headers
        if self.state is HOLDING:  # its head is checked later, unless the body takes more than one read
            try:
                self.check_head()
            except ParsingStopped:
                assert self._error is not None
                self._refuse(*self._error)
                return
        if self._counted != self.messages:  # it began in this read
            self._counted, self._raw_size, self._framing_size, self._body_seen = self.messages, 0, 0, self.body_size
            return
        self._raw_size += size
        if self.state is HEAD:
            if self._raw_size > limit:
                self._refuse(431, "too_large", f"The head has more than {limit} bytes.")
        elif self.state is not DISCARDING:
            self._framing_size = self._framing_size + size if self.body_size == self._body_seen else 0
            self._body_seen = self.body_size
            if self._framing_size > limit or self._raw_size > 2 * (limit + self.body_size):
                self._refuse(400, "invalid_request", "The framing of the body has too many bytes.")

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Begin a head."""
        self.state = HEAD
        self.messages += 1
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers are dropped."""
        if self.state is not HEAD:
            return
        headers = self.headers
        if len(headers) >= self._max_header_count:
            self._stop(431, "too_large", f"The head has more than {self._max_header_count} headers.")
        # What uvicorn's own method does. Calling it would cost a hit a microsecond; uvicorn_check.py compares them.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head and start the application."""
        self.check_head()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(400, "invalid_request", f"More than {MAX_PIPELINED} requests were sent ahead.")
        super().on_headers_complete()  # raises for a target without a path
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        self._cycles.append(self.cycle)
        self.state, self.body_size = PASSED_ON, 0
        if self.parser.should_upgrade():
            self._closing, self.cycle.keep_alive = True, False

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self.body_size += len(body)
        if self.body_size > self._connections.max_body:
            self._stop_body()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a message."""
        self.state = DISCARDING if self._closing else IDLE
        super().on_message_complete()

    def check_head(self) -> None:
        """Stop the parser if the head is too large, ambiguous, or asks for something unsupported."""
        size, hosts, has_body, websocket = len(self.url), 0, False, False
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                if len(value) > MAX_LENGTH_DIGITS:  # zeros, which another server may not read
                    self._stop(400, "invalid_request", f"Content-Length has more than {MAX_LENGTH_DIGITS} digits.")
                if int(value) > self._connections.max_body:
                    self._stop_body()
                has_body = has_body or int(value) > 0
            elif name == b"transfer-encoding":
                has_body = True
                if value.strip().lower() != b"chunked":
                    self._stop(400, "invalid_request", "Transfer-Encoding must be chunked.")
            elif name == b"upgrade":
                websocket = b"websocket" in value.lower()
        if size > self._connections.max_headers:
            self._stop(431, "too_large", f"The head has more than {self._connections.max_headers} bytes.")
        if hosts > 1:
            self._stop(400, "invalid_request", "The request has more than one Host header.")
        if self.parser.get_http_version() not in ("1.1", "1.0"):  # httptools also accepts 0.9 and 2.0
            self._stop(400, "invalid_request", "The version must be HTTP/1.1 or HTTP/1.0.")
        if self.parser.get_method() in UNSUPPORTED_METHODS:
            self._stop(400, "invalid_request", "CONNECT and TRACE are not supported.")
        if self.parser.should_upgrade():
            if websocket:
                self._stop(400, "invalid_request", "WebSocket is not supported.")
            if has_body:
                self._stop(400, "invalid_request", "A request with Upgrade must not have a body.")

    def _stop_body(self) -> NoReturn:
        self._stop(413, "too_large", f"The body has more than {self._connections.max_body} bytes.")

    def _stop(self, status: int, kind: str, message: str) -> NoReturn:
        """Stop the parser. `data_received` then sends this error."""
        self._error = status, kind, message
        raise ParsingStopped

    # Errors.

    def _responding(self) -> bool:
        """Return whether the application is still at work on a response."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    def _refuse(self, status: int, kind: str, message: str) -> None:
        """Send an error, unless a response is under way, and close the connection."""
        in_body, self.state = self.state is PASSED_ON, DISCARDING
        self._discardable = DISCARDED_BODIES * self._connections.max_body if status == 413 else MAX_DISCARDED
        cycle = self.cycle
        if in_body and cycle.response_complete:  # this request is answered already
            self.transport.close()
            return
        if self._responding():
            if in_body:
                scope: Any = cycle.scope
                scope[REFUSED] = status
                cycle.disconnected = True
                cycle.waiting_for_100_continue = False  # it would be written after the error
                cycle.message_event.set()
            else:
                cycle.keep_alive = False  # it closes the connection when all responses are sent
            if self.pipeline or not in_body:
                return
            if cycle.response_started:
                self.transport.close()
                return
        else:
            self._connections.on_refused(status)
        self._respond(status, kind, message)

    def _respond(self, status: int, kind: str, message: str, headers: bytes = b"") -> None:
        """Send an error, and close the sending side."""
        self.state = DISCARDING
        self.flow.resume_reading()  # paused while the application took the body; what arrives is discarded now
        body = orjson.dumps({"type": "error", "error": {"message": message, "type": kind, "code": kind}})
        lines = [b"%b: %b\r\n" % pair for pair in self.server_state.default_headers]
        length = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(b"".join((STATUS_LINE[status], *lines, headers, length, body)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()  # the application may have stopped it, and will not continue it

    def shutdown(self) -> None:
        """Close the connection, or let it close after its response. One that only discards closes at once."""
        if self.transport.is_closing():
            pass  # after a second close(), abort() of asyncio's TLS transport does nothing, and other methods raise
        elif self.state is DISCARDING and not self._responding():
            self.transport.close()
        else:
            super().shutdown()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            # With TLS the connection stays open until the client answers, and an idle client does not read.
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.transport.abort)

    # For connections.py.

    def stage(self) -> tuple[Stage, int]:
        """Return what the connection waits for, and a number that changes when it makes progress."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            return connections.UNREAD, self.sent.count - unread
        if self.transport.is_closing():  # with TLS it waits for its client
            return connections.CLOSING, self.messages
        state = self.state
        in_body = state is PASSED_ON or state is HOLDING
        if self.flow.read_paused if in_body else self._responding():
            return connections.BUSY, self.messages
        if in_body:
            return connections.BODY, self.messages
        if state is DISCARDING:
            return connections.LINGERING, self.messages
        if state is IDLE and self.messages:
            return connections.IDLE, self.messages
        return connections.HEAD, self.messages

    def expire(self, stage: Stage) -> None:
        """Close the connection: its stage took too long."""
        if stage is connections.BODY:
            self._refuse(408, "timeout", "The body took too long.")
        elif stage is connections.HEAD and self.state is HEAD:
            self._refuse(408, "timeout", "The head took too long.")
        elif stage in (connections.UNREAD, connections.CLOSING):
            self.transport.abort()
        else:
            self.transport.close()

    def evict(self) -> None:
        """Close the connection: another one needs the room."""
        self.transport.abort()
