"""The transport for async clients of httpx and httpx2, on asyncio: `transport.py`, with awaits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

from knapcache.cache import Answer, Cache, Reply
from knapcache.errors import Incomplete, NotCached
from knapcache.exchange.batch import Batch, batch_of
from knapcache.exchange.exchange import Exchange, concerns_us, given, is_stream, not_cached, plain_reply
from knapcache.exchange.relay import Heard, Opened, Relay
from knapcache.integrations.carrier import (
    PATIENCE,
    REFUSALS,
    Transport,
    live,
    marked,
    passed,
    response_of,
    with_content,
)


class AsyncCacheTransport(Transport):
    """For `httpx.AsyncClient` and `httpx2.AsyncClient`, on asyncio."""

    def __init__(self, cache: Cache, inner: Any = None, **options: Any) -> None:
        super().__init__(cache, inner, **options)
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly

    async def handle_async_request(self, request: Any) -> Any:
        """A request's response, kept or fetched."""
        endpoint = concerns_us(request.method, request.url.path)
        if endpoint is None:
            return await self._send(request)
        await request.aread()
        exchange = self._exchange(endpoint, request)
        batch = batch_of(self._cache, exchange)
        if exchange.bypass or (batch and batch.bypass):
            if batch is None:
                self._count_bypass(exchange)
            return marked(await self._send(request))
        try:
            if batch:
                return await self._batch(request, exchange, batch)
            return await (self._streamed(request, exchange) if exchange.stream else self._plain(request, exchange))
        except NotCached:
            return response_of(request, not_cached(), sync=False)

    async def _plain(self, request: Any, exchange: Exchange) -> Any:
        headers: list[tuple[str, str]] | None = None

        async def call() -> Reply:
            nonlocal headers
            response = await self._send(with_content(request, exchange.sent(False)))
            try:
                content = await response.aread()
            finally:
                await response.aclose()
            headers = list(response.headers.multi_items())
            return plain_reply(exchange, response.status_code, response.headers, content)

        for refresh in (exchange.control.refresh, True):
            wishes = exchange.wishes(refresh)
            answer = await self._cache.fetch_async(exchange.endpoint, exchange.body, call, **wishes)
            try:
                return response_of(request, given(exchange, answer, headers), sync=False)
            except Incomplete:
                continue
        return marked(await self._send(request))

    async def _streamed(self, request: Any, exchange: Exchange) -> Any:
        for refresh in (exchange.control.refresh, True):
            heard: asyncio.Queue[Heard] = asyncio.Queue()
            relay = Relay(exchange, self._finish, heard.put_nowait)
            task = asyncio.create_task(self._fetch(request, exchange, relay, refresh))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                first = await heard.get()
            except asyncio.CancelledError:
                relay.left = True
                raise
            if isinstance(first, Opened):
                return live(request, first, self._heard(heard, relay), relay, sync=False)
            if isinstance(first, BaseException):
                raise first
            assert isinstance(first, Answer)
            try:
                return response_of(request, given(exchange, first, relay.answered), sync=False)
            except Incomplete:
                continue
        return marked(await self._send(request))

    async def _heard(self, heard: asyncio.Queue[Heard], relay: Relay) -> AsyncIterator[bytes]:
        while isinstance(block := await heard.get(), bytes):
            yield block
        for held in relay.held:
            yield held
        if isinstance(block, BaseException):
            raise block

    async def _fetch(self, request: Any, exchange: Exchange, relay: Relay, refresh: bool) -> None:
        """In a task of its own: whatever happens, the asker hears of it."""

        async def call() -> Reply:
            return await self._stream_call(request, exchange, relay)

        try:
            wishes = exchange.wishes(refresh)
            relay.put(await self._cache.fetch_async(exchange.endpoint, exchange.body, call, **wishes))
        except BaseException as error:
            relay.put(error)
            if not isinstance(error, Exception):
                raise

    async def _stream_call(self, request: Any, exchange: Exchange, relay: Relay) -> Reply:
        asking = self._asks_usage(request, exchange)
        response = await self._send(with_content(request, exchange.sent(asking)))
        if asking and response.status_code in REFUSALS:
            await response.aclose()
            asking = False
            response = await self._send(with_content(request, exchange.sent(False)))
            self._refused(request, response)
        try:
            if not is_stream(response.status_code, response.headers):
                relay.answered = list(response.headers.multi_items())
                return plain_reply(exchange, response.status_code, response.headers, await response.aread())
            relay.opened(response.headers, asking or exchange.usage)
            async for piece in response.aiter_bytes():
                if relay.fed(piece):
                    break
            return relay.reply()
        finally:
            await response.aclose()

    async def _batch(self, request: Any, exchange: Exchange, batch: Batch) -> Any:
        if batch.complete:
            return response_of(request, batch.given(), sync=False)
        if exchange.control.only_cached:
            raise NotCached
        response = await self._send(with_content(request, batch.sent()))
        try:
            content = await response.aread()
            if response.status_code == 200:
                batch.settle(response.headers, content)
                return response_of(request, batch.given(response.headers), sync=False)
        except Incomplete:
            if batch.hits:  # half an answer helps nobody: as if there were no cache
                return marked(await self._send(with_content(request, exchange.sent(False))))
        finally:
            await response.aclose()
        return response_of(request, passed(response, content), sync=False)

    async def _send(self, request: Any) -> Any:
        return await self._sender(request, "AsyncHTTPTransport").handle_async_request(request)

    async def aclose(self) -> None:
        """Wait a little for streams that are still being read, then let connections go. The cache is the caller's."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
