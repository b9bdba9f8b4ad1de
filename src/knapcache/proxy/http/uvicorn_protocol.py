"""uvicorn's HTTP protocol with a fast path: hits are answered where their bytes arrive, without an asyncio task.

A task and its events cost a third of what a bare server takes for a request. So a POST to a cacheable endpoint is held
until its body is complete, which is usually at once. If the fast path knows its bytes, the response is written on the
spot. Otherwise the request goes to the application by ASGI, as a `RequestCycle` with the whole body. Long bodies and
connections that close after the response are passed on to uvicorn's own cycle.

    state of the message that is being parsed (limited_protocol.py)
    HEAD ──▶ HOLDING         head of a POST to a cacheable endpoint; no response is under way; no Expect: 100-continue
    HEAD ──▶ PASSED_ON       any other head
    HOLDING ──▶ PASSED_ON    the body is longer than MAX_LENGTH, or the connection will close
    HOLDING ──▶ IDLE         end of the message: fast response or RequestCycle
    PASSED_ON ──▶ IDLE       end of the message
    IDLE ──▶ IDLE            a whole request with a repeated head (access.py): fast response or RequestCycle

    Invariant: while a request is held, no cycle is open on its connection. So a cycle's request came before or after.

This relies on internals of uvicorn. `uvicorn_check.py` tests them at start-up.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from knapcache.model import Endpoint
from knapcache.proxy.http.access import RepeatedHead, RequestHead, repeated_head
from knapcache.proxy.http.asgi_request import (
    HEAD_EXTENSION,
    MAX_UNREAD,
    SERVER_HEADERS,
    WRITER_EXTENSION,
    Pairs,
    RawPairs,
)
from knapcache.proxy.http.fast_path import MAX_LENGTH
from knapcache.proxy.http.limited_protocol import HOLDING, IDLE, LimitedProtocol
from knapcache.wire import PROXY_PATHS

PATHS = {path.encode(): endpoint for path, endpoint in PROXY_PATHS.items()}
OK = b"HTTP/1.1 200 OK\r\n"
CLOSE = "connection: close\r\n"


class DefaultHeaders:
    """uvicorn's default headers as encoded lines. uvicorn makes a new list of them once a second."""

    __slots__ = ("_headers", "_lines")

    def __init__(self) -> None:
        self._headers: RawPairs | None = None
        self._lines = b""

    def lines(self, headers: RawPairs) -> bytes:
        """Return the lines."""
        if headers is not self._headers:
            self._lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
            self._headers = headers
        return self._lines


default_headers = DefaultHeaders()


class FastPathProtocol(LimitedProtocol):
    """One connection."""

    _body: bytes | bytearray = b""
    """The body so far of a request that is held."""
    _repeated: RepeatedHead | None = None
    """The head of an earlier request."""
    _repeatable = False
    """Whether the head of the last request may be repeated."""

    def data_received(self, data: bytes) -> None:
        """Serve a request with a repeated head; parse anything else."""
        if self.state is not IDLE:
            super().data_received(data)
            return
        repeated = self._repeated
        if repeated is not None and (self.cycle is None or self.cycle.response_complete):
            body = repeated.body_of(data)
            if body is not None:
                self._serve_repeated(repeated, body)
                return
        messages, self._repeatable = self.messages, False
        super().data_received(data)
        if self._repeatable and self.messages == messages + 1 and self.state is IDLE:
            self._repeated = repeated_head(
                data,
                self.url,
                PATHS[self.url],
                self.headers,
                max_head=self._connections.max_headers,
                max_body=min(self._connections.max_body, MAX_LENGTH),
            )

    def _serve_repeated(self, repeated: RepeatedHead, body: bytes) -> None:
        """Answer a request whose head is known: nothing is parsed."""
        app: Any = self.app
        head = app.repeated_head(repeated.headers)
        if head is not None and self._respond_fast(head, repeated.endpoint, body):
            self.messages += 1
            return
        self.on_message_begin()
        self.url = repeated.url
        self.headers += repeated.headers_with_length(len(body))
        self._start_cycle(body, head)

    def on_headers_complete(self) -> None:
        """Hold the request, or pass it on."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.url in PATHS and self.parser.get_method() == b"POST" and not self.expect_100_continue:
            self.state, self._body, self.body_size = HOLDING, b"", 0
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self.state is not HOLDING:
            super().on_body(body)
            return
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):  # adding bytes to bytes would copy all of them for every piece
                self._body = bytearray(self._body)
            self._body += body
        self.body_size = len(self._body)
        if self.body_size > MAX_LENGTH:
            self._pass_on()

    def on_message_complete(self) -> None:
        """Answer a held request."""
        if self.state is HOLDING:
            if self.parser.should_keep_alive() and self.parser.get_http_version() == "1.1":
                body, self._body = bytes(self._body), b""
                app: Any = self.app
                head = app.known_head(self.headers)
                upgrade = self.parser.should_upgrade()
                self._repeatable = head is not None and not upgrade
                if head is not None and self._respond_fast(head, PATHS[self.url], body):
                    return
                if not upgrade:
                    self.check_head()
                    self._start_cycle(body, head)
                    return
                self._body = body
            self._pass_on()
        super().on_message_complete()

    def _respond_fast(self, head: RequestHead, endpoint: Endpoint, body: bytes) -> bool:
        """Write the response to a hit. Return False if the request takes more."""
        # A client that sends requests and reads no responses is served by a cycle, which waits for it.
        if self.flow.write_paused:
            return False
        app: Any = self.app
        response = app.fast_response(head, endpoint, body)
        if response is None:
            return False
        self.transport.write(b"".join((OK, default_headers.lines(self.server_state.default_headers), *response)))
        # Not on_response_complete: no request waits, reading is not paused, and connections.py has the idle timeout.
        self.state = IDLE
        self.server_state.total_requests += 1
        return True

    def _start_cycle(self, body: bytes, head: RequestHead | None) -> None:
        """Start the application with a complete request. head: what access.py knows about its head, or None."""
        self.state = IDLE
        self.cycle = RequestCycle(self, body, head)
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        """Continue with the next request. Without one, no timer is started: connections.py has the idle timeout."""
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _pass_on(self) -> None:
        """Give the request to uvicorn's own cycle, with the body so far."""
        body, self._body = bytes(self._body), b""
        super().on_headers_complete()
        if body:
            super().on_body(body)


class RequestCycle(RequestResponseCycle):
    """uvicorn's cycle for a request whose body is complete. It is also the `ResponseWriter` of its request.

    Head and body of a response go out in one write if both come in the same iteration of the event loop.
    """

    # Replaces uvicorn's constructor, with the same attributes.
    def __init__(self, protocol: FastPathProtocol, body: bytes, head: RequestHead | None) -> None:
        self.scope = protocol.scope
        self._extensions: Any = {WRITER_EXTENSION: self, HEAD_EXTENSION: head}
        self.scope["extensions"] = self._extensions
        self.scope["method"], self.scope["query_string"] = "POST", b""
        self.scope["path"], self.scope["raw_path"] = protocol.url.decode("ascii"), protocol.url
        self.transport, self.flow, self.logger = protocol.transport, protocol.flow, protocol.logger
        self._sent = protocol.sent
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.keep_alive = True
        self.more_body = self.disconnected = self.response_started = self.response_complete = False
        self.chunked_encoding: bool | None = None
        self.expected_content_length = 0
        self._body: bytes | None = body
        self._head = b""
        self._ended: asyncio.Future[None] | None = None

    @property
    def message_event(self) -> Any:  # type: ignore[override]
        """Uvicorn only calls `set` of it. A property, because an object that refers to itself needs the collector."""
        return self

    def set(self) -> None:
        """Handle the client's disconnect or the end of the response."""
        self._extensions.clear()  # breaks the reference cycle
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def receive(self) -> Any:
        """Return the body; after that, wait for the disconnect."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.disconnected and not self.response_complete:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Send a part of the response. Waits while the client reads too slowly."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if message["type"] == "http.response.start":
            self.start(message["status"], message["headers"])
        else:
            self.write(message["body"], message.get("more_body", False))

    async def respond(self, status: int, headers: Pairs, body: bytes) -> None:
        """Send a whole response in one write. Waits while the client reads too slowly."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.response_started:
            raise RuntimeError("The response has already started.")
        if not self.disconnected:
            lines = [
                f"{name}: {value}\r\n" for spelled, value in headers if (name := spelled.lower()) not in SERVER_HEADERS
            ]
            if CLOSE in lines:
                self.keep_alive = False
                lines.remove(CLOSE)
            if not self.keep_alive:
                lines.append(CLOSE)
            encoded = "".join(lines).encode("latin-1", "replace")
            if encoded.count(b"\n") != len(lines) or encoded.count(b"\r") != len(lines):
                raise RuntimeError("A header contains a line break.")
            default = default_headers.lines(self.default_headers)
            self._head = b"".join((STATUS_LINE[status], default, encoded, b"\r\n"))
            self.response_started, self.chunked_encoding, self.expected_content_length = True, False, len(body)
        self.write(body, more=False)

    def start(self, status: int, headers: RawPairs) -> None:
        """Send the head, together with the first piece of the body if that comes at once."""
        if self.response_started:
            raise RuntimeError("The response has already started.")
        if not self.disconnected:
            self.response_started = True
            self._head = self._encode_head(status, headers)
            asyncio.get_running_loop().call_soon(self._flush_head)

    def _encode_head(self, status: int, headers: RawPairs) -> bytes:
        lines = [STATUS_LINE[status]]
        for spelled, value in (*self.default_headers, *headers):
            name = spelled.lower()
            if name == b"content-length":
                self.chunked_encoding, self.expected_content_length = False, int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue  # added below
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.chunked_encoding is None:
            self.chunked_encoding = status not in (204, 304)
            if self.chunked_encoding:
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if len(head.splitlines()) != len(lines):
            raise RuntimeError("A header contains a line break.")
        return head

    def _flush_head(self) -> None:
        """Send the head alone: no body has come yet."""
        head, self._head = self._head, b""
        if head and not self._check_disconnected():
            self._sent.count += len(head)
            self.transport.write(head)

    def _check_disconnected(self) -> bool:
        """Return whether the client has disconnected. uvicorn tells only the last of several pipelined requests."""
        if not self.disconnected:
            transport = self.transport
            # A closed TLS transport of asyncio has no buffer any more, and raises AttributeError.
            if transport.is_closing():
                self.disconnected = True
            elif transport.get_write_buffer_size() > MAX_UNREAD:
                transport.abort()
                self.disconnected = True
        return self.disconnected

    def write(self, body: bytes, more: bool = True) -> None:
        """Send a piece of the body. more=False: it is the last one."""
        if self._check_disconnected():
            return
        if not self.response_started or self.response_complete:
            raise RuntimeError("The response has not started, or is complete.")
        if self.chunked_encoding:
            end = b"" if more else b"0\r\n\r\n"
            framed = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("The body does not have the announced length.")
            framed = body
        head, self._head = self._head, b""
        if head or framed:
            self._sent.count += len(head) + len(framed)
            self.transport.write(head + framed)
        if not more:
            self.response_complete = True
            self.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
