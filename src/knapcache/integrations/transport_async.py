"""The transport for async clients of httpx and httpx2, on asyncio. As `transport.py`, with tasks instead of threads.

Every fetch runs in a task of its own: cancelling a request does not cancel the fetch that others may be waiting for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

from knapcache.cache import Cache
from knapcache.cache.cache import internal_of
from knapcache.exchange.exchange import cacheable_endpoint
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.fetcher import Fetcher
from knapcache.integrations.transport import (
    CLOSE_TIMEOUT,
    Handover,
    HttpxResponse,
    TransportBase,
    bypassed,
    make_response,
    with_content,
)


class AsyncCacheTransport(TransportBase):
    """For `httpx.AsyncClient` and `httpx2.AsyncClient`, on asyncio."""

    def __init__(self, cache: Cache, inner: Any = None, **options: Any) -> None:
        super().__init__(cache, inner, **options)
        self._fetcher = Fetcher(internal_of(cache), **self._fetcher_options)
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly

    async def handle_async_request(self, request: Any) -> Any:
        """Return the response to a request."""
        endpoint = cacheable_endpoint(request.method, request.url.path)
        if endpoint is None:
            return await self._send(request)
        await request.aread()

        async def send(content: bytes) -> AsyncHttpxResponse:
            return AsyncHttpxResponse(await self._send(with_content(request, content)))

        items: asyncio.Queue[Any] = asyncio.Queue()
        handover = Handover(items.put_nowait)
        fetch = self._fetcher.fetch(self._exchange(endpoint, request), request.url.host, send)
        task = asyncio.create_task(handover.run(fetch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            first = await items.get()
        except asyncio.CancelledError:
            handover.abandoned = True
            raise
        if isinstance(first, BaseException):
            raise first
        if first is None:
            return bypassed(await self._send(request))
        assert isinstance(first, Fetched)
        if isinstance(first, LiveStream):
            return make_response(request, first, sync=False, live=self._blocks(items), handover=handover)
        return make_response(request, first, sync=False)

    async def _blocks(self, items: asyncio.Queue[Any]) -> AsyncIterator[bytes]:
        while isinstance(item := await items.get(), bytes):
            yield item
        if isinstance(item, BaseException):  # of the fetch
            raise item

    async def _send(self, request: Any) -> Any:
        return await self._sender(request, "AsyncHTTPTransport").handle_async_request(request)

    async def aclose(self) -> None:
        """Wait for live streams, CLOSE_TIMEOUT seconds at most, then close all connections. The cache stays open."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncHttpxResponse(HttpxResponse):
    """A response of an async client."""

    async def read(self) -> bytes:
        """Return the whole body."""
        content: bytes = await self._response.aread()
        return content

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        found: AsyncIterator[bytes] = self._response.aiter_bytes()
        return found

    async def close(self) -> None:
        """Release the connection."""
        await self._response.aclose()
