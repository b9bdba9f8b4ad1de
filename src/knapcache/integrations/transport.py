"""The transport for httpx and httpx2, on which the SDKs of OpenAI and Anthropic are built.

    OpenAI(http_client=httpx.Client(transport=CacheTransport(cache)))
    Anthropic(http_client=httpx2.Client(transport=CacheTransport(cache)))

POST to an endpoint whose answers are cached goes through the cache, everything else is sent untouched. The steps are
those of `exchange/fetcher.py`. This module and `transport_async.py` only run it, because httpx has two kinds of
transports. The two libraries have the same interface. The class of a request tells which one it is of, and its response
is made from the same.

A plain request is fetched in the caller's thread, a streamed one in a thread of its own: the caller reads the stream
while it comes, and may leave before its end.
"""

from __future__ import annotations

import contextvars
import importlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import lru_cache
from typing import Any, Self

from knapcache.cache import Cache
from knapcache.cache.cache import internal_of
from knapcache.exchange.exchange import Exchange, cacheable_endpoint, exchange_of
from knapcache.exchange.fetched import Fetched, LiveStream
from knapcache.exchange.fetcher import Fetcher
from knapcache.exchange.headers import outcome_headers
from knapcache.model import Endpoint
from knapcache.threads import run_blocking

CLOSE_TIMEOUT = 5.0
"""Seconds that closing a transport waits for streams that are still being read."""
BODY_HEADERS = ("content-length", "transfer-encoding")


class TransportBase:
    """The options of both transports.

    cache              where answers are stored
    inner              the transport that sends; by default the library's own
    tenant             the namespace of the answers; by default each API key has its own. A name lets keys share
    ask_usage          ask for the usage of streams that come without, so that their cost is known
    finish_abandoned   read a stream to its end and store it when its caller leaves
    ignored_headers    names of request headers that are not part of the key, or patterns such as "x-trace-*"
    """

    def __init__(
        self,
        cache: Cache,
        inner: Any = None,
        *,
        tenant: str | None = None,
        ask_usage: bool = True,
        finish_abandoned: bool = True,
        ignored_headers: Iterable[str] = (),
    ) -> None:
        self._cache, self._inner, self._tenant = cache, inner, tenant
        self._ignored_headers = tuple(name.lower() for name in ignored_headers)
        self._fetcher_options: dict[str, Any] = {"ask_usage": ask_usage, "finish_abandoned": finish_abandoned}
        self._lock = threading.Lock()

    def _sender(self, request: Any, kind: str) -> Any:
        """Return the transport that sends. It is created once: connections of another would never be closed."""
        with self._lock:
            if self._inner is None:
                lib = library(request)
                limits = lib.Limits(max_connections=1000, max_keepalive_connections=100)
                self._inner = getattr(lib, kind)(limits=limits)
            return self._inner

    def _exchange(self, endpoint: Endpoint, request: Any) -> Exchange:
        return exchange_of(endpoint, request.url, request.headers, request.content, self._tenant, self._ignored_headers)


class Handover:
    """A fetch in a thread or task of its own, whose response is handed over to the caller through a queue.

    put(Fetched or None), put(block)*, put(END or an exception)      of a response that is not a live stream: the first

    The fetch goes on when its caller leaves.
    """

    END = object()

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put
        self.abandoned = False
        """The caller has left."""

    async def run(self, fetch: Coroutine[Any, Any, Fetched | None]) -> None:
        """Run a fetch to its end. Its exceptions are put into the queue."""
        try:
            fetched = await fetch
            if isinstance(fetched, LiveStream):
                self._put(fetched)
                async for block in fetched.blocks:
                    if self.abandoned:
                        break
                    self._put(block)
                await fetched.finish()
                self._put(self.END)
            else:
                if fetched is not None:
                    await fetched.finish()
                self._put(fetched)
        except BaseException as error:
            self._put(error)
            if not isinstance(error, Exception):
                raise


def library(request: Any) -> Any:
    """Return the library that a request is of."""
    for kind in type(request).__mro__:
        if (name := kind.__module__.partition(".")[0]) in ("httpx", "httpx2"):
            return importlib.import_module(name)
    raise TypeError(f"expected a request of httpx or httpx2, not of {type(request).__module__}")


def with_content(request: Any, content: bytes) -> Any:
    """Return the request with another body."""
    if content == request.content:
        return request
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in BODY_HEADERS]
    return library(request).Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


@lru_cache
def byte_streams(lib: Any) -> tuple[Any, Any]:
    """Return the classes of response bodies, sync and async. Closing one tells its fetch that the caller has left."""

    class Stream(lib.SyncByteStream):  # type: ignore[misc]
        def __init__(self, blocks: Iterable[bytes], handover: Handover | None) -> None:
            self._blocks, self._handover = blocks, handover

        def __iter__(self) -> Iterator[bytes]:
            yield from self._blocks

        def close(self) -> None:
            if self._handover:
                self._handover.abandoned = True

    class AsyncStream(lib.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, blocks: Any, handover: Handover | None) -> None:
            self._blocks, self._handover = blocks, handover

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if hasattr(self._blocks, "__aiter__"):
                async for block in self._blocks:
                    yield block
            else:
                for block in self._blocks:
                    yield block

        async def aclose(self) -> None:
            if self._handover:
                self._handover.abandoned = True

    return Stream, AsyncStream


def make_response(
    request: Any, fetched: Fetched, *, sync: bool, live: Any = None, handover: Handover | None = None
) -> Any:
    """Return a response of the request's library. live: the blocks of a live stream, instead of the body."""
    lib = library(request)
    headers, body = fetched.headers, fetched.body if live is None else live
    if isinstance(body, bytes):  # as a stream of one piece: a response made of content cannot be read raw
        headers, body = [*headers, ("content-length", str(len(body)))], [body]
    return lib.Response(fetched.status, headers=headers, stream=byte_streams(lib)[0 if sync else 1](body, handover))


def bypassed(response: Any) -> Any:
    """Mark a response that did not go through the cache."""
    for name, value in outcome_headers("bypass"):
        response.headers[name] = value
    return response


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
            return make_response(request, first, sync=True, live=self._blocks(items), handover=handover)
        return make_response(request, first, sync=True)

    def _start(self, run: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(run_blocking, run), daemon=True, name="knapcache-fetch")
        self._threads = {thread for thread in self._threads if thread.is_alive()} | {thread}
        thread.start()

    def _blocks(self, items: queue.SimpleQueue[Any]) -> Iterator[bytes]:
        while isinstance(item := items.get(), bytes):
            yield item
        if isinstance(item, BaseException):  # of the fetch
            raise item

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


class HttpxResponse:
    """Status and headers of a response of httpx (`fetcher.UpstreamResponse`)."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers: dict[str, str] = dict(response.headers)
        self.pairs: list[tuple[str, str]] = list(response.headers.multi_items())


class BlockingResponse(HttpxResponse):
    """A response of httpx whose coroutines block the thread."""

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
