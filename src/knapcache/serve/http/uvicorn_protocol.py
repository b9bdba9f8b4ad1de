"""Requests, answered where their bytes come in: uvicorn's protocol, which asks the shortcut before it starts a task.

A request to an endpoint whose answers are kept is held until its body is here, which as a rule is at once. Known by its
bytes, head and body, it is answered on the spot: what a task and its events cost is a third of what a bare server takes
for a request. Else it goes to the application by ASGI as any other, but with all of its body (`Cycle`); where it grows
long, or its connection is not to last, uvicorn takes it from where it was held.

    Invariant: while a request is held no cycle of uvicorn's is open, so what it sees is a request that came later.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from knapcache.model import Endpoint
from knapcache.serve.http.asgi_request import MOST_UNREAD, VOICE, RawPairs
from knapcache.serve.http.fast_path import LONGEST

PATHS = {f"{root}/{at.value}".encode(): at for root in ("/v1", "") for at in Endpoint}
OK = b"HTTP/1.1 200 OK\r\n"


class Protocol(HttpToolsProtocol):
    """One connection."""

    _held: bytes | None = None
    """What has come of the body of a request that is held."""
    _headers = 0
    """How many headers it has: those that come after its body are not among them."""

    def on_headers_complete(self) -> None:
        """Hold it, or let it go its way."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.url in PATHS and self.parser.get_method() == b"POST" and not self.expect_100_continue:
            self._held, self._headers = b"", len(self.headers)
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """More of it."""
        if self._held is None:
            super().on_body(body)
            return
        self._held = self._held + body if self._held else body
        if len(self._held) > LONGEST:
            self._let_go()

    def on_message_complete(self) -> None:
        """All of it."""
        held = self._held
        if held is None:
            super().on_message_complete()
        elif self.parser.should_keep_alive() and self.parser.get_http_version() == "1.1":
            self._held = None
            del self.headers[self._headers :]
            if not self._answered(held):
                self.cycle = Cycle(self, held)
                task = self.loop.create_task(self.cycle.run_asgi(self.app))
                task.add_done_callback(self.tasks.discard)
                self.tasks.add(task)
        else:
            self._let_go()
            super().on_message_complete()

    def _answered(self, body: bytes) -> bool:
        app: Any = self.app
        found = app.short(self.headers, PATHS[self.url], body)
        if found is None:
            return False
        said = [b"%b: %b\r\n" % pair for pair in self.server_state.default_headers]
        self.transport.write(b"".join((OK, *said, *found)))
        self.on_response_complete()
        return True

    def _let_go(self) -> None:
        """On to ASGI, with what has come so far."""
        held, self._held = self._held, None
        del self.headers[self._headers :]
        super().on_headers_complete()
        if held:
            super().on_body(held)


class Cycle(RequestResponseCycle):
    """A request whose body is here, and its answer: uvicorn's, but for what is only wanted of a body on its way.

    Head and body of an answer go out together, where both come at once.
    """

    def __init__(self, protocol: Protocol, body: bytes) -> None:  # in place of uvicorn's, with the same fields
        self.scope = protocol.scope
        self._extensions: Any = {VOICE: self}
        self.scope["extensions"] = self._extensions
        self.scope["method"], self.scope["query_string"] = "POST", b""
        self.scope["path"], self.scope["raw_path"] = protocol.url.decode("ascii"), protocol.url
        self.transport, self.flow, self.logger = protocol.transport, protocol.flow, protocol.logger
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.keep_alive = True
        self.more_body = self.disconnected = self.response_started = self.response_complete = False
        self.chunked_encoding: bool | None = None
        self.expected_content_length = 0
        self._body: bytes | None = body
        self._head = b""
        self._gone: asyncio.Future[None] | None = None

    @property
    def message_event(self) -> Any:  # type: ignore[override]
        """Of an event uvicorn uses `set` alone. No field: an object that holds itself waits for the collector."""
        return self

    def set(self) -> None:
        """The caller has gone, or the answer is complete."""
        self._extensions.clear()  # each holds the other
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def receive(self) -> Any:
        """The body; from then on only that the caller has gone."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.disconnected and not self.response_complete:
            self._gone = asyncio.get_running_loop().create_future()
            await self._gone
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """A part of the answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if message["type"] == "http.response.start":
            self.begin(message["status"], message["headers"])
        else:
            self.say(message["body"], message.get("more_body", False))

    def begin(self, status: int, headers: RawPairs) -> None:
        """The head of the answer; sent with what is said next, if that comes at once."""
        if self.response_started:
            raise RuntimeError("the answer has begun")
        if not self.disconnected:
            self.response_started = True
            self._head = self._said(status, headers)
            asyncio.get_running_loop().call_soon(self._flush)

    def _said(self, status: int, headers: RawPairs) -> bytes:
        lines = [STATUS_LINE[status]]
        for spelled, value in (*self.default_headers, *headers):
            name = spelled.lower()
            if name == b"content-length":
                self.chunked_encoding, self.expected_content_length = False, int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue  # said below
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
            raise RuntimeError("a line break in a header")
        return head

    def _flush(self) -> None:
        """The head alone: its body is not here yet."""
        head, self._head = self._head, b""
        if head and not self._left():
            self.transport.write(head)

    def _left(self) -> bool:
        """Whether the caller has gone. Only the last of several requests that came at once is told by the server."""
        if not self.disconnected:
            if self.transport.get_write_buffer_size() > MOST_UNREAD:
                self.transport.abort()
            self.disconnected = self.transport.is_closing()
        return self.disconnected

    def say(self, body: bytes, more: bool = True) -> None:
        """A piece of the body."""
        if self._left():
            return
        if not self.response_started or self.response_complete:
            raise RuntimeError("the answer has not begun, or is over")
        if self.chunked_encoding:
            end = b"" if more else b"0\r\n\r\n"
            framed = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the body is not as long as was said")
            framed = body
        head, self._head = self._head, b""
        if head or framed:
            self.transport.write(head + framed)
        if not more:
            self.response_complete = True
            self.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
