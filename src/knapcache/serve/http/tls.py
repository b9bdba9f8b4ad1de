"""TLS of the proxy: the certificate, which is read again when its files change, and the handshakes.

With TLS the proxy accepts connections itself, and hands each one to asyncio for the handshake. asyncio's own server
would keep a client that never ends its handshake for 60 seconds, and would not count it as a connection.

    accept ──▶ handshake      counted in connections.py, in stage HEAD; at most head_timeout
    handshake ──▶ protocol    LimitedProtocol.connection_made takes the place of the handshake in the count
    handshake ──▶ closed      it failed, took too long, or another connection needs the room

A signature with an RSA key of 4,096 bits takes some milliseconds, so handshakes take turns (handshakes.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from knapcache.errors import InvalidInput
from knapcache.serve.http.connections import HEAD, Connections, Stage
from knapcache.serve.http.handshakes import HandshakeTurns, ReceivedEarly
from knapcache.serve.http.limited_protocol import LimitedProtocol

log = logging.getLogger("knapcache.serve")

REFRESH_INTERVAL = 2.0
"""Seconds between two looks at the files. A change is applied when two looks see the same files."""
ACCEPT_PAUSE = 1.0
"""Seconds without new connections after the process could not open another file."""
SHUTDOWN_TIMEOUT = 3600.0
"""Seconds that asyncio takes to write the rest and to end TLS. connections.py closes the connection much earlier if its
client does not read."""

FileStamp = tuple[tuple[int, int, int], ...]
"""Inode, time of change and size of each file."""


def load_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a certificate with its key. Raises InvalidInput if they cannot be used."""
    for path in (cert, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}") from None

    def password() -> str:
        raise InvalidInput(f"tls_key: {key} is encrypted; the key must be stored without a password")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidInput(f"tls_key: {key} is not the key of the certificate in {cert}") from None
        message = f"tls_cert, tls_key: {cert} and {key} must be PEM files with a certificate and its private key"
        raise InvalidInput(message) from None
    if key.stat().st_mode & stat.S_IROTH:
        log.warning("The private key %s can be read by every user of the machine; run chmod o-r", key)
    return context


class ServerCertificate:
    """The certificate for new connections."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._seen = self._loaded = self._stamp()
        self.context = load_context(cert, key)

    def _stamp(self) -> FileStamp | None:
        """Return the state of the files, or None while one of them is missing."""
        try:
            states = [path.stat() for path in (self._cert, self._key)]
        except OSError:
            return None
        return tuple((state.st_ino, state.st_mtime_ns, state.st_size) for state in states)

    def refresh(self) -> None:
        """Load the files if they have changed. If they cannot be used, the log says so, and the old ones stay in use.

        Files that changed since the last call are loaded by the next one: the second file may not be written yet.
        """
        stamp = self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._loaded or not settled:
            return
        self._loaded = stamp
        try:
            self.context = load_context(self._cert, self._key)
        except InvalidInput as error:
            log.error("Certificate not reloaded; the old one stays in use. Reason: %s", error)
        else:
            log.info("Certificate reloaded from %s.", self._cert)

    async def refresh_periodically(self) -> None:
        """Refresh until the task is cancelled."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL)
            await asyncio.to_thread(self.refresh)


class Handshake:
    """A connection whose TLS handshake has not ended. It is a `ClientConnection` of connections.py."""

    body_size = 0

    def __init__(self, client: tuple[str, int] | None) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None

    def stage(self) -> tuple[Stage, int]:
        """Return the stage of a connection without a request."""
        return HEAD, 0

    def expire(self, _stage: Stage) -> None:
        """Close the connection."""
        self.evict()

    def evict(self) -> None:
        """Close the connection."""
        if self.task is not None:
            self.task.cancel()


class TlsListener:
    """Accepts connections of a listening socket, and does their handshakes. make_protocol: called for each of them."""

    def __init__(
        self,
        listening: socket.socket,
        certificate: ServerCertificate,
        connections: Connections,
        make_protocol: Callable[[], LimitedProtocol],
        head_timeout: float,
    ) -> None:
        listening.setblocking(False)
        self._listening, self._certificate = listening, certificate
        self._connections, self._make_protocol, self._head_timeout = connections, make_protocol, head_timeout
        self._turns = HandshakeTurns()
        self._tasks = {asyncio.create_task(self._accept()), asyncio.create_task(certificate.refresh_periodically())}

    def close(self) -> None:
        """Accept no more connections, and close those whose handshake has not ended."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # usually the limit of open files
                    log.error("Connections cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(ACCEPT_PAUSE)
                continue
            self._begin(accepted)
            await asyncio.sleep(0)  # sock_accept does not wait while connections are pending

    def _begin(self, accepted: socket.socket) -> None:
        try:
            handshake = Handshake(accepted.getpeername()[:2])
        except OSError:  # the client has disconnected
            accepted.close()
            return
        if not self._connections.add(handshake):
            accepted.close()
            return
        handshake.task = asyncio.create_task(self._shake_hands(accepted, handshake))
        self._tasks.add(handshake.task)
        handshake.task.add_done_callback(self._tasks.discard)

    async def _shake_hands(self, accepted: socket.socket, handshake: Handshake) -> None:
        loop, first = asyncio.get_running_loop(), ReceivedEarly()
        transport: asyncio.Transport | None = None
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: first, accepted)
            secured = await self._turns.start_tls(
                transport, first, self._certificate.context, self._head_timeout, SHUTDOWN_TIMEOUT
            )
            protocol = self._make_protocol()
            protocol.handshake = handshake
            first.hand_over(secured, protocol)
            transport = None
        except OSError as error:
            log.debug("TLS handshake failed: %s", error)
        finally:
            if transport is not None:
                transport.abort()
            self._connections.remove(handshake)
