"""Fuzzer of the inbound HTTP protocol. The judge is h11: the application gets only requests that h11 reads.

Mutated requests are fed to the proxy's protocol class in random pieces, without a network. The laws:

    The k-th request that the application gets has the method, target and body of the k-th request that h11 reads.
    What h11 reads and the application does not get was refused: an error response, and the connection is closed.
    What the client gets is a sequence of complete HTTP/1.1 responses.
    After the client has disconnected, no task is left.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.server import ServerState

from knapcache.proxy.http.asgi_request import AsgiRequest
from knapcache.proxy.http.uvicorn_protocol import FastPathProtocol
from tests.support.asgi_server import RecordingApp
from tests.support.fuzzing import Mutator, Progress, no_progress, pieces

HOST = b"Host: 127.0.0.1\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
CORPUS = (
    CHAT + b"Content-Type: application/json\r\nContent-Length: 13\r\n\r\n" + b'{"model":"m"}'[:13],
    CHAT + b"Content-Length: 2\r\n\r\n{}" + CHAT + b"Content-Length: 2\r\n\r\n[]",
    CHAT + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n3;x=y\r\n 1}\r\n0\r\n\r\n",
    CHAT + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\nHost: other\r\n\r\n"
    + b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    CHAT + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}",
    CHAT + b"Content-Length: 0\r\nAuthorization: Bearer k\r\nAccept: */*\r\n\r\n",
    CHAT + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    CHAT + b"Content-Length: 000000000000000000002\r\n\r\n{}",
    CHAT + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 2\r\n\r\n{}",
    CHAT + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\nGET /a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /v1/models?limit=2 HTTP/1.1\r\n" + HOST + b"User-Agent: a b\r\nX-Long: " + b"x" * 300 + b"\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\nHEAD /readyz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /a HTTP/1.0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}",
    b"DELETE /v1/files/x HTTP/1.1\r\n" + HOST + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://127.0.0.1/v1/models HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://127.0.0.1 HTTP/1.1\r\n" + HOST + b"\r\n",
    CHAT + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n{}",
    b"PUT /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\n" + HOST + b"\r\n",
)  # fmt: skip
TOKENS = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b":", b": ", b" ", b"\t", b"\0", b"\x0b", b"\x7f", b",", b";"),
    *(b"Content-Length: 2\r\n", b"Content-Length: 0\r\n", b"Content-Length: +2\r\n", b"Content-Length: 2, 2\r\n"),
    *(b"content-length:2\r\n", b"Content-Length : 2\r\n", b"Content-Length: 0x2\r\n"),
    *(b"Content-Length: 99999999999\r\n",),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
    *(b"Transfer-Encoding:\tchunked\r\n", b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b" chunked\r\n", b"\r\n folded\r\n", HOST),
    *(b"0\r\n\r\n", b"2\r\n{}\r\n", b"ffffffff\r\n", b"fffffffffffffffff\r\n", b"-2\r\n", b"2 \r\n"),
    *(b"Upgrade: h2c\r\n", b"Connection: upgrade\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"GET / HTTP/1.1\r\n", b" HTTP/1.1", b" HTTP/1.0", b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b"0x2\r\n", b";" + b"x" * 50, b"\x80", b"CONNECT a:1"),
    *(b"/../", b"%2e", b"//", b"?", b"#", b"@", b"*", b"\xc3\xa9", b"X-A: b\r\n" * 20, b"\"", b"(", b"X\xff: y\r\n"),
)  # fmt: skip

REQUEST_LINE = re.compile(rb"^([A-Z-]+) +([^ \r\n]+) +(?=HTTP/)")
Seen = tuple[bytes, bytes, bytes]
"""Method, target, body."""


class MemoryTransport(asyncio.Transport):
    """A client that reads everything at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8080)})
        self.written = bytearray()
        self.closed = self.eof = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.eof, "written after the end"
        if not self.closed:
            self.written += data

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Pieces are fed regardless, like bytes that were read already."""

    resume_reading = pause_reading


class Judgement(NamedTuple):
    """What h11 reads."""

    requests: list[Seen]
    error: str


def judge(stream: bytes) -> Judgement:
    """Return the complete requests that h11 reads, and why it reads no more.

    h11 is stricter than the standard asks for about blank lines before a request and blanks in its first line.
    """
    requests: list[Seen] = []
    while stream := REQUEST_LINE.sub(rb"\1 \2 ", stream.lstrip(b"\r\n")):
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(stream)
        head: Any = None
        body = bytearray()
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    return Judgement(requests, "")
                if isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return Judgement(requests, repr(event))
        except h11.RemoteProtocolError as error:
            return Judgement(requests, str(error))
        if head.method in (b"CONNECT", b"PRI"):  # never served; PRI is the first word of HTTP/2, whose rest is awaited
            return Judgement(requests, "a tunnel, or HTTP/2")
        requests.append((head.method, origin_form(head.target), bytes(body)))
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE:
            return Judgement(requests, "the connection is closed")
        stream = connection.trailing_data[0]
    return Judgement(requests, "")


def origin_form(target: bytes) -> bytes:
    """Return path and query of a target; an absolute target also has a scheme and an authority."""
    target = target.partition(b"#")[0]
    target = re.sub(rb"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*", b"", target)
    path, _, query = target.partition(b"?")
    return target if query else path  # ASGI does not tell an empty query from none


def read_responses(stream: bytes, requests: list[Seen]) -> list[int]:
    """Return the status of each response in what the client got."""
    found: list[int] = []
    while stream:
        method = requests[len(found)][0] if len(found) < len(requests) else b"GET"
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(stream)
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                assert stream == b"HTTP/1.1 100 Continue\r\n\r\n", f"an incomplete response: {stream!r}"
                return found
            if isinstance(event, h11.Response):
                found.append(event.status_code)
        stream = connection.trailing_data[0]
    return found


class SeenApp(RecordingApp):
    """Answers every request with 200, and records it."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.seen: list[Seen] = []
        self._target: contextvars.ContextVar[tuple[bytes, bytes]] = contextvars.ContextVar("target")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        query = scope["query_string"]
        self._target.set((scope["method"].encode(), scope["raw_path"] + (b"?" + query if query else b"")))
        await super().__call__(scope, receive, send)

    async def _answer(self, request: AsgiRequest) -> None:
        body = await request.read_body(1 << 24, 1 << 24)
        self.seen.append((*self._target.get(), body))
        writer = request.open_writer(200, [("content-type", "text/plain"), ("content-length", "2")])
        writer.write(b"ok", more=False)
        await request.drain()


class HeadFuzzer:
    """Protocol objects of one application, which answers every request with 200."""

    def __init__(self) -> None:
        self.app = SeenApp()
        quiet: dict[str, Any] = {"log_config": None, "server_header": False, "date_header": False}
        self._config = uvicorn.Config(
            self.app, ws="none", interface="asgi3", lifespan="off", proxy_headers=False, **quiet
        )
        self._config.load()
        self.counts = {"requests": 0, "refused": 0, "incomplete": 0}

    async def run(self, parts: list[bytes]) -> None:
        """Feed one connection, and compare."""
        self.app.seen = []
        state, transport = ServerState(), MemoryTransport()
        protocol = FastPathProtocol(self._config, state, {})
        protocol.connection_made(transport)
        for part in parts:
            if part and not transport.closed:
                protocol.data_received(part)
        await self._settle(state)
        seen, written, closed = self.app.seen.copy(), bytes(transport.written), transport.closed or transport.eof
        protocol.connection_lost(None)
        await self._settle(state)
        assert not state.tasks, "a task is left after the client disconnected"
        assert not self.app.errors, self.app.errors
        self._compare(b"".join(parts), seen, written, closed)

    async def _settle(self, state: ServerState) -> None:
        for _ in range(200):
            before = len(self.app.seen), len(state.tasks)
            for _ in range(4):
                await asyncio.sleep(0)
            if before == (len(self.app.seen), len(state.tasks)):
                return

    def _compare(self, stream: bytes, seen: list[Seen], written: bytes, closed: bool) -> None:
        judged = judge(stream)
        statuses = read_responses(written, seen)
        refused = len(statuses) > len(seen)
        assert statuses[: len(seen)] == [200] * len(seen)
        if refused:
            assert len(statuses) == len(seen) + 1
            assert 400 <= statuses[-1] < 500 or statuses[-1] == 501
            assert closed, "refused, and the connection stays open"
        assert seen[: len(judged.requests)] == judged.requests[: len(seen)], f"{seen}; h11: {judged}"
        assert len(seen) <= len(judged.requests) or "Host" in judged.error, f"{seen}; h11: {judged}"
        assert len(seen) >= len(judged.requests) or closed, f"neither served nor refused: {seen}; h11: {judged}"
        self.counts["requests"] += len(seen)
        self.counts["refused"] += refused
        self.counts["incomplete"] += not refused and not seen


async def fuzz_heads_async(cases: int, seed: int, progress: Progress = no_progress) -> dict[str, int]:
    mutator, fuzzer = Mutator(CORPUS, TOKENS, seed), HeadFuzzer()
    for number, stream in enumerate(mutator.cases(cases), 1):
        parts = pieces(mutator.rng, stream) if mutator.rng.random() < 0.5 else [stream]
        try:
            await fuzzer.run(parts)
        except Exception as error:
            raise AssertionError(f"case {number} of seed {seed}: {parts!r}") from error
        if number % 500 == 0:
            progress(number)
    return {"cases": cases, **fuzzer.counts}


def fuzz_heads(cases: int, seed: int, progress: Progress = no_progress) -> dict[str, int]:
    """Return how many requests were served, and how many connections were refused or waited for more."""
    return asyncio.run(fuzz_heads_async(cases, seed, progress))
