"""The transport for httpx and httpx2, on which the SDKs of OpenAI and Anthropic are built.

    OpenAI(http_client=httpx.Client(transport=CacheTransport(cache)))
    Anthropic(http_client=httpx2.Client(transport=CacheTransport(cache)))

POST to an endpoint whose answers are cached goes through the cache, everything else is sent untouched. The steps are
those of `exchange/fetcher.py`. This module and `transport_async.py` only run it, because httpx has two kinds of
transports.

A plain request is fetched in the caller's thread, a streamed one in a thread of its own: the caller reads the stream
while it comes, and may leave before its end.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Self

from knapcache.cache import Cache
from knapcache.cache.cache import internal_of
from knapcache.exchange.exchange import cacheable_endpoint
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.fetcher import Fetcher
from knapcache.integrations.httpx_common import (
    CLOSE_TIMEOUT,
    Handover,
    TransportBase,
    bypassed,
    make_response,
    with_content,
)
from knapcache.threads import run_blocking


class CacheTransport(TransportBase):
    """For `httpx.Client` and `httpx2.Client`."""

    def __init__(self, cache: Cache, inner: Any = None, **options: Any) -> None:
        super().__init__(cache, inner, **options)
        self._fetcher = Fetcher(internal_of(cache), blocking=True, **self._fetcher_options)
        self._threads: set[threading.Thread] = set()

    def handle_request(self, request: Any) -> Any:
        """Return the response to a request."""
        endpoint = cacheable_endpoint(request.method, request.url.path)
        if endpoint is None:
            return self._send(request)  # its body is not read: it may be a large file
        request.read()
        exchange = self._exchange(endpoint, request)

        async def send(content: bytes) -> BlockingResponse:
            return BlockingResponse(self._send(with_content(request, content)))

        fetch = self._fetcher.fetch(exchange, request.url.host, send)
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        handover = Handover(items.put)
        if exchange.stream:
            self._start(handover.run(fetch))
        else:
            run_blocking(handover.run(fetch))
        first = items.get()
        if isinstance(first, BaseException):
            raise first
        if first is None:
            return bypassed(self._send(request))
        assert isinstance(first, Fetched)
        if isinstance(first, LiveStream):
            return make_response(request, first, sync=True, live=self._blocks(items, handover), handover=handover)
        return make_response(request, first, sync=True)

    def _start(self, run: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(run_blocking, run), daemon=True, name="knapcache-fetch")
        self._threads = {thread for thread in self._threads if thread.is_alive()} | {thread}
        thread.start()

    def _blocks(self, items: queue.SimpleQueue[Any], handover: Handover) -> Iterator[bytes]:
        while isinstance(item := items.get(), bytes):
            yield item
        handover.end(item)

    def _send(self, request: Any) -> Any:
        return self._sender(request, "HTTPTransport").handle_request(request)

    def close(self) -> None:
        """Wait for live streams, CLOSE_TIMEOUT seconds at most, then close all connections. The cache stays open."""
        end = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingResponse:
    """A response of httpx whose coroutines block the thread (`fetcher.UpstreamResponse`)."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers: dict[str, str] = dict(response.headers)
        self.pairs: list[tuple[str, str]] = list(response.headers.multi_items())

    async def read(self) -> bytes:
        """Return the whole body."""
        content: bytes = self._response.read()
        return content

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        for data in self._response.iter_bytes():
            yield data

    async def close(self) -> None:
        """Release the connection."""
        self._response.close()
