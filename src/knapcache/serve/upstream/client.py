"""HTTP/1.1 to one provider: connections that are kept, requests that were made ready, bodies as they come.

    ask ──► a connection that waits ──► request written at once ──► head of the answer: Response
            or a new one                                            │ pieces, as they come or are unpacked
                    ▲                                               ▼
                    └──────────── all was read, both sides may go on ── end
            closed: a time-out, an error, an answer that nobody reads to its end

Written here because of what a call costs. Of the millisecond that a miss may take longer through the proxy, aiohttp's
client took more than half: a proxy that does nothing but pass a request on adds more than twice as much with it as with
this (docs/guides/proxy.md). What it does for everybody (redirects, cookies, proxies, forms, retries) nobody wants here;
parsing is llhttp's, through httptools, as on the side of the server, and TLS, names and timers are the event loop's.

    Invariant: a connection has one exchange at a time, and goes back only when its answer was whole, its request was
    sent, and nothing came after them. What comes on a connection that waits ends it.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from knapcache.serve.upstream.connection import Connection, Origin, Response
from knapcache.serve.upstream.failures import ConnectionLost, upstream_failed, without_traceback

STAGGER = 0.25
"""Seconds until another address of a host is tried beside one that does not answer."""
KEEP = 60.0
"""Seconds that a connection waits for its next request; most providers close theirs later than that."""
LENGTH = re.compile(rb"(?:^|\r\n)content-length: *(\d+) *\r\n", re.IGNORECASE)
UNSAFE = re.compile(r"[\x00-\x20\x7f]")


@functools.lru_cache(64)
def split(url: str) -> tuple[Origin, str, str]:
    """Of a base URL: whom it leads to, what the Host header says, and how paths begin."""
    found = urlsplit(url)
    tls, host = found.scheme == "https", found.hostname or ""
    usual = 443 if tls else 80
    port = found.port or usual
    named = f"[{host}]" if ":" in host else host
    return Origin(host, port, tls), named if port == usual else f"{named}:{port}", found.path.rstrip("/")


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
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


async def first_of(attempts: Sequence[Callable[[], Awaitable[Connection]]]) -> Connection:
    """The connection that stands first. Another address is tried when one has failed, or beside it after STAGGER: where
    one of the ways to a host (mostly IPv6) leads nowhere, nobody says so (RFC 8305).
    """
    if len(attempts) == 1:
        return await attempts[0]()
    trying: set[asyncio.Task[Connection]] = set()
    error: BaseException | None = None
    try:
        for k, attempt in enumerate(attempts):
            trying.add(asyncio.ensure_future(attempt()))
            last = k == len(attempts) - 1
            while trying:
                done, _ = await asyncio.wait(
                    trying, timeout=None if last else STAGGER, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    trying.discard(task)
                    if task.exception() is None:
                        return task.result()
                    error = error or task.exception()
                if not last:
                    break
        raise error or OSError("a host without an address")
    finally:
        for task in trying:
            task.cancel()
            task.add_done_callback(too_late)


def too_late(task: asyncio.Task[Connection]) -> None:
    """Another was first."""
    if not task.cancelled() and task.exception() is None:
        task.result().transport.abort()


class Client:
    """Connections to one provider. name: what it is called in errors, which name no address.

    path   where a server on this machine listens; whatever a URL says leads there
    """

    def __init__(self, name: str, connect_timeout: float, timeout: float, path: Path | None = None) -> None:
        self.name, self.timeout = name, timeout
        self._connect_timeout, self._path = connect_timeout, path
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

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
        """Send a request, and wait for the head of its answer.

        headers   `encode_headers`, with a host where it is not that of the URL, and without what says how long the body is,
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
            raise upstream_failed(
                self.name, error, safe_to_retry=response is None or not response.heard
            ) from without_traceback(error)
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
        async with asyncio.timeout(self._connect_timeout):
            connection = await self._connected(origin)
        if self._closed or connection.transport.is_closing():  # of its end nobody will be told again
            connection.transport.abort()
            raise ConnectionLost("the connection was closed")
        self._open.add(connection)  # not when it is made: uvloop ends one that nobody waits for, and tells nobody
        return connection

    async def _connected(self, origin: Origin) -> Connection:
        """A new connection, to whichever address of a host lets us in first."""
        loop = asyncio.get_running_loop()
        made = functools.partial(Connection, self, origin)
        if self._path is not None:
            return (await loop.create_unix_connection(made, str(self._path)))[1]
        host, port, tls = origin
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

        async def to(address: str) -> Connection:
            secured: Any = {"ssl": trust(), "server_hostname": host} if tls else {}
            _, connection = await loop.create_connection(made, address, port, **secured)
            return connection

        return await first_of([functools.partial(to, str(at[0])) for *_, at in found])

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
