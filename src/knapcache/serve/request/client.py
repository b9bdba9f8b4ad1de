"""HTTP/1.1 to one provider: connections that are kept, requests that were made ready, bodies as they come.

    ask ──► a connection that waits ──► request written at once ──► head of the answer: Response
            or a new one                                            │ pieces, as they come or are unpacked
                    ▲                                               ▼
                    └──────────── all was read, both sides may go on ── end
            closed: a time-out, an error, an answer that nobody reads to its end

Written here because of what a call costs. Of the millisecond that a miss may take longer through the proxy, aiohttp's
client took more than half: a proxy that does nothing but pass a request on adds twice as much with it as with this
(docs/proxy.md). What it does for everybody (redirects, cookies, proxies, forms, retries) nobody wants here; parsing is
llhttp's, through httptools, as on the side of the server, and TLS, names and timers are the event loop's.

    Invariant: a connection has one exchange at a time, and goes back only when its answer was whole, its request was
    sent, and nothing came after them. What comes on a connection that waits ends it.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from knapcache.errors import UpstreamFailed

Pairs = list[tuple[str, str]]

KEEP = 60.0
"""Seconds that a connection waits for its next request; most providers close theirs later than that."""
LINGER = 0.25
"""Seconds that the end of an answer has to come when nobody reads on: a new connection costs more."""
HIGH = 1 << 20
"""Bytes of an answer that are held before its sender is made to wait."""
MOST = 256 << 20
"""Bytes of an answer that is not a stream: more is no answer of a language model."""
MOST_HEAD = 256 << 10
"""Bytes that may come with nothing of a body among them. Counted as they come: a header without end is never told."""
PACKED = ("gzip", "x-gzip", "deflate")
UNPACKED = 1 << 18
"""Bytes that are unpacked at once."""
SLICE = 1 << 15
"""Packed bytes at once: what is left of them is copied with every end, and some bodies have many."""
PRESSED = 1 << 16
"""Bytes of a request that are joined to its head."""
LENGTH = re.compile(rb"(?:^|\r\n)content-length: *(\d+) *\r\n", re.IGNORECASE)
UNSAFE = re.compile(r"[\x00-\x20\x7f]")


class BrokenOff(OSError):  # noqa: N818
    """The other side ended the connection in the middle of an exchange."""


class BadAnswer(OSError):  # noqa: N818
    """What came is no HTTP, or packed in a way that was not asked for."""


class Origin(NamedTuple):
    """Whom a connection leads to."""

    host: str
    port: int
    tls: bool


@functools.lru_cache(64)
def split(url: str) -> tuple[Origin, str, str]:
    """Of a base URL: whom it leads to, what the Host header says, and how paths begin."""
    found = urlsplit(url)
    tls, host = found.scheme == "https", found.hostname or ""
    usual = 443 if tls else 80
    port = found.port or usual
    named = f"[{host}]" if ":" in host else host
    return Origin(host, port, tls), named if port == usual else f"{named}:{port}", found.path.rstrip("/")


def lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as they are sent. They come from a server that has read them, or from settings that were checked."""
    said = [f"{name}: {value}\r\n" for name, value in headers]
    made = "".join(said).encode("latin-1")
    if len(made.splitlines()) != len(said):
        raise ValueError("a line break in a header")
    return made


def names(headers: bytes, name: bytes) -> bool:
    """Whether a header is among lines."""
    return b"\r\n%b: " % name in headers or headers.startswith(b"%b: " % name)


@functools.cache
def trust() -> ssl.SSLContext:
    """Whose certificates are believed: those of the system. Reading them takes a while, once."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Client:
    """Connections to one provider. name: what it is called in errors, which name no address.

    socket   a server on this machine that listens on a path; whatever a URL says leads there
    """

    def __init__(self, name: str, connect_timeout: float, timeout: float, socket: Path | None = None) -> None:
        self.name, self.timeout = name, timeout
        self._connect_timeout, self._socket = connect_timeout, socket
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(
        self,
        method: str,
        url: str,
        path: str,
        headers: bytes,
        content: bytes | AsyncIterator[bytes] | None,
        *,
        raw: bool = False,
    ) -> Response:
        """Send a request, and wait for the head of its answer.

        headers   `lines`, with a host where it is not that of the URL, and without what says how long the body is,
                  where that is known here
        raw       the body of the answer is wanted as it is packed, and what may be packed is said by the headers
        """
        if UNSAFE.search(path):
            raise ValueError("a path has no spaces, line breaks or control characters")
        origin, host, root = split(url)
        said = [f"{method} {root}{path} HTTP/1.1\r\n".encode("latin-1"), headers]
        if not names(headers, b"host"):
            said.append(f"host: {host}\r\n".encode("latin-1"))
        if not raw:
            said.append(b"accept-encoding: gzip\r\n")
        length = None
        if isinstance(content, bytes):
            said.append(b"content-length: %d\r\n" % len(content))
        elif content is not None:
            found = LENGTH.search(headers)
            if found is None:
                said.append(b"transfer-encoding: chunked\r\n")
            else:
                length = int(found[1])
        said.append(b"\r\n")
        response = None
        try:
            response = Response(self, await self._connection(origin), method, raw)
            await response.begin(b"".join(said), content, length)
        except OSError as error:  # a TimeoutError is one, too
            raise failed(self.name, error, before=response is None or not response.heard) from bare(error)
        finally:
            if response is not None and not response.status:
                response.abort()
        return response

    async def _connection(self, origin: Origin) -> Connection:
        waiting = self._idle.get(origin)
        while waiting:
            connection = waiting.pop()  # the one that was used last: the others may grow old, and be closed
            if not connection.transport.is_closing():
                return connection
        loop = asyncio.get_running_loop()
        made = functools.partial(Connection, self, origin)
        async with asyncio.timeout(self._connect_timeout):
            if self._socket is not None:
                _, connection = await loop.create_unix_connection(made, str(self._socket))
            else:
                tls = trust() if origin.tls else None
                _, connection = await loop.create_connection(made, origin.host, origin.port, ssl=tls)
        if self._closed or connection.transport.is_closing():  # of its end nobody will be told again
            connection.transport.abort()
            raise BrokenOff("the connection was closed")
        self._open.add(connection)  # not when it is made: uvloop ends one that nobody waits for, and tells nobody
        return connection

    # As connections tell.

    def lost(self, connection: Connection) -> None:
        """There is one less."""
        self._open.discard(connection)
        waiting = self._idle.get(connection.origin, [])
        if connection in waiting:
            waiting.remove(connection)

    def waits(self, connection: Connection) -> None:
        """It may be used again."""
        loop = asyncio.get_running_loop()
        connection.since = loop.time()
        self._idle.setdefault(connection.origin, []).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP, self._old)

    def _old(self) -> None:
        """Close those that have waited for too long."""
        loop, self._sweep = asyncio.get_running_loop(), None
        waiting = [connection for several in self._idle.values() for connection in several]
        for connection in waiting:
            if loop.time() - connection.since >= KEEP:
                connection.transport.abort()
        oldest = min((c.since for c in waiting if not c.transport.is_closing()), default=None)
        if oldest is not None:
            self._sweep = loop.call_at(oldest + KEEP, self._old)

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Close all connections; what is under way fails."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.transport.abort()


class Connection(asyncio.Protocol):
    """One connection: bytes, and who they are for."""

    transport: asyncio.Transport

    def __init__(self, client: Client, origin: Origin) -> None:
        self._client, self.origin = client, origin
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
        self._client.lost(self)
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
        self._client.waits(self)


class Response:
    """One exchange; the callbacks are the parser's."""

    def __init__(self, client: Client, connection: Connection, method: str, raw: bool) -> None:
        self._client, self._connection = client, connection
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
        self._unpacker: Unpacker | None = None

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
            self._fail(BadAnswer(type(error).__name__))
            return
        if self._plain > MOST_HEAD:
            self._fail(BadAnswer("the head is too long"))
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
            raise BadAnswer("no status that there is")
        self.headers = headers = {name.lower(): value for name, value in self.pairs}
        if "content-encoding" in headers and not self._raw and not self._headless:
            packed = (
                ", ".join(value for name, value in self.pairs if name.lower() == "content-encoding").strip().lower()
            )
            if packed in PACKED:
                self._unpacker = Unpacker()
            elif packed not in ("", "identity"):
                raise BadAnswer("packed in a way that was not asked for")
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
            self._fail(error if isinstance(error, OSError) else BrokenOff("the connection was closed"))

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
            timer = loop.call_later(self._client.timeout, self._fail, TimeoutError())
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
        async for piece in self.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > MOST:
                raise UpstreamFailed(502, f"{self._client.name} sent more than {MOST} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
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
            raise failed(self._client.name, error) from bare(error)

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


class Unpacker:
    """gzip, or deflate, or several of them in a row."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out by itself which of the two it is
        self._begun = False

    def feed(self, packed: bytes) -> Iterable[bytes]:
        """What is in it, in pieces that are not too large, however much it is."""
        for k in range(0, len(packed), SLICE):
            yield from self._feed(packed[k : k + SLICE])

    def _feed(self, packed: bytes) -> Iterable[bytes]:
        try:
            while packed:
                if self._unpack.eof:
                    self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
                self._begun = True
                unpacked = self._unpack.decompress(packed, UNPACKED)
                if unpacked:
                    yield unpacked
                packed = self._unpack.unconsumed_tail or self._unpack.unused_data
        except zlib.error as error:
            raise BadAnswer("the body cannot be unpacked") from error

    def end(self) -> None:
        """That was all."""
        if self._begun and not self._unpack.eof:
            raise BadAnswer("the body ends before it is unpacked")


def bare(error: OSError) -> OSError:
    """Without the frames that it was raised in: they hold the response, which holds the error."""
    return error.with_traceback(None)


def failed(name: str, error: Exception, *, before: bool = False) -> UpstreamFailed:
    """What a caller is told: who, and what kind of trouble; no address, for it may be nobody's business."""
    if isinstance(error, TimeoutError):
        return UpstreamFailed(504, f"{name} did not answer in time", before)
    return UpstreamFailed(502, f"{name} cannot be reached, or broke off: {type(error).__name__}", before)
