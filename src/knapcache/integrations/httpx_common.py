"""What the transports for httpx and httpx2 share: requests and responses of either library, and how bodies come.

The two libraries are the same to us: a request tells which it is of, and its response is made of that.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import lru_cache
from typing import Any

from knapcache.cache import Cache
from knapcache.exchange.exchange import CACHE_STATUS, CachedResponse, Exchange, exchange_of, passing
from knapcache.exchange.fetcher import miss_said
from knapcache.exchange.stream_tee import StreamTee
from knapcache.model import Endpoint

LENGTHS = ("content-length", "transfer-encoding")


class Transport:
    """What both transports are.

    cache       where answers are kept
    inner       the transport that sends; by default one of the library's own
    tenant      whose answers they are; by default whoever has the same credentials. A name lets several keys share
    ask_usage   ask for the usage of streams that come without, so that their price is known; the caller does not see it
    finish      read a stream to its end, and keep it, when the caller leaves in the middle
    """

    def __init__(
        self,
        cache: Cache,
        inner: Any = None,
        *,
        tenant: str | None = None,
        ask_usage: bool = True,
        finish: bool = True,
    ) -> None:
        self._cache, self._inner, self._tenant = cache, inner, tenant
        self._ask_usage, self._finish = ask_usage, finish
        self._plain_hosts: set[str] = set()  # they refused stream_options
        self._lock = threading.Lock()

    def _sender(self, request: Any, kind: str) -> Any:
        """The transport that sends; made once, for the connections of a second would never be closed."""
        with self._lock:
            if self._inner is None:
                lib = library(request)
                limits = lib.Limits(max_connections=1000, max_keepalive_connections=100)
                self._inner = getattr(lib, kind)(limits=limits)
            return self._inner

    def _exchange(self, endpoint: Endpoint, request: Any) -> Exchange:
        return exchange_of(endpoint, request.url, request.headers, request.content, self._tenant)

    def _asks_usage(self, request: Any, exchange: Exchange) -> bool:
        """Whether usage is asked for on behalf of the caller."""
        return self._ask_usage and exchange.usage_apart and request.url.host not in self._plain_hosts

    def _count_bypass(self, exchange: Exchange) -> None:
        self._cache.lookup(exchange.endpoint, exchange.raw, namespace=exchange.namespace, context=exchange.context)

    def _refused(self, request: Any, response: Any) -> None:
        """The server took the request without `stream_options`, and not with them."""
        if response.status_code == 200:
            self._plain_hosts.add(request.url.host)


def library(request: Any) -> Any:
    """The library that a request is of."""
    for kind in type(request).__mro__:
        if (name := kind.__module__.partition(".")[0]) in ("httpx", "httpx2"):
            return importlib.import_module(name)
    raise TypeError(f"a request of httpx or httpx2 was expected, not of {type(request).__module__}")


def with_content(request: Any, content: bytes) -> Any:
    """The request with another body."""
    if content == request.content:
        return request
    headers = [
        (n, v) for n, v in request.headers.multi_items() if n.lower() not in ("content-length", "transfer-encoding")
    ]
    return library(request).Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


@lru_cache
def byte_streams(lib: Any) -> tuple[Any, Any]:
    """Bodies that come block by block, and are told when the asker leaves."""

    class Stream(lib.SyncByteStream):  # type: ignore[misc]
        def __init__(self, blocks: Iterable[bytes], relay: StreamTee | None = None) -> None:
            self._blocks, self._relay = blocks, relay

        def __iter__(self) -> Iterator[bytes]:
            yield from self._blocks

        def close(self) -> None:
            if self._relay:
                self._relay.left = True

    class AsyncStream(lib.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, blocks: Any, relay: StreamTee | None = None) -> None:
            self._blocks, self._relay = blocks, relay

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if hasattr(self._blocks, "__aiter__"):
                async for block in self._blocks:
                    yield block
            else:
                for block in self._blocks:
                    yield block

        async def aclose(self) -> None:
            if self._relay:
                self._relay.left = True

    return Stream, AsyncStream


def response_of(request: Any, what: CachedResponse, *, sync: bool) -> Any:
    """What is given, as a response of the library."""
    lib = library(request)
    headers, body = what.headers, what.body
    if isinstance(body, bytes):  # as a stream of one piece: a response made of content cannot be read raw
        headers, body = [*headers, ("content-length", str(len(body)))], [body]
    return lib.Response(what.status, headers=headers, stream=byte_streams(lib)[0 if sync else 1](body))


def live(request: Any, headers: list[tuple[str, str]], blocks: Any, relay: StreamTee, *, sync: bool) -> Any:
    """A response whose body is still coming."""
    lib = library(request)
    return lib.Response(200, headers=headers, stream=byte_streams(lib)[0 if sync else 1](blocks, relay))


def marked(response: Any) -> Any:
    """A response that passes, and says so."""
    response.headers["x-knapcache"] = "bypass"
    response.headers["cache-status"] = CACHE_STATUS["bypass"]
    return response


def passed(response: Any, content: bytes) -> CachedResponse:
    """An answer that is passed on as it came."""
    return CachedResponse(response.status_code, [*passing(response.headers.multi_items()), *miss_said()], content)
