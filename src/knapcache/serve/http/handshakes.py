"""TLS handshakes that take turns, so that a flood of them does not block the event loop.

asyncio does the work of a handshake when the client's bytes arrive: all that have arrived in one iteration of the event
loop, one after the other. A thousand clients that send their first message at the same time would block it for seconds.
So their bytes wait here, and each iteration works on them for at most TURN_SECONDS, and one message more:

    socket ──▶ PacedHandshake ──▶ TLS ──▶ ReceivedEarly          during the handshake
    socket ──▶ TLS ──▶ LimitedProtocol                           afterwards

Rejected: handshakes in threads. asyncio creates the TLS object and calls it on the loop's thread.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Any

TURN_SECONDS = 0.005
"""Work on handshakes in one iteration of the event loop."""


class ReceivedEarly(asyncio.Protocol):
    """The protocol of a connection until its handshake has ended. It keeps what the client sends at once after it."""

    def __init__(self) -> None:
        self._received: list[bytes] = []
        self._ended = self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing before TLS is started."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Keep what was sent at once after the handshake."""
        self._received.append(data)

    def eof_received(self) -> None:
        """Note the end."""
        self._ended = True

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note that the client has disconnected."""
        self._lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Let another protocol continue. Raises ConnectionAbortedError if the client has disconnected."""
        if self._lost or transport.is_closing():
            raise ConnectionAbortedError("the client has disconnected")
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._received:
            if not transport.is_closing():
                protocol.data_received(data)
        if self._ended:
            protocol.eof_received()


class HandshakeTurns:
    """The handshakes of a listener. Those that wait are served in the order in which their bytes arrived."""

    def __init__(self) -> None:
        self._waiting: deque[PacedHandshake] = deque()
        self._used = 0.0
        """Seconds of work in this iteration."""
        self._scheduled = False

    async def start_tls(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        timeout: float,
        shutdown_timeout: float,
    ) -> asyncio.Transport:
        """Do the handshake of an accepted connection, and return its transport. Raises OSError."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.start_tls(
                transport,
                protocol,
                context,
                server_side=True,
                ssl_handshake_timeout=timeout,
                ssl_shutdown_timeout=shutdown_timeout,
            )
        )
        loop.call_soon(self._pace, transport)  # after the first step of start_tls, and before it reads
        secured = await starting
        paced = transport.get_protocol()
        if isinstance(paced, PacedHandshake) and not transport.is_closing():
            transport.set_protocol(paced.tls)
        if secured is None:  # lost in the moment in which the handshake ended
            raise ConnectionAbortedError("the client has disconnected")
        return secured

    def _pace(self, transport: asyncio.Transport) -> None:
        """Put a PacedHandshake between a connection and its TLS."""
        tls: Any = transport.get_protocol()
        if hasattr(tls, "get_buffer") and not transport.is_closing():  # uvloop's has another base class
            transport.set_protocol(PacedHandshake(self, transport, tls))

    def add(self, handshake: PacedHandshake) -> None:
        """Serve a handshake whose bytes have arrived: at once if there is time, else in its turn."""
        if self._waiting or self._used >= TURN_SECONDS:
            self._waiting.append(handshake)
        else:
            self._serve(handshake)
        self._schedule()

    def _serve(self, handshake: PacedHandshake) -> None:
        start = time.perf_counter()
        handshake.proceed()
        self._used += time.perf_counter() - start

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self._scheduled, self._used = False, 0.0
        while self._waiting and self._used < TURN_SECONDS:
            self._serve(self._waiting.popleft())
        if self._used or self._waiting:
            self._schedule()


class PacedHandshake(asyncio.Protocol):
    """Passes what a client sends on to TLS, in its turn. It reads no more until then."""

    def __init__(self, turns: HandshakeTurns, transport: asyncio.Transport, tls: Any) -> None:
        self._turns, self._transport, self.tls = turns, transport, tls
        self._received: list[bytes] = []
        self._ended = self._lost = False

    def data_received(self, data: bytes) -> None:
        """Wait for a turn."""
        self._received.append(data)
        if len(self._received) == 1:
            self._transport.pause_reading()
            self._turns.add(self)

    def proceed(self) -> None:
        """Pass on what has arrived."""
        received, self._received = b"".join(self._received), []
        if self._lost:
            return
        rest = memoryview(received)
        while rest:
            buffer = memoryview(self.tls.get_buffer(len(rest)))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            self.tls.buffer_updated(size)
            rest = rest[size:]
        if self._ended:
            self.tls.eof_received()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        """Pass on the end of what the client sends, after the rest."""
        self._ended = True
        return True if self._received else self.tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end of the connection."""
        self._lost = True
        self.tls.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        self.tls.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self.tls.resume_writing()
