"""A fake LLM provider: a real HTTP server on loopback that speaks as OpenAI and Anthropic do, and fails as it is told.

    with FakeUpstream() as upstream:
        upstream.fail("429", "reset")               the next two calls, in this order
        OpenAI(base_url=upstream.openai, api_key="any")
        assert upstream.count() == 3

Faults, by what the client sees:

    429, 500        an error, before anything was generated (429 says when to come again: at once)
    reset           the connection is reset in the middle of the answer
    cut             the answer ends in the middle, politely
    stall           nothing more comes in the middle of the answer, for `stall` seconds; then it is cut
    no-finish       all of it, but no choice has a finish reason
    error-event     an error in the middle of a stream, which then ends as if nothing had happened
    html            a page with status 200
    no-options      400 for requests with stream_options, as by servers that do not know them
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from knapcache.errors import InvalidInput
from knapcache.testing.provider_answers import PLAIN, STREAM

FAULTS = ("429", "500", "reset", "cut", "stall", "no-finish", "error-event", "html", "no-options")
FINISH = re.compile(r'"(finish_reason|stop_reason)": "\w+"|"status": "completed"')


def not_embeddable(end: str, body: dict[str, Any]) -> bool:
    """Embeddings are of texts and of tokens."""
    given = body.get("input")
    kinds = {type(item) for item in given} if isinstance(given, list) else {type(given)}
    return end == "/embeddings" and (not given or not (kinds <= {str} or kinds <= {int} or kinds <= {list}))


class UpstreamCall(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case names."""
    body: Any
    """From JSON; None where it is none."""


class FakeUpstream:
    """The server, in threads of its own.

    delay   seconds before an answer begins; pace: between the events of a stream; stall: how long that fault lasts
    """

    def __init__(self, delay: float = 0.0, pace: float = 0.0, stall: float = 5.0) -> None:
        self.delay, self.pace, self.stall = delay, pace, stall
        self.calls: list[UpstreamCall] = []
        self.disconnects = 0
        """Clients that went away before they had the whole answer."""
        self._faults: deque[str] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.upstream = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens; Anthropic's SDK wants this one."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai(self) -> str:
        """The base URL for OpenAI's SDK."""
        return f"{self.url}/v1"

    def fail(self, *faults: str) -> None:
        """What the next calls come to, one after the other."""
        for fault in faults:
            if fault not in FAULTS:
                raise InvalidInput(f"fault must be one of {', '.join(FAULTS)}, not {fault!r}")
        self._faults.extend(faults)

    def count(self, end: str = "") -> int:
        """Calls so far, to paths with this end."""
        return sum(call.path.partition("?")[0].endswith(end) for call in list(self.calls))

    def record_call(self, call: UpstreamCall) -> tuple[int, str]:
        """The number of a call, and what it comes to."""
        with self._lock:
            self.calls.append(call)
            return len(self.calls), self._faults.popleft() if self._faults else ""

    def wait(self, seconds: float) -> bool:
        """Sleep, unless the server is closed meanwhile: is it?"""
        return self._closing.wait(seconds) if seconds else self._closing.is_set()

    def stop_stalling(self) -> None:
        """Stalled answers are cut now, and from here on nothing is waited for."""
        self._closing.set()

    def start(self) -> Self:
        """Listen."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Hear no more."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    upstream: FakeUpstream
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away; a fake has no log to say so."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def do_GET(self) -> None:
        """Whatever is not cached: here is what was asked."""
        self._arrived(None)
        self._send(200, json.dumps({"path": self.path, "object": "list", "data": []}).encode())

    def do_POST(self) -> None:
        """A call."""
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        serial, fault = self._arrived(body)
        upstream = self.server.upstream
        upstream.wait(upstream.delay)
        end = next((end for end in PLAIN if self.path.partition("?")[0].endswith(end)), None)
        if fault in ("429", "500"):
            said = json.dumps({"error": {"message": "try again", "type": "fault", "code": fault}}).encode()
            self._send(int(fault), said, {"retry-after": "0", "retry-after-ms": "1"} if fault == "429" else {})
        elif fault == "html":
            self._send(200, b"<html><body>Please wait</body></html>", kind="text/html")
        elif fault == "no-options" and isinstance(body, dict) and "stream_options" in body:
            self._send(400, b'{"error": {"message": "unknown field stream_options"}}')
        elif end is None or not isinstance(body, dict) or "model" not in body or not_embeddable(end, body):
            self._send(400 if end else 404, b'{"error": {"message": "no such thing"}}')
        elif body.get("stream") is True and end in STREAM:
            self._stream(STREAM[end](body, serial), fault, named=end in ("/messages", "/responses"))
        else:
            self._plain(json.dumps(PLAIN[end](body, serial)), fault)

    def _arrived(self, body: Any) -> tuple[int, str]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return self.server.upstream.record_call(UpstreamCall(self.command, self.path, headers, body))

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, kind: str = "") -> None:
        packed = "gzip" in self.headers.get("accept-encoding", "")
        body = gzip.compress(body) if packed else body
        self._head(status, {**(headers or {}), **({"content-encoding": "gzip"} if packed else {})}, kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str], kind: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", kind or "application/json")
        self.send_header("x-request-id", f"req_{len(self.server.upstream.calls)}")
        self.send_header("set-cookie", "secret=of-this-client")
        for name, value in headers.items():
            self.send_header(name, value)

    def _plain(self, said: str, fault: str) -> None:
        if fault == "no-finish":
            said = FINISH.sub(lambda match: match[0].rsplit(":", 1)[0] + ": null", said)
        if fault not in ("reset", "cut", "stall"):
            self._send(200, said.encode())
            return
        self._head(200, {"content-length": str(len(said.encode()))})
        self.end_headers()
        self.wfile.write(said.encode()[: len(said) // 2])
        self._break(fault)

    def _break(self, fault: str) -> None:
        """End in the middle."""
        if fault == "stall":
            self.server.upstream.wait(self.server.upstream.stall)
        if fault == "reset":  # no lingering: the peer gets a reset and not an end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _stream(self, said: Iterator[str], fault: str, named: bool) -> None:
        events = list(said)
        middle = len(events) // 2
        self._head(200, {"transfer-encoding": "chunked"}, kind="text/event-stream")
        self.end_headers()
        try:
            for place, data in enumerate(events):
                if place == middle and fault in ("reset", "stall"):
                    self._break(fault)
                    return
                if place == middle and fault == "cut":
                    break
                if place == middle and fault == "error-event":
                    self._chunk('event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n')
                if fault == "no-finish":
                    data = FINISH.sub(lambda match: match[0].rsplit(":", 1)[0] + ": null", data)
                name = f"event: {json.loads(data)['type']}\n" if named else ""
                self._chunk(f"{name}data: {data}\n\n")
                time.sleep(self.server.upstream.pace)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.upstream.disconnects += 1
            self.close_connection = True

    def _chunk(self, text: str) -> None:
        raw = text.encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))
        self.wfile.flush()
