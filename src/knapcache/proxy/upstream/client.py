"""HTTP/1.1 client with a connection pool, for one upstream.

    request ──► idle connection, or a new one ──► request written ──► head received: Response
                        ▲                                             │ body: read() or iter_bytes()
                        └─── response complete, connection reusable ──┘
                closed: error, timeout, or a response that is not read to its end

    Invariant: a connection carries one exchange at a time. It returns to the pool only when its response was complete,
    its request was written, and no byte followed. Bytes on an idle connection close it, also those that the event
    loop has not read when the next request is about to be sent. Not detectable: bytes that an upstream sends after it
    has received the next request, or while that request is on its way. They are what an answer to it looks like.

Why it is our own: no library handles all the faults that bench/client_faults.py tries (58 of them; this client passes
all, aiohttp 3.14.5 passes 41, httpx 0.28.1 passes 42). Some of them:

    fault                                              own       aiohttp                   httpx
    extra response on an idle connection, 50 ms later  dropped   given to the next request dropped
    extra response in the same read                    dropped   dropped                   given to the next request
    content-length and chunked                         refused   refused                   accepted
    bare LF, folded headers                            refused   accepted                  accepted
    truncated gzip                                     refused   accepted                  accepted
    client closed while a body is read                 fails     reader hangs              reader hangs
    GET on a connection that the server closes         fails     sent again by itself      fails
    1xx responses without end                          bounded   unbounded                 unbounded
    https:// proxy                                     used      bypassed                  used
    refused CONNECT                                    reported  error shows the password  reported
    CPU per request (1 KB → 2 KB), relative            1         3                         20

It leaves out redirects, cookies, forms and HTTP/2. llhttp (httptools) parses, and asyncio does TLS, names and timers.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from knapcache.proxy.upstream.connect import TlsFiles, connect_direct, connect_through
from knapcache.proxy.upstream.connection import Connection, Origin, bracketed
from knapcache.proxy.upstream.failures import (
    ConnectionLost,
    ProxyRefused,
    TimeLimit,
    TotalTimeout,
    upstream_failed,
    without_traceback,
)
from knapcache.proxy.upstream.proxies import HttpProxy
from knapcache.proxy.upstream.response import MAX_BODY, Response

KEEP_ALIVE = 60.0
"""Seconds that an idle connection is kept. Most providers keep theirs longer."""
CONTENT_LENGTH = re.compile(rb"(?:^|\r\n)content-length: *(\d+) *\r\n", re.IGNORECASE)
MAX_CACHED_HEADS, MAX_CACHED_HEAD = 256, 4096
UNSAFE = re.compile(r"[\x00-\x20\x7f]")


class BaseUrl(NamedTuple):
    """The parts of a base URL."""

    origin: Origin
    host: str
    """Value of the Host header: no port where it is the scheme's default."""
    path: str
    """Prefix of all paths, without a slash at its end."""


@functools.lru_cache(64)
def parse_base_url(url: str) -> BaseUrl:
    """Split a base URL that the settings have checked. Names in other alphabets become ASCII (IDNA)."""
    parts = urlsplit(url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    if not host.isascii():
        host = host.encode("idna").decode()
    default = 443 if tls else 80
    port = parts.port or default
    name = bracketed(host)
    return BaseUrl(Origin(host, port, tls), name if port == default else f"{name}:{port}", parts.path.rstrip("/"))


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as lines. ValueError if a name or a value has a line break."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    encoded = "".join(lines).encode("latin-1")
    if len(encoded.splitlines()) != len(lines):
        raise ValueError("a line break in a header")
    return encoded


def has_header(headers: bytes, name: bytes) -> bool:
    """Whether encoded headers contain a name, which must be in lower case in both."""
    return b"\r\n%b: " % name in headers or headers.startswith(b"%b: " % name)


class Client:
    """Connections to one upstream, all of them through one proxy or all direct.

    name              the upstream's name in error messages, which never contain addresses
    connect_timeout   seconds for name lookup, TCP, CONNECT and TLS together
    idle_timeout      seconds between two reads of a response
    total_timeout     seconds for one request, from connecting to the last byte of its response; None: no limit
    socket_path       Unix socket to connect to, whatever the URL says
    proxy             None: connect directly. The environment is not read here (`proxies.environment_proxy`)
    tls               PEM files; by default the system's certificates are trusted
    max_body          bytes of a body that `Response.read` returns
    """

    def __init__(
        self,
        name: str,
        connect_timeout: float,
        idle_timeout: float,
        total_timeout: float | None = None,
        *,
        socket_path: Path | None = None,
        proxy: HttpProxy | None = None,
        tls: TlsFiles | None = None,
        max_body: int = MAX_BODY,
    ) -> None:
        self.name, self.idle_timeout, self.max_body = name, idle_timeout, max_body
        self._connect_timeout, self.total_timeout, self._socket_path = connect_timeout, total_timeout, socket_path
        self._proxy, self._tls = proxy, tls or TlsFiles()
        self._idle: dict[Origin, list[Connection]] = {}
        self._heads: dict[tuple[str, str, str, bytes, bool], tuple[Origin, bool, bytes]] = {}
        """Heads of requests. Invariant: at most MAX_CACHED_HEADS, of about MAX_CACHED_HEAD bytes; oldest first."""
        self._open: set[Connection] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self.in_flight = 0
        """Exchanges from connecting to the end of their response. Each response counts its end itself."""

    async def request(
        self,
        method: str,
        url: str,
        path: str,
        headers: bytes,
        content: bytes | AsyncIterator[bytes] | None,
        *,
        raw: bool = False,
    ) -> Response:
        """Send a request and return when the head of its response was received. Raises UpstreamFailed.

        url       base URL; `path` is appended to it
        headers   from `encode_headers`. Host and content-length are added where they are missing
        content   an iterator without a content-length header is sent in chunks
        raw       leave the response's body encoded; the headers then say which encodings are accepted
        """
        cached = self._heads.get((method, url, path, headers, raw))
        origin, forwarded, head = cached or self._make_head(method, url, path, headers, raw)
        length = None
        if isinstance(content, bytes):
            head = b"%bcontent-length: %d\r\n\r\n" % (head, len(content))
        elif content is None:
            head += b"\r\n"
        else:
            announced = CONTENT_LENGTH.search(headers)
            if announced is None:
                head += b"transfer-encoding: chunked\r\n\r\n"
            else:
                length = int(announced[1])
                head += b"\r\n"
        total = self.total_timeout
        deadline = None if total is None else asyncio.get_running_loop().time() + total
        response = None
        self.in_flight += 1
        try:
            connection = self._idle_connection(origin) or await self._new_connection(origin, deadline)
            response = Response(self, connection, method, raw)
            await response.send(head, content, length, deadline)
            if response.status == 407 and forwarded:
                response.abort()
                raise ProxyRefused(407)
        except OSError as error:  # TimeoutError is one, too
            safe_to_retry = response is None or response.safe_to_retry
            raise upstream_failed(self.name, error, safe_to_retry=safe_to_retry) from without_traceback(error)
        finally:
            if response is None:
                self.in_flight -= 1
            elif not response.status:
                response.abort()
        return response

    async def connect(self, url: str) -> None:
        """Open a connection to a base URL and close it, to see whether it can be reached. Raises UpstreamFailed."""
        try:
            connection = await self._new_connection(parse_base_url(url).origin, None)
        except OSError as error:
            raise upstream_failed(self.name, error) from without_traceback(error)
        connection.transport.abort()

    def _make_head(self, method: str, url: str, path: str, headers: bytes, raw: bool) -> tuple[Origin, bool, bytes]:
        """Return the origin, whether a proxy reads the request, and the head without framing and last line.

        The same caller sends the same head with every request. So heads are cached.
        """
        if UNSAFE.search(path):
            raise ValueError("a path must not contain spaces, line breaks or control characters")
        origin, host, base_path = parse_base_url(url)
        forward = self._proxy if not origin.tls else None  # the proxy reads the request, and not only a tunnel
        target = f"{base_path}{path}" if forward is None else f"http://{host}{base_path}{path}"
        head = [f"{method} {target} HTTP/1.1\r\n".encode("latin-1"), headers]
        if forward is not None:
            head.append(forward.authorization)
        if not has_header(headers, b"host"):
            head.append(f"host: {host}\r\n".encode("latin-1"))
        if not raw:
            head.append(b"accept-encoding: gzip\r\n")
        made = origin, forward is not None, b"".join(head)
        if len(path) + len(headers) <= MAX_CACHED_HEAD:
            if len(self._heads) >= MAX_CACHED_HEADS:
                del self._heads[next(iter(self._heads))]
            self._heads[method, url, path, headers, raw] = made
        return made

    def _idle_connection(self, origin: Origin) -> Connection | None:
        """Return an idle connection, or None."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()  # the one used last, so that the others reach their KEEP_ALIVE
            if connection.transport.is_closing():
                continue
            if not connection.has_unread_bytes():
                return connection
            connection.transport.abort()
        return None

    async def _new_connection(self, origin: Origin, deadline: float | None) -> Connection:
        """Return a new connection."""
        limit = asyncio.get_running_loop().time() + self._connect_timeout
        try:
            async with asyncio.timeout_at(limit if deadline is None else min(limit, deadline)):
                connection = await self._connect(origin)
        except TimeoutError:
            if deadline is not None and deadline < limit:
                raise TotalTimeout(f"timeout: no connection after {self.total_timeout:g} s") from None
            raise TimeLimit(f"timeout: no connection after {self._connect_timeout:g} s") from None
        if self._closed or connection.transport.is_closing():  # connection_lost was called, or never will be
            connection.transport.abort()
            raise ConnectionLost("the connection was closed")
        self._open.add(connection)  # not in connection_made: uvloop drops cancelled connects without connection_lost
        return connection

    async def _connect(self, origin: Origin) -> Connection:
        """Open a connection."""
        new = functools.partial(Connection, self, origin)
        if self._socket_path is not None:
            loop = asyncio.get_running_loop()
            return (await loop.create_unix_connection(new, str(self._socket_path)))[1]
        if self._proxy is not None:
            return await connect_through(self._proxy, new, origin, self._tls)
        return await connect_direct(new, origin, self._tls)

    # Called by connections.

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        self._open.discard(connection)
        idle = self._idle.get(connection.origin, [])
        if connection in idle:
            idle.remove(connection)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(connection.origin, []).append(connection)
        if self._expiry is None:
            self._expiry = loop.call_later(KEEP_ALIVE, self._close_expired)

    def _close_expired(self) -> None:
        """Close connections that were idle for KEEP_ALIVE seconds, and schedule the next check."""
        loop, self._expiry = asyncio.get_running_loop(), None
        idle = [connection for connections in self._idle.values() for connection in connections]
        for connection in idle:
            if loop.time() - connection.idle_since >= KEEP_ALIVE:
                connection.transport.abort()
        oldest = min((c.idle_since for c in idle if not c.transport.is_closing()), default=None)
        if oldest is not None:
            self._expiry = loop.call_at(oldest + KEEP_ALIVE, self._close_expired)

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def close(self) -> None:
        """Close all connections. Exchanges in progress fail."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for connection in list(self._open):
            connection.transport.abort()
