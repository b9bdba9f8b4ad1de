"""Stale answers: served while a fresh one is fetched, or because none can be fetched (RFC 5861).

    stored          0 ………… fresh_for ………… fresh_for + window            window = max(while_revalidate, if_error)
    past its freshness by at most
      while_revalidate   the stale answer is served at once and refreshed in the background
      if_error           a fresh one is fetched; the stale answer is served if the provider fails
    longer               a fresh one is fetched

The answer is stored until the end of the window. `meta["fresh"]` records for how long it is fresh.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from knapcache.cache import Answer, PendingFetch
from knapcache.cache.internal import InternalCache
from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange
from knapcache.exchange.fetched import Fetched
from knapcache.exchange.fetcher import Fetcher, Send


def extend_ttl(exchange: Exchange, ttl: float | None, window: float) -> Exchange:
    """Return the exchange with its answer stored for `window` seconds longer than it is fresh.

    ttl: the cache's own. Answers that never expire are never stale. Items of a request have no window.
    """
    fresh_for = ttl if exchange.control.ttl is None else exchange.control.ttl
    if fresh_for is None or exchange.format.per_item is not None:
        return exchange
    return exchange._replace(fresh_for=fresh_for, control=replace(exchange.control, ttl=fresh_for + window))


def refreshed(exchange: Exchange) -> Exchange:
    """Return the exchange with a fresh answer asked for."""
    return exchange._replace(control=replace(exchange.control, refresh=True, only_cached=False))


def stale_seconds(answer: Answer) -> float:
    """Return by how many seconds a stored answer is past its freshness; 0 or less if it is fresh."""
    fresh_for = answer.meta.get("fresh")
    return 0.0 if fresh_for is None or answer.outcome != "hit" else answer.age - float(fresh_for)


class StaleAnswer(Fetched):
    """A response with a stale answer."""

    refresh: asyncio.Task[tuple[Answer, ...]] | None = None
    """The background fetch that this request has started. Its result: the answers that were paid for."""


class StaleFetcher:
    """A fetcher that serves stale answers. Used only if one of the windows is set."""

    def __init__(
        self, fetcher: Fetcher, cache: InternalCache, *, ttl: float | None, while_revalidate: float, if_error: float
    ) -> None:
        self._fetcher, self._cache, self._ttl = fetcher, cache, ttl
        self._while_revalidate, self._if_error = while_revalidate, if_error
        self._refreshes: set[asyncio.Task[tuple[Answer, ...]]] = set()

    async def fetch(self, exchange: Exchange, upstream: str, send: Send) -> Fetched | None:
        """Return the response, as `Fetcher.fetch` does. A stale answer has the outcome `stale`."""
        exchange = extend_ttl(exchange, self._ttl, max(self._while_revalidate, self._if_error))
        fetched = await self._fetcher.fetch(exchange, upstream, send)
        if fetched is None or len(fetched.answers) != 1 or (late := stale_seconds(fetched.answers[0])) <= 0:
            return fetched
        answer = fetched.answers[0]._replace(outcome="stale")
        stale = StaleAnswer(await self._fetcher.response(exchange, answer), (answer,))
        if late <= self._while_revalidate:
            stale.refresh = await self._refresh(exchange, upstream, send)
            return stale
        try:
            fetched = await self._fetcher.fetch(refreshed(exchange), upstream, send)
        except UpstreamFailed:
            if late > self._if_error:
                raise
            return stale
        if fetched is not None and late <= self._if_error and (fetched.status >= 500 or fetched.status == 429):
            await fetched.finish()
            return stale
        return fetched

    async def _refresh(self, exchange: Exchange, upstream: str, send: Send) -> asyncio.Task[tuple[Answer, ...]] | None:
        """Fetch a fresh answer in the background, unless that is being done. Return the task without waiting for it."""
        keyed = await self._fetcher.keyed_request(exchange)
        if keyed is None or not exchange.control.store or self._cache.refreshing(keyed):
            return None
        pending = await self._cache.begin_async(keyed, refresh=True)
        assert isinstance(pending, PendingFetch), "a refresh that is not in flight is led by its caller"

        async def refresh() -> tuple[Answer, ...]:
            with contextlib.suppress(UpstreamFailed):  # the stale answer stays
                fetched = await self._fetcher.lead(refreshed(exchange), upstream, send, pending)
                answers = await fetched.drain()
                return () if fetched.failed else answers
            return ()

        def done(task: asyncio.Task[tuple[Answer, ...]]) -> None:
            self._refreshes.discard(task)
            pending.abandon()  # if the task was cancelled before it began

        task = asyncio.create_task(refresh())
        self._refreshes.add(task)
        task.add_done_callback(done)
        return task

    async def drain(self, seconds: float) -> None:
        """Wait for background fetches, for at most `seconds`."""
        if self._refreshes:
            await asyncio.wait(self._refreshes, timeout=seconds)
