"""HTTP clients behind one interface, for bench/client_faults.py: our own, aiohttp and httpx."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from knapcache.errors import UpstreamFailed
from knapcache.proxy.upstream.client import Client, parse_base_url
from knapcache.proxy.upstream.connect import TlsFiles
from knapcache.proxy.upstream.proxies import environment_proxy

Content = bytes | AsyncIterator[bytes] | None


class Options(NamedTuple):
    """Options of a client; times in seconds."""

    connect_timeout: float = 2.0
    idle_timeout: float = 5.0
    total_timeout: float | None = None
    ca_file: Path | None = None
    environment: bool = False
    """Use the proxies of the environment."""


class OpenResponse(NamedTuple):
    """A response whose body is still to be read."""

    status: int
    chunks: Callable[[], AsyncIterator[bytes]]
    """Returns the body as it is received."""
    close: Callable[[], Awaitable[None]]
    """Ends the exchange."""


class ClientUnderTest(ABC):
    """A client."""

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, options: Options) -> None:
        self.options = options

    @classmethod
    def installed(cls) -> bool:
        return importlib.util.find_spec(cls.package) is not None

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version(cls.package)

    @abstractmethod
    async def open(self, method: str, url: str, content: Content) -> OpenResponse:
        """Send a request and return when the head of its response was received."""

    @abstractmethod
    def safe_to_retry(self, error: BaseException) -> bool:
        """Whether an error tells that no byte of a response was received."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.options.ca_file) if self.options.ca_file else None


class OwnClient(ClientUnderTest):
    """knapcache's client."""

    name, package = "own", "knapcache"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._client: Client | None = None

    async def open(self, method: str, url: str, content: Content) -> OpenResponse:
        base, slash, path = url.partition("//")[2].partition("/")
        base = f"{url.partition('//')[0]}//{base}"
        if self._client is None:
            options = self.options
            proxy = environment_proxy(parse_base_url(base).origin) if options.environment else None
            self._client = Client(
                "upstream", options.connect_timeout, options.idle_timeout, options.total_timeout, proxy=proxy,
                tls=TlsFiles(options.ca_file),
            )  # fmt: skip
        response = await self._client.request(method, base, f"{slash or '/'}{path}", b"", content)
        return OpenResponse(response.status, response.iter_bytes, response.close)

    def safe_to_retry(self, error: BaseException) -> bool:
        return isinstance(error, UpstreamFailed) and error.safe_to_retry

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()


class AiohttpClient(ClientUnderTest):
    """aiohttp."""

    name = package = "aiohttp"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._session: Any = None

    async def open(self, method: str, url: str, content: Content) -> OpenResponse:
        import aiohttp

        if self._session is None:
            options = self.options
            timeout = aiohttp.ClientTimeout(
                total=options.total_timeout, connect=options.connect_timeout, sock_read=options.idle_timeout
            )
            tls = self.tls()
            connector: dict[str, Any] = {} if tls is None else {"ssl": tls}
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                trust_env=options.environment,
                connector=aiohttp.TCPConnector(limit=0, **connector),
            )
        response = await self._session.request(method, url, data=content, allow_redirects=False)

        async def release() -> None:
            response.release()

        return OpenResponse(response.status, response.content.iter_any, release)

    def safe_to_retry(self, error: BaseException) -> bool:
        import aiohttp

        if isinstance(error, aiohttp.ServerDisconnectedError):
            return isinstance(error.message, str)  # else it holds the head that was received in part
        return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class HttpxClient(ClientUnderTest):
    """httpx. It has no total timeout."""

    name = package = "httpx"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._client: Any = None

    async def open(self, method: str, url: str, content: Content) -> OpenResponse:
        import httpx

        if self._client is None:
            options = self.options
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(options.idle_timeout, connect=options.connect_timeout),
                trust_env=options.environment,
                verify=self.tls() or True,
            )
        request = self._client.build_request(method, url, content=content)
        response = await self._client.send(request, stream=True)
        return OpenResponse(response.status_code, response.aiter_bytes, response.aclose)

    def safe_to_retry(self, error: BaseException) -> bool:
        import httpx

        if isinstance(error, httpx.RemoteProtocolError):
            return "without sending a response" in str(error)
        return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


CLIENTS: tuple[type[ClientUnderTest], ...] = (OwnClient, AiohttpClient, HttpxClient)
