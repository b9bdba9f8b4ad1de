"""Opens connections: addresses of a host, TLS, and tunnels through proxies."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from knapcache.proxy.upstream.connection import Connection, Origin
from knapcache.proxy.upstream.failures import ConnectionLost
from knapcache.proxy.upstream.proxies import ConnectTunnel, HttpProxy

CONNECT_STAGGER = 0.25
"""Seconds until the next address of a host is tried beside one that has not answered (RFC 8305, section 5)."""


class _HasTransport(Protocol):
    transport: asyncio.Transport


P = TypeVar("P", bound=_HasTransport)


class TlsFiles(NamedTuple):
    """PEM files for TLS with an upstream."""

    ca_file: Path | None = None
    """Certificates to trust instead of the system's. Also for https:// proxies."""
    client_cert: Path | None = None
    client_key: Path | None = None
    """None: the key is in client_cert."""


@functools.cache
def tls_context(
    ca_file: Path | None, client_cert: Path | None = None, client_key: Path | None = None
) -> ssl.SSLContext:
    """Return a context. Loading the system's certificates takes 20 ms, once.

    Without a ca_file OpenSSL's defaults hold: SSL_CERT_FILE and SSL_CERT_DIR, or the system's certificates. An
    encrypted key raises ssl.SSLError; OpenSSL would ask for its password on the terminal.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if client_cert is not None:
        context.load_cert_chain(client_cert, client_key, password="")
    return context


async def connect_direct(new: Callable[[], Connection], origin: Origin, files: TlsFiles) -> Connection:
    """Connect to an upstream."""
    return await open_connection(new, origin.host, origin.port, tls_context(*files) if origin.tls else None)


async def connect_through(
    proxy: HttpProxy, new: Callable[[], Connection], origin: Origin, files: TlsFiles
) -> Connection:
    """Connect to an upstream through a proxy. The client certificate is shown to the upstream, not to the proxy."""
    proxy_tls = tls_context(files.ca_file) if proxy.tls else None
    if not origin.tls:
        return await open_connection(new, proxy.host, proxy.port, proxy_tls)
    tunnel = await open_connection(ConnectTunnel, proxy.host, proxy.port, proxy_tls)
    try:
        await tunnel.open(origin, proxy)
        if tunnel.transport.is_closing():  # start_tls would wait for bytes that never come
            raise ConnectionLost("the proxy closed the connection")
        connection = new()
        transport = await asyncio.get_running_loop().start_tls(
            tunnel.transport, connection, tls_context(*files), server_hostname=origin.host
        )
        if transport is None:
            raise ConnectionLost("the connection was closed during the TLS handshake")
    except TypeError as error:
        # asyncio before 3.11.8 and 3.12.2, TLS inside TLS: a failed handshake raises this (python/cpython#113214).
        tunnel.transport.abort()
        reason = error.__context__
        raise reason if isinstance(reason, OSError) else ConnectionLost("the TLS handshake failed") from None
    except BaseException:
        tunnel.transport.abort()
        raise
    connection.connection_made(transport)  # start_tls leaves this call out
    return connection


async def open_connection(new: Callable[[], P], host: str, port: int, tls: ssl.SSLContext | None) -> P:
    """Connect to the first address of a host that accepts, with TLS if a context is given."""
    loop = asyncio.get_running_loop()
    options: Any = {} if tls is None else {"ssl": tls, "server_hostname": host}

    async def connect(address: str) -> P:
        _, protocol = await loop.create_connection(new, address, port, **options)  # type: ignore[type-var]
        return protocol

    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await first_connected([functools.partial(connect, str(sockaddr[0])) for *_, sockaddr in addresses])


async def first_connected(attempts: Sequence[Callable[[], Awaitable[P]]]) -> P:
    """Return the first connection that succeeds ("happy eyeballs", RFC 8305).

    The next attempt starts when one has failed, or CONNECT_STAGGER seconds after the last: packets to a broken address
    (mostly IPv6) are often dropped silently. Raises the first error if all fail.
    """
    if len(attempts) == 1:
        return await attempts[0]()
    pending: set[asyncio.Task[P]] = set()
    error: BaseException | None = None
    try:
        for k, attempt in enumerate(attempts):
            pending.add(asyncio.ensure_future(attempt()))
            last = k == len(attempts) - 1
            while pending:
                done, _ = await asyncio.wait(
                    pending, timeout=None if last else CONNECT_STAGGER, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    pending.discard(task)
                    if task.exception() is None:
                        return task.result()
                    error = error or task.exception()
                if not last:
                    break
        raise error or OSError("the host has no address")
    finally:
        for task in pending:
            task.cancel()
            task.add_done_callback(_abort_late)


def _abort_late(task: asyncio.Task[P]) -> None:
    """Close a connection that succeeded after another one."""
    if not task.cancelled() and task.exception() is None:
        task.result().transport.abort()
