"""The harness of the faults in _faults_*.py: a server, a client, and what the client must do.

A fault is a coroutine function of a `Case`. It raises Failure with a note if the client did not handle the fault.
Servers and proxies are those of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from _fault_clients import ClientUnderTest, Content, OpenResponse, Options
from tests.support.certificates import Certificate, make_certificate
from tests.support.scripted_server import Script, ScriptedServer
from tests.support.timing import TooSlow, async_wait_until

MB = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class Failure(Exception):  # noqa: N818
    """The client did not handle a fault."""


class Harness(NamedTuple):
    """A client and a server."""

    client: ClientUnderTest
    server: ScriptedServer

    async def open(self, method: str = "GET", content: Content = None, url: str | None = None) -> OpenResponse:
        return await self.client.open(method, f"{url or self.server.url}/x", content)

    async def get(self, method: str = "GET", content: Content = None, url: str | None = None) -> tuple[int, bytes]:
        response = await self.open(method, content, url)
        try:
            return response.status, b"".join([chunk async for chunk in response.chunks()])
        finally:
            await response.close()

    async def must_fail(self, within: float = 3.0, **request: Any) -> Exception:
        """Send a request that must raise an error in time. Returns the error."""
        started = time.monotonic()
        try:
            status, body = await self.get(**request)
        except Exception as error:
            if time.monotonic() - started > within:
                raise Failure(f"failed after {time.monotonic() - started:.1f} s") from error
            return error
        raise Failure(f"accepted: status {status}, body {body[:20]!r}")

    async def must_return(self, status: int, body: bytes, **request: Any) -> None:
        """Send a request that must succeed."""
        try:
            found = await self.get(**request)
        except Exception as error:
            raise Failure(f"raised {type(error).__name__}") from error
        if found != (status, body):
            raise Failure(f"returned {found[0]}, {found[1][:20]!r}")


class Case(NamedTuple):
    """One fault for one client."""

    client: type[ClientUnderTest]
    folder: Path

    @contextlib.asynccontextmanager
    async def serve(self, script: Script, options: Options | None = None, **server: Any) -> AsyncIterator[Harness]:
        """Start a server and a client."""
        async with ScriptedServer(script, **server) as started:
            client = self.client(options or Options())
            try:
                yield Harness(client, started)
            finally:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(client.close(), 1.0)

    def certificate(self, name: str, *names: str) -> Certificate:
        """A certificate, made once."""
        folder = self.folder / name
        if folder.exists():
            return Certificate(folder / "cert.pem", folder / "key.pem")
        return make_certificate(folder, *names)


Fault = Callable[[Case], Awaitable[None]]
FAULTS: dict[str, tuple[str, Fault]] = {}
"""Group and function by name."""


def fault(group: str, name: str) -> Callable[[Fault], Fault]:
    def register(function: Fault) -> Fault:
        assert name not in FAULTS
        FAULTS[name] = (group, function)
        return function

    return register


def check(good: bool, note: str) -> None:
    if not good:
        raise Failure(note)


async def closes(server: ScriptedServer, note: str, within: float = 1.0) -> None:
    """The client must close its connections."""
    try:
        await async_wait_until(lambda: not server.open, seconds=within)
    except TooSlow:
        raise Failure(note) from None
