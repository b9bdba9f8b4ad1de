"""TLS of the proxy: its server, and the certificate, which is read again when its files change.

The event loop does the handshakes. `LimitedProtocol.connection_made` comes after the handshake, so a connection counts
in connections.py from then on. A handshake that does not end is cut after `head_timeout`.

A server's context cannot be replaced, and a second certificate of another key type would be added to the first. So the
context of the server has a callback that gives every handshake the newest certificate.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from knapcache.errors import InvalidInput

log = logging.getLogger("knapcache.serve")

REFRESH_INTERVAL = 2.0
"""Seconds between two looks at the files. A change is applied when two looks see the same files."""
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

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a server: each handshake gets the certificate of the last refresh."""
        context = load_context(self._cert, self._key)

        def use_newest(tls: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            tls.context = self.context

        context.sni_callback = use_newest  # called for every handshake, also without a server name
        return context

    async def serve(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        backlog: int,
        handshake_timeout: float,
    ) -> asyncio.Server:
        """Accept TLS connections of a listening socket. make_protocol: called for each of them."""
        return await asyncio.get_running_loop().create_server(
            make_protocol,
            sock=listening,
            backlog=backlog,
            ssl=self.server_context(),
            ssl_handshake_timeout=handshake_timeout,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
