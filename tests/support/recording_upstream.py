"""An upstream that records the exact requests it gets, and misbehaves by script.

    with RecordingUpstream() as upstream:
        upstream.script(send(plain(b"hi"), then="reset"))  # for the next request
        ...
        assert upstream.targets == ["POST /v1/chat/completions"]

Requests are parsed by h11. Bytes that h11 rejects are in `malformed`: the proxy must never send any. Requests without
a script get the answers of `knapcache.testing.FakeUpstream`. They echo the request's text, and their ids count
requests, so an answer that reaches the wrong caller is detected.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import h11

from knapcache.testing.provider_answers import PLAIN, STREAM
from tests.support.timing import wait_until


class RecordedRequest(NamedTuple):
    """A request as the upstream got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    """Names in lower case, in the order of arrival."""
    body: bytes
    connection: int
    """Number of the connection, from 1."""

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for other, value in self.headers if other == name]

    def json(self) -> Any:
        """Return the body as JSON, or None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class UpstreamSide:
    """The upstream's side of a connection, for scripts. A script that sets `open` to False closes it."""

    def __init__(self, sock: socket.socket, stopping: threading.Event) -> None:
        self.socket, self._stopping = sock, stopping
        self.open = True

    def send(self, *pieces: bytes, pause: float = 0.0) -> bool:
        """Send pieces. Returns whether the proxy took them all: False if it has closed the connection."""
        try:
            for k, piece in enumerate(pieces):
                if k and pause and self._stopping.wait(pause):
                    return False
                self.socket.sendall(piece)
        except OSError:
            self.open = False
        return self.open

    def reset(self) -> None:
        """Close with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.open = False

    def wait_closed(self, seconds: float = 30.0) -> bool:
        """Read and drop bytes. Returns True when the proxy closes, False after `seconds` or when the test ends."""
        self.open = False
        end = time.monotonic() + seconds
        self.socket.settimeout(0.05)
        while time.monotonic() < end and not self._stopping.is_set():
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except TimeoutError:
                continue
            except OSError:
                return True
        return False

    def wait(self, seconds: float) -> bool:
        """Sleep. Returns whether the test ended before."""
        return self._stopping.wait(seconds)


Script = Callable[[UpstreamSide, RecordedRequest], None]
"""A function that responds to one request."""


def send(
    *pieces: bytes, pause: float = 0.0, then: Literal["keep", "close", "reset", "stall"] = "keep", stall: float = 30.0
) -> Script:
    """Send these bytes. then: keep the connection, close it, reset it, or send nothing more until the proxy closes."""

    def script(side: UpstreamSide, _request: RecordedRequest) -> None:
        side.send(*pieces, pause=pause)
        if then == "reset":
            side.reset()
        elif then == "stall":
            side.wait_closed(stall)
        elif then == "close":
            side.open = False

    return script


def plain(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return the bytes of a response with a content-length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class RecordingUpstream:
    """The server, with a thread per connection. delay: seconds before an answer without script."""

    def __init__(self, delay: float = 0.0, pace: float = 0.0) -> None:
        self.delay, self.pace = delay, pace
        self.requests: list[RecordedRequest] = []
        self.malformed: list[str] = []
        """What h11 says about bytes that are no request."""
        self.truncated = 0
        """Requests whose connection the proxy closed before their end: their callers left or broke off."""
        self.accepted = 0
        """Connections so far."""
        self._serial = 0
        self._scripts: deque[Script] = deque()
        self._always: Script | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)

    @property
    def url(self) -> str:
        """Base URL for Anthropic's SDK."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI's SDK."""
        return f"{self.url}/v1"

    def script(self, *scripts: Script) -> None:
        """Queue scripts for the next requests, one per request."""
        self._scripts.extend(scripts)

    def always(self, script: Script | None) -> None:
        """Run a script for every request without a queued one. None: the fake provider's answers."""
        self._always = script

    def clear(self) -> None:
        """Forget requests and scripts, before a test."""
        with self._lock:
            self.requests.clear()
            self.malformed.clear()
            self.truncated = 0
        self._scripts.clear()
        self._always, self.delay, self.pace = None, 0.0, 0.0

    @property
    def targets(self) -> list[str]:
        """Method and target of every request."""
        return [f"{request.method} {request.target}" for request in list(self.requests)]

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come."""
        wait_until(lambda: len(self.requests) >= count, lambda: f"{count} requests; {len(self.requests)} have come")

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and all connections."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.accepted += 1
                self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock, self.accepted), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        side = UpstreamSide(sock, self._stopping)
        rest = b""
        try:
            while side.open and not self._stopping.is_set():
                request, rest = read_request(sock, rest, number)
                if request is None:
                    self.truncated += bool(rest)
                    return
                with self._lock:
                    self.requests.append(request)
                    self._serial += 1
                    serial = self._serial
                    script = self._scripts.popleft() if self._scripts else self._always
                if script is not None:
                    script(side, request)
                else:
                    self._answer(side, request, serial)
        except h11.RemoteProtocolError as error:
            self.malformed.append(str(error))
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _answer(self, side: UpstreamSide, request: RecordedRequest, serial: int) -> None:
        """Send the fake provider's answer; for other paths a JSON object with method, target and serial number."""
        if self.delay:
            side.wait(self.delay)
        endpoint = next((end for end in PLAIN if request.target.partition("?")[0].endswith(end)), "")
        body = request.json()
        json_type = "content-type: application/json"
        if request.method != "POST" or not isinstance(body, dict) or not endpoint or "model" not in body:
            echo = {"method": request.method, "target": request.target, "serial": serial}
            content = plain(json.dumps(echo).encode(), json_type)
            side.send(content[: content.index(b"\r\n\r\n") + 4] if request.method == "HEAD" else content)
        elif body.get("stream") is True and endpoint in STREAM:
            self._stream(side, endpoint, body, serial)
        else:
            try:
                answer = plain(json.dumps(PLAIN[endpoint](body, serial)).encode(), json_type)
            except (AttributeError, KeyError, TypeError, ValueError):  # fields of the wrong type
                answer = plain(b'{"error": {"message": "invalid request"}}', json_type, status="400 Bad Request")
            side.send(answer)

    def _stream(self, side: UpstreamSide, endpoint: str, body: Any, serial: int) -> None:
        named = endpoint in ("/messages", "/responses")
        try:
            events = list(STREAM[endpoint](body, serial))
        except (AttributeError, KeyError, TypeError, ValueError):
            side.send(plain(b'{"error": {"message": "invalid request"}}', status="400 Bad Request"))
            return
        side.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for data in events:
            event = (f"event: {json.loads(data)['type']}\n" if named else "") + f"data: {data}\n\n"
            raw = event.encode()
            if not side.send(b"%x\r\n%b\r\n" % (len(raw), raw)) or (self.pace and side.wait(self.pace)):
                return
        side.send(b"0\r\n\r\n")


def read_request(sock: socket.socket, rest: bytes, number: int) -> tuple[RecordedRequest | None, bytes]:
    """Return the next request and the bytes after it; at the end of the connection None and the unfinished bytes."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    if rest:
        parser.receive_data(rest)
    head: Any = None
    body: list[bytes] = []
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = sock.recv(1 << 16)
            if not data:
                return None, parser.trailing_data[0] or (b"" if head is None else head.target)
            parser.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            headers = [(name.decode(), value.decode("latin-1")) for name, value in head.headers]
            method, target = head.method.decode(), head.target.decode("latin-1")
            request = RecordedRequest(method, target, headers, b"".join(body), number)
            return request, parser.trailing_data[0]
        else:
            return None, b""
