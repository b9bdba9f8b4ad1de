"""One connection to an upstream: an asyncio protocol that passes bytes to the exchange in progress."""

from __future__ import annotations

import asyncio
import select
from typing import NamedTuple, Protocol


class Origin(NamedTuple):
    """The server that requests are for."""

    host: str
    port: int
    tls: bool


def bracketed(host: str) -> str:
    """A host as URLs and Host headers have it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


class Pool(Protocol):
    """The owner of connections."""

    name: str
    """The upstream's name in error messages."""
    idle_timeout: float
    """Longest wait in seconds between two reads of a response."""
    total_timeout: float | None
    """Longest time in seconds of a whole exchange; None: no limit."""
    max_body: int
    """Bytes of a body that `Response.read` returns."""
    in_flight: int
    """Exchanges that have begun and have not ended."""

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed."""

    def release(self, connection: Connection) -> None:
        """Take back a connection that is ready for the next request."""


class BytesReceiver(Protocol):
    """The exchange in progress, as its connection uses it."""

    def feed(self, data: bytes) -> None:
        """Parse bytes of the connection."""

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""


class Connection(asyncio.Protocol):
    """A connection with at most one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool, origin: Origin) -> None:
        self._pool, self.origin = pool, origin
        self.response: BytesReceiver | None = None
        """The exchange that owns the connection; None while it is idle."""
        self.idle_since = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._poll: select.poll | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are not an asyncio.Transport

    def data_received(self, data: bytes) -> None:
        if self.response is None:  # nothing was requested: the next request would take these bytes for its response
            self.transport.abort()
        else:
            self.response.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.remove(self)
        if self.response is not None:
            self.response.connection_lost(error)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    async def drain(self) -> None:
        """Wait until the transport's write buffer has space."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def has_unread_bytes(self) -> bool:
        """Return whether bytes have arrived on the idle connection, or it was closed, and the event loop has not read
        that yet.
        """
        if self._poll is None:
            sock = self.transport.get_extra_info("socket")
            if sock is None:
                return False
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def release(self) -> None:
        """End the exchange and give the connection back to the pool."""
        self.response = None
        self._pool.release(self)
