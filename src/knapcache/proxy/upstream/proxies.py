"""HTTP proxies on the way to an upstream: which one applies, and the CONNECT tunnel through it.

The environment decides, as for curl. It is read once, when the upstream is created:

    HTTPS_PROXY, HTTP_PROXY   proxy for URLs of that scheme; else ALL_PROXY. Names in lower case take precedence.
                              HTTP_PROXY in capitals is ignored under CGI (REQUEST_METHOD is set), where clients set it
    NO_PROXY                  hosts without a proxy, separated by commas or spaces; no host is exempt otherwise
        *                     every host
        example.com           the host and its subdomains; .example.com and *.example.com mean the same
        10.0.0.1, ::1         an address
        10.0.0.0/8            the addresses of a network. Host names are not resolved for this
        host:8080, [::1]:80   only this port

    upstream   proxy       connection
    http       any         to the proxy; the request line has the whole URL (absolute form)
    https      http://     CONNECT through the proxy, then TLS with the upstream
    https      https://    TLS with the proxy, CONNECT, then TLS with the upstream inside

Credentials in the proxy's URL are sent to the proxy as Basic authorization, and are in no message, log or repr.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import httptools

from knapcache.errors import InvalidInput
from knapcache.proxy.settings.value_types import proxy_url
from knapcache.proxy.upstream.connection import Origin, bracketed
from knapcache.proxy.upstream.failures import ConnectionLost, ProtocolError, ProxyRefused

MAX_CONNECT_HEAD = 64 << 10
"""Bytes of a proxy's response to CONNECT, 1xx responses included."""
BRACKETED = re.compile(r"\[(.+)\](?::(\d+))?")


@dataclass(frozen=True)
class HttpProxy:
    """A proxy, from a URL such as http://user:password@proxy.example:3128. Without a port: 80 or 443."""

    host: str
    port: int
    tls: bool
    authorization: bytes = field(default=b"", repr=False)
    """A Proxy-Authorization header line; empty: none."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """InvalidInput if the URL cannot be used; the message does not contain it."""
        parts = urlsplit(proxy_url(url))
        tls = parts.scheme == "https"
        authorization = b""
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = b"proxy-authorization: Basic %b\r\n" % base64.b64encode(credentials.encode())
        return cls(parts.hostname or "", parts.port or (443 if tls else 80), tls, authorization)

    def __str__(self) -> str:
        """The URL without credentials."""
        return f"http{'s' if self.tls else ''}://{bracketed(self.host)}:{self.port}"


def environment_proxy(origin: Origin) -> HttpProxy | None:
    """Return the proxy that the environment names for an upstream. InvalidInput if it cannot be used."""
    environment = getproxies_environment()
    scheme = "https" if origin.tls else "http"
    name = scheme if environment.get(scheme) else "all"
    url = environment.get(name)
    if not url or bypasses_proxy(origin.host, origin.port, environment.get("no", "")):
        return None
    try:
        return HttpProxy.parse(url)
    except InvalidInput as error:
        raise InvalidInput(f"the environment variable {name.upper()}_PROXY: {error}") from None


def bypasses_proxy(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY exempts a host."""
    return any(_matches(entry, host.lower().rstrip("."), port) for entry in re.split(r"[,\s]+", no_proxy.lower()))


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, only_port = entry, None
    if match := BRACKETED.fullmatch(entry):
        name, only_port = match[1], match[2]
    elif entry.count(":") == 1:  # more are an IPv6 address
        name, _, only_port = entry.partition(":")
    if only_port and only_port != str(port):
        return False
    if address is not None:
        return address == _address(name)
    name = name.removeprefix("*").strip(".")
    return name != "" and (host == name or host.endswith(f".{name}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


class ConnectTunnel(asyncio.Protocol):
    """The CONNECT handshake on a new connection to a proxy. Afterwards its transport belongs to the upstream."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = b""
        self._size = 0
        self._established: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, origin: Origin, proxy: HttpProxy) -> None:
        """Ask the proxy for a tunnel. Raises ProxyRefused, ProtocolError or ConnectionLost."""
        target = f"{bracketed(origin.host)}:{origin.port}".encode("latin-1")
        head = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (target, target, proxy.authorization)
        self.transport.write(head)
        await self._established

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are not an asyncio.Transport

    def data_received(self, data: bytes) -> None:
        if self._established.done():  # before our TLS hello: not from the upstream
            self.transport.abort()
            return
        self._received += data
        self._size += len(data)
        try:
            while not self._established.done() and b"\r\n\r\n" in self._received:
                self._parse_head()
            if not self._established.done() and self._size > MAX_CONNECT_HEAD:
                raise ProtocolError("the proxy's response to CONNECT is too long")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ProtocolError(type(error).__name__))
        except OSError as error:
            self._fail(error)

    def _parse_head(self) -> None:
        head, end, self._received = self._received.partition(b"\r\n\r\n")
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(head + end)
        status = parser.get_status_code()
        if status >= 300:
            raise ProxyRefused(status)
        if status >= 200:
            if self._received:
                raise ProtocolError("the proxy sent bytes before the tunnel was used")
            self._established.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error if isinstance(error, OSError) else ConnectionLost("the proxy closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self._established.done():
            self._established.set_exception(error)
            self._established.exception()  # read here: a cancelled `open` does not
        self.transport.abort()
