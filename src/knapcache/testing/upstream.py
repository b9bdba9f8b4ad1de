"""A fake LLM provider: an HTTP server on loopback with the endpoints of OpenAI and Anthropic, and injectable faults.

    with FakeUpstream() as upstream:
        upstream.fail("429", "reset")               # the next two calls, in this order
        OpenAI(base_url=upstream.openai_url, api_key="any")
        assert upstream.count() == 3

Faults:

    401, 429, 500, 529   an error status; 429 comes with retry-after: 0
    reset           the connection is reset in the middle of the answer
    cut             the connection is closed in the middle of the answer
    stall           nothing is sent for `stall` seconds in the middle of the answer; then the connection is closed
    no-finish       a complete answer without a finish reason
    error-event     an error event in the middle of a stream, which then continues
    html            an HTML page with status 200
    no-options      status 400 for requests with stream_options, like servers that do not support the field
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
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from knapcache.errors import InvalidInput
from knapcache.testing.provider_answers import PLAIN, SCRIPTED, STREAM

ERROR_STATUSES = ("401", "429", "500", "529")
FAULTS = (*ERROR_STATUSES, "reset", "cut", "stall", "no-finish", "error-event", "html", "no-options")
FINISH_REASON = re.compile(r'"(finish_reason|stop_reason)": "\w+"|"status": "completed"')


def is_invalid_embedding(endpoint: str, body: dict[str, Any]) -> bool:
    """Return whether this is an embeddings request whose input is neither text nor tokens."""
    content = body.get("input")
    kinds = {type(item) for item in content} if isinstance(content, list) else {type(content)}
    return endpoint == "/embeddings" and (not content or not (kinds <= {str} or kinds <= {int} or kinds <= {list}))


def charged_events(events: Iterable[str], charge: InputCharge) -> Iterator[str]:
    """Yield the events of a stream with the usage of this charge."""
    if type(charge) is InputCharge:
        yield from events
        return
    for data in events:
        if data == "[DONE]":
            yield data
            continue
        event = json.loads(data)
        charge.set_usage(event)
        yield json.dumps(event)


class UpstreamCall(NamedTuple):
    """A request that the fake provider received."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: Any
    """Parsed JSON, or None if the body is not JSON."""
    raw: bytes = b""
    """The body as it was sent."""


class InputCharge:
    """The input bill of one request. This one changes nothing; see `PrefixProvider`."""

    refusal: tuple[int, dict[str, Any]] | None = None
    """Status and body of an error answer."""

    def begin(self) -> None:
        """Called when the response begins."""

    def set_usage(self, data: dict[str, Any]) -> None:
        """Set the usage in an answer or in an event of a stream."""


class FakeUpstream:
    """The server, in background threads.

    delay   seconds before an answer
    pace    seconds between the events of a stream
    stall   seconds that a stall fault lasts
    port    to listen on; 0: any
    """

    def __init__(self, delay: float = 0.0, pace: float = 0.0, stall: float = 5.0, port: int = 0) -> None:
        self.delay, self.pace, self.stall = delay, pace, stall
        self.answer: Callable[[dict[str, Any]], str] | None = None
        """Returns the text of the answer to a request body; None: answers echo the request."""
        self.calls: list[UpstreamCall] = []
        self.disconnects = 0
        """Clients that disconnected during a stream."""
        self._faults: deque[str] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.upstream = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Base URL for Anthropic's SDK."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI's SDK."""
        return f"{self.url}/v1"

    def fail(self, *faults: str) -> None:
        """Queue faults for the next calls, one per call."""
        for fault in faults:
            if fault not in FAULTS:
                raise InvalidInput(f"fault must be one of {', '.join(FAULTS)}, not {fault!r}")
        self._faults.extend(faults)

    def count(self, suffix: str = "") -> int:
        """Return the number of calls to paths with this suffix."""
        return sum(call.path.partition("?")[0].endswith(suffix) for call in list(self.calls))

    def record_call(self, call: UpstreamCall) -> tuple[int, str]:
        """Store a call; return its number and its fault, if any."""
        with self._lock:
            self.calls.append(call)
            return len(self.calls), self._faults.popleft() if self._faults else ""

    def charge(self, endpoint: str, call: UpstreamCall) -> InputCharge:  # noqa: ARG002
        """Bill a request. Called when it arrives, unless a fault answers it with an error status."""
        return InputCharge()

    def wait(self, seconds: float) -> bool:
        """Sleep until the time is over or the server closes; return whether it closes."""
        return self._closing.wait(seconds) if seconds else self._closing.is_set()

    def stop_stalling(self) -> None:
        """End all stalls and delays, now and from now on."""
        self._closing.set()

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
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
        """Ignore errors of clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        """Answer any path with its own path, or with an error status: GET requests are never cached."""
        *_, fault = self._record_call(None)
        if fault in ERROR_STATUSES:
            self._fail(fault)
        else:
            self._send(200, json.dumps({"path": self.path, "object": "list", "data": []}).encode())

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        call, serial, fault = self._record_call(body, raw)
        upstream = self.server.upstream
        endpoint = next((end for end in PLAIN if self.path.partition("?")[0].endswith(end)), "")
        is_valid = bool(endpoint) and isinstance(body, dict) and "model" in body
        charge = upstream.charge(endpoint, call) if is_valid and fault not in ERROR_STATUSES else InputCharge()
        upstream.wait(upstream.delay)
        if is_valid and upstream.answer is not None:
            body = {**body, SCRIPTED: upstream.answer(body)}
        if fault in ERROR_STATUSES:
            self._fail(fault)
        elif fault == "html":
            self._send(200, b"<html><body>Please wait</body></html>", kind="text/html")
        elif fault == "no-options" and isinstance(body, dict) and "stream_options" in body:
            self._send(400, b'{"error": {"message": "unknown field stream_options"}}')
        elif not is_valid or is_invalid_embedding(endpoint, body):
            self._send(400 if endpoint else 404, b'{"error": {"message": "invalid request"}}')
        elif charge.refusal is not None:
            self._send(charge.refusal[0], json.dumps(charge.refusal[1]).encode())
        elif body.get("stream") is True and endpoint in STREAM:
            charge.begin()
            events = list(charged_events(STREAM[endpoint](body, serial), charge))
            self._stream(events, fault, named=endpoint in ("/messages", "/responses"))
        else:
            charge.begin()
            answer = PLAIN[endpoint](body, serial)
            charge.set_usage(answer)
            self._plain(json.dumps(answer), fault)

    def _record_call(self, body: Any, raw: bytes = b"") -> tuple[UpstreamCall, int, str]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = UpstreamCall(self.command, self.path, headers, body, raw)
        return call, *self.server.upstream.record_call(call)

    def _fail(self, status: str) -> None:
        error = json.dumps({"error": {"message": "try again", "type": "fault", "code": status}}).encode()
        self._send(int(status), error, {"retry-after": "0", "retry-after-ms": "1"} if status == "429" else {})

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

    def _plain(self, answer: str, fault: str) -> None:
        if fault == "no-finish":
            answer = FINISH_REASON.sub(lambda match: match[0].rsplit(":", 1)[0] + ": null", answer)
        if fault not in ("reset", "cut", "stall"):
            self._send(200, answer.encode())
            return
        self._head(200, {"content-length": str(len(answer.encode()))})
        self.end_headers()
        self.wfile.write(answer.encode()[: len(answer) // 2])
        self._break_off(fault)

    def _break_off(self, fault: str) -> None:
        """Close the connection in the middle of an answer."""
        if fault == "stall":
            self.server.upstream.wait(self.server.upstream.stall)
        if fault == "reset":  # linger 0 makes close() send RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _stream(self, events: list[str], fault: str, named: bool) -> None:
        middle = len(events) // 2
        self._head(200, {"transfer-encoding": "chunked"}, kind="text/event-stream")
        self.end_headers()
        try:
            for number, data in enumerate(events):
                if number == middle and fault in ("reset", "stall"):
                    self._break_off(fault)
                    return
                if number == middle and fault == "cut":
                    break
                if number == middle and fault == "error-event":
                    self._chunk('event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n')
                if fault == "no-finish":
                    data = FINISH_REASON.sub(lambda match: match[0].rsplit(":", 1)[0] + ": null", data)
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
