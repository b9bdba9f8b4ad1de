"""A forward proxy on a real socket: CONNECT tunnels and absolute-form requests, with or without TLS and passwords."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from typing import Any
from urllib.parse import urlsplit

from tests.support.scripted_server import ScriptedServer, ServerConnection

REFUSAL = b"HTTP/1.1 %d No\r\nproxy-authenticate: Basic\r\ncontent-length: 2\r\n\r\nno"


class ForwardProxy(ScriptedServer):
    """A proxy that connects to `upstream` whatever host a request names: test names need no DNS.

    credentials   "user:password" that a request must have; None: none
    refuse        a status to answer every request with
    options       of ScriptedServer
    """

    def __init__(
        self, upstream: ScriptedServer, *, credentials: str | None = None, refuse: int = 0, **options: Any
    ) -> None:
        super().__init__(self._handle, **options)
        self._upstream, self._credentials, self._refuse = upstream, credentials, refuse
        self.heads: list[bytes] = []
        """Heads of the requests so far."""

    async def _handle(self, connection: ServerConnection) -> None:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        status = self._refuse or (200 if self._is_authorized(head) else 407)
        if status != 200:
            await connection.send(REFUSAL % status)
            return
        reader, writer = await asyncio.open_connection(self._upstream.host, self._upstream.port)
        tasks: list[asyncio.Task[None]] = []
        try:
            if head.startswith(b"CONNECT "):
                await connection.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                upload = copy(connection.reader, writer)
            else:
                upload = self._forward(head, connection.reader, writer)
            tasks = [asyncio.ensure_future(upload), asyncio.ensure_future(copy(reader, connection.writer))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()

    def _is_authorized(self, head: bytes) -> bool:
        if self._credentials is None:
            return True
        encoded = base64.b64encode(self._credentials.encode())
        found = re.search(rb"\r\nproxy-authorization: basic (\S+)\r\n", head, re.IGNORECASE)
        return found is not None and found[1] == encoded

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on requests in absolute form, whose bodies have a content-length."""
        with contextlib.suppress(OSError, RuntimeError, asyncio.IncompleteReadError):
            while self._is_authorized(head):
                writer.write(origin_form(head))
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                writer.write(await reader.readexactly(int(length[1]) if length else 0))
                await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)


def origin_form(head: bytes) -> bytes:
    """A head with a path in its request line, and without the headers for the proxy."""
    line, *headers = head.split(b"\r\n")
    method, url, version = line.split(b" ")
    parts = urlsplit(url.decode())
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [header for header in headers if not header.lower().startswith(b"proxy-")]
    return b"\r\n".join([b"%b %b %b" % (method, target.encode(), version), *kept])


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until either side is closed."""
    with contextlib.suppress(OSError, RuntimeError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
