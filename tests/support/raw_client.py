"""A TCP client that sends given bytes. It parses the responses with h11, which shares no code with the proxy."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import h11

from tests.support.timing import TooSlow

CHAT = "/v1/chat/completions"
TIMEOUT = 60.0
"""Seconds until a read that gets nothing fails its test."""


class WireResponse(NamedTuple):
    """A complete response as h11 parsed it."""

    status: int
    headers: list[tuple[str, str]]
    """Names in lower case, in the order of arrival."""
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None. A header that occurs twice fails the test."""
        values = [value for other, value in self.headers if other == name]
        assert len(values) < 2, f"{name} occurs {len(values)} times"
        return values[0] if values else None

    @property
    def outcome(self) -> str | None:
        """The header `x-knapcache`."""
        return self.header("x-knapcache")

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The text of a chat completion."""
        text = self.json()["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text


class RawClient:
    """One connection. source: the client's address, such as 127.0.0.2.

    `sent_all` is false if the server closed the connection before all bytes were sent.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT, source: str | None = None) -> None:
        parts = urlsplit(url)
        address = parts.hostname or "", parts.port or 80
        self.socket = socket.create_connection(address, timeout, source_address=(source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # otherwise the system enlarges them, up to 32 MB
            self.socket.setsockopt(socket.SOL_SOCKET, buffer, 256 << 10)
        self.sent_all = True
        self.closed = False
        """Whether the server has closed the connection, as far as it was read."""
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0.0) -> Self:
        """Send pieces one after the other, with a pause between two. Stops silently if the server has closed."""
        for k, piece in enumerate(pieces):
            if k and pause:
                time.sleep(pause)
            try:
                self.socket.sendall(piece)
            except (ConnectionResetError, BrokenPipeError):
                self.sent_all = False
                break
        return self

    def end(self) -> Self:
        """Send no more (half-close)."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        return self

    def reset(self) -> None:
        """Close with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self) -> bytes:
        """Return the next bytes; nothing if the connection was closed or reset.

        Raises TooSlow if nothing comes within TIMEOUT seconds or more, and TimeoutError if the limit is shorter.
        """
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        except TimeoutError as error:
            if (self.socket.gettimeout() or 0.0) >= TIMEOUT:
                raise TooSlow("the server sends nothing") from error
            raise  # the test waits for silence
        self.closed = self.closed or not data
        return data

    def response(self, method: str = "POST") -> WireResponse:
        """Return the next complete response. The test fails if the server closes without one."""
        found = self.response_or_none(method)
        assert found is not None, "the server closed the connection without a response"
        return found

    def response_or_none(self, method: str = "POST") -> WireResponse | None:
        """Return the next complete response; None if the server closes without one. Interim responses are skipped.

        method: that of the request; a response to HEAD has no body. Raises h11.RemoteProtocolError if the bytes are
        no HTTP response.
        """
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        head: Any = None
        body: list[bytes] = []
        if self._rest:
            parser.receive_data(self._rest)
            self._rest = b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = b"" if self.closed else self.receive()
                if not data and head is None and not parser.trailing_data[0]:
                    return None
                parser.receive_data(data)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._rest = parser.trailing_data[0]
                headers = [(name.decode(), value.decode("latin-1")) for name, value in head.headers]
                return WireResponse(head.status_code, headers, b"".join(body))
            elif isinstance(event, h11.ConnectionClosed):
                return None

    def responses(self, count: int, methods: Sequence[str] = ()) -> list[WireResponse]:
        """Return the next complete responses: `count`, or fewer if the server closes before."""
        found: list[WireResponse] = []
        while len(found) < count:
            method = methods[len(found)] if len(found) < len(methods) else "POST"
            response = self.response_or_none(method)
            if response is None:
                break
            found.append(response)
        return found

    def responses_until_close(self, most: int = 1000) -> list[WireResponse]:
        """Return all responses until the server closes. Raises TooSlow if it does not."""
        found = self.responses(most)
        assert self.closed, f"more than {most} responses"
        return found

    def read_until_close(self) -> bytes:
        """Return all bytes until the server closes. Raises TooSlow if it does not."""
        data, self._rest = self._rest, b""
        while piece := (b"" if self.closed else self.receive()):
            data += piece
        return data


def exchange(url: str, *pieces: bytes, count: int | None = 1, method: str = "POST") -> list[WireResponse]:
    """Send bytes on a new connection and return the responses: at most `count`, or with None all until it closes."""
    with RawClient(url) as client:
        client.send(*pieces)
        return client.responses_until_close() if count is None else client.responses(count, [method] * count)


def chat_body(text: str, **fields: Any) -> bytes:
    """Return the body of a chat request."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def message(start: str, *headers: str, body: bytes = b"", length: bool = True) -> bytes:
    """Return the bytes of a request: start line, `Host`, headers, `Content-Length` (unless length=False), body."""
    lines = [start, "Host: 127.0.0.1", *headers, *([f"Content-Length: {len(body)}"] if length else [])]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def post(body: bytes, *headers: str, path: str = CHAT, key: str = "k") -> bytes:
    """Return the bytes of a POST request with a body of JSON."""
    fixed = (f"Authorization: Bearer {key}", "Content-Type: application/json")
    return message(f"POST {path} HTTP/1.1", *fixed, *headers, body=body)


def chat(text: str, *headers: str, key: str = "k", **fields: Any) -> bytes:
    """Return the bytes of a chat request."""
    return post(chat_body(text, **fields), *headers, key=key)


def get(path: str, *headers: str, key: str = "k") -> bytes:
    """Return the bytes of a GET request."""
    return message(f"GET {path} HTTP/1.1", f"Authorization: Bearer {key}", *headers, length=False)


def chunked(*chunks: bytes) -> bytes:
    """Return a body in chunks, with its end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


class HealthProbe:
    """Measures the latency of `/healthz` from a thread of its own, on one connection, while an attack runs.

        with HealthProbe(proxy.url) as probe:
            attack()
        assert probe.worst < 0.5

    With a proxy in this process the attacking thread's own Python code delays the answers too. To measure a stall
    exactly, attack a `ProxyProcess`.
    """

    def __init__(self, url: str, interval: float = 0.005) -> None:
        self._url, self._interval = url, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._first = threading.Event()
        self.seconds: list[float] = []
        self.errors: list[BaseException] = []

    @property
    def worst(self) -> float:
        """The longest time that a probe took, in seconds."""
        return max(self.seconds)

    def _run(self) -> None:
        try:
            with RawClient(self._url, timeout=120.0) as client:
                last = False
                while not last:
                    last = self._stop.is_set()  # so one probe is sent after the attack
                    start = time.perf_counter()
                    response = client.send(get("/healthz")).response("GET")
                    self.seconds.append(time.perf_counter() - start)
                    assert response.status == 200, f"/healthz returned {response.status}"
                    self._first.set()
                    self._stop.wait(self._interval)
        except BaseException as error:
            self.errors.append(error)
            self._first.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._first.wait(TIMEOUT)
        self.seconds.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(150.0)
        assert not self._thread.is_alive(), "/healthz does not answer"
        assert not self.errors, f"/healthz failed: {self.errors[0]!r}"
