"""The transport for async clients of httpx and httpx2, on asyncio: `exchange/fetcher.py`, spoken through httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

from knapcache.cache import Cache
from knapcache.exchange.exchange import cacheable_endpoint
from knapcache.exchange.fetcher import Fetcher, StreamOpen
from knapcache.integrations.httpx_common import Transport, live, marked, response_of, with_content


class AsyncCacheTransport(Transport):
    """For `httpx.AsyncClient` and `httpx2.AsyncClient`, on asyncio."""

    def __init__(self, cache: Cache, inner: Any = None, **options: Any) -> None:
        super().__init__(cache, inner, **options)
        self._answering = Fetcher(cache, ask_usage=self._ask_usage, finish=self._finish)

    async def handle_async_request(self, request: Any) -> Any:
        """A request's response, kept or fetched."""
        endpoint = cacheable_endpoint(request.method, request.url.path)
        if endpoint is None:
            return await self._send(request)
        await request.aread()

        async def send(content: bytes) -> Response:
            return Response(await self._send(with_content(request, content)))

        found = await self._answering.answer(self._exchange(endpoint, request), request.url.host, send)
        if found is None:
            return marked(await self._send(request))
        if isinstance(found, StreamOpen):
            return live(request, found.headers, found.blocks, found.relay, sync=False)
        return response_of(request, found, sync=False)

    async def _send(self, request: Any) -> Any:
        return await self._sender(request, "AsyncHTTPTransport").handle_async_request(request)

    async def aclose(self) -> None:
        """Wait a little for streams that are still being read, then let connections go. The cache is the caller's."""
        await self._answering.settled()
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Response:
    """A response of httpx, as `Received`."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers: dict[str, str] = dict(response.headers)
        self.pairs: list[tuple[str, str]] = list(response.headers.multi_items())

    async def read(self) -> bytes:
        """All of the body."""
        content: bytes = await self._response.aread()
        return content

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        found: AsyncIterator[bytes] = self._response.aiter_bytes()
        return found

    async def close(self) -> None:
        """Let go of it."""
        await self._response.aclose()
