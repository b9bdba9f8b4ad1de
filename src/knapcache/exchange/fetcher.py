"""Fetches the response to an exchange: from the cache, or from the provider under the cache's single flight.

    fetched = await fetcher.fetch(exchange, upstream, send)      status, headers and body
    write the body
    answers = await fetched.finish()                             store the answer, release the waiters

A plain answer that was paid for is written before it is stored, because storing doubles the latency of a miss. A live
stream is read in the task that writes it. Its last blocks are yielded only after the answer is stored, so that a caller
that repeats its request gets a hit.

Nothing here knows asyncio. All waiting is done by `send`, by the response that it returns and by the cache's
coroutines, so that blocking callers can run the same code (`threads.run_blocking`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from knapcache.cache import Answer, PendingFetch, Reply
from knapcache.cache.internal import InternalCache
from knapcache.cache.values import Lookup
from knapcache.errors import Incomplete, NotCached
from knapcache.exchange.embedding_batch import ITEMS_AT_ONCE, EmbeddingBatch, has_items
from knapcache.exchange.exchange import (
    CachedResponse,
    Exchange,
    is_event_stream,
    not_cached,
    plain_reply,
    to_response,
)
from knapcache.exchange.fetched import Fetched, FetchedAnswer, LiveStream, UpstreamResponse
from knapcache.exchange.headers import Pairs, forwarded_headers, outcome_headers, sandboxed
from knapcache.exchange.stream_tee import StreamTee
from knapcache.keys import KeyedRequest
from knapcache.keys.parse import SHORT
from knapcache.threads import as_coroutine
from knapcache.wire.base import PerItem, stored_length

MAX_ANSWER = 128_000_000
"""Bytes of a stream that is collected."""
UNKNOWN_OPTION = (400, 422)
"""Statuses with which servers refuse `stream_options`."""


Send = Callable[[bytes], Awaitable[UpstreamResponse]]
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function elsewhere, and returns its result."""


class Fetcher:
    """Fetches responses.

    ask_usage          ask for the usage of streams that come without, so that their cost is known
    finish_abandoned   read a stream to its end and store it when its caller leaves
    max_answer         bytes of a stream that is collected; a longer one is forwarded and not stored
    blocking           the cache blocks the thread; `fetch` is to be run with `run_blocking`
    offload            runs work on bodies of more than SHORT bytes; None: they are worked on here
    pause              called between items of a request with many, to let other requests run
    """

    def __init__(
        self,
        cache: InternalCache,
        *,
        ask_usage: bool = True,
        finish_abandoned: bool = True,
        max_answer: int = MAX_ANSWER,
        blocking: bool = False,
        offload: Offload | None = None,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._offload, self._pause = offload, pause
        self._cache, self._ask_usage, self._finish_abandoned = cache, ask_usage, finish_abandoned
        self._max_answer = max_answer
        self._begin: Callable[..., Awaitable[Answer | PendingFetch]]
        self._lookup: Callable[..., Awaitable[Lookup]]
        self._settle: Callable[[Sequence[tuple[Lookup, Reply]]], Awaitable[list[Answer]]]
        if blocking:
            self._begin, self._lookup = as_coroutine(cache.begin), as_coroutine(cache.lookup)
            self._settle = as_coroutine(cache.settle_answers)
        else:
            self._begin, self._lookup = cache.begin_async, cache.lookup_async
            self._settle = cache.settle_answers_async
        self._refuse_options: set[str] = set()  # upstreams that do not know stream_options

    async def fetch(self, exchange: Exchange, upstream: str, send: Send) -> Fetched | None:
        """Return the response; None if the request must be sent without the cache. upstream: the name of the provider.

        A stored answer that lacks what the request asks for (a stream without usage) is fetched anew, once.
        """
        if exchange.format.per_item is not None and has_items(exchange, exchange.format.per_item):
            return await self._fetch_items(exchange, exchange.format.per_item, send)
        keyed = self._keyed(exchange) if self._is_short(len(exchange.raw)) else await self.keyed_request(exchange)
        if keyed is None:
            return self._bypass(exchange)
        for refresh in (exchange.control.refresh, True):
            try:
                found = await self._begin(keyed, **exchange.fetch_args(refresh))
            except NotCached:
                return Fetched(not_cached())
            if isinstance(found, PendingFetch):
                similar = None
                if exchange.finder is not None and not refresh:
                    similar = await find_similar(exchange, keyed, found)
                if similar is None:
                    return await self.lead(exchange, upstream, send, found)
                found = similar
            try:
                return Fetched(await self.response(exchange, found), (found,))
            except Incomplete:
                continue
        return None

    async def keyed_request(self, exchange: Exchange) -> KeyedRequest | None:
        """Return the request with its key, or None when it has none."""
        found: KeyedRequest | None = await self._run(len(exchange.raw), partial(self._keyed, exchange))
        return found

    def _keyed(self, exchange: Exchange) -> KeyedRequest | None:
        if exchange.bypass:
            return None
        return self._cache.keyed_request(
            exchange.endpoint, exchange.body, namespace=exchange.namespace, context=exchange.context
        )

    async def response(
        self, exchange: Exchange, answer: Answer, upstream_headers: Pairs | None = None
    ) -> CachedResponse:
        """Return `to_response`. A long answer that must be converted is converted as a whole, by `offload`."""
        if is_plain(exchange, answer):
            return to_response(exchange, answer, upstream_headers)
        convert = partial(to_whole_response, exchange, answer, upstream_headers)
        size = stored_length(answer.payload, answer.meta.get("form", ""))
        found: CachedResponse = await self._run(size, convert)
        return found

    def _is_short(self, size: int) -> bool:
        """Return whether work on `size` bytes is done here. Frequent callers check it before they call `_run`."""
        return size <= SHORT or self._offload is None

    async def _run(self, size: int, work: Callable[[], Any]) -> Any:
        """Return the result of work on `size` bytes."""
        return work() if self._offload is None or size <= SHORT else await self._offload(work)

    def _bypass(self, exchange: Exchange) -> Fetched | None:
        """Count a request without a key."""
        self._cache.count_bypass(exchange.namespace)
        return Fetched(not_cached()) if exchange.control.only_cached else None

    async def lead(self, exchange: Exchange, upstream: str, send: Send, pending: PendingFetch) -> Fetched:
        """Fetch the response from the provider."""
        started = time.perf_counter()
        try:
            with pending.leading():
                response, usage_asked = await self._send(exchange, upstream, send)
            if exchange.marker is not None and exchange.marker.fallback is not None:
                exchange = exchange._replace(fallback=exchange.marker.fallback)
            if exchange.stream and is_event_stream(response.status, response.headers):
                tee = StreamTee(exchange, response.headers, usage_asked, self._max_answer)
                finish = self._finish_abandoned
                return LiveStream(response, tee, pending, started, finish_abandoned=finish, run=self._run)
            try:
                content = await response.read()
            finally:
                await response.close()
            seconds = time.perf_counter() - started
            pending.note_end()
            reply: Reply
            if self._is_short(len(content)):
                reply = plain_reply(exchange, response.status, response.headers, content)
            else:
                parse = partial(plain_reply, exchange, response.status, response.headers, content)
                reply = await self._run(len(content), parse)
            answer = Answer(reply.payload, reply.meta, "miss", pending.key, 0.0, None, reply.model)
            if is_plain(exchange, answer):
                found = to_response(exchange, answer, response.pairs)
            else:
                found = await self.response(exchange, answer, response.pairs)
            return FetchedAnswer(found, pending, reply, seconds)
        except BaseException as error:
            pending.abandon(error)
            raise

    async def _send(self, exchange: Exchange, upstream: str, send: Send) -> tuple[UpstreamResponse, bool]:
        """Send the request. Return the response, and whether usage was asked for.

        A server may refuse `stream_options` or marks that it does not know. The request is sent again without the
        marks, then without the option; an option that was refused is not sent to this upstream again, marks not with
        this model.
        """
        marker = exchange.marker
        marked = None
        if marker is not None:
            marked = await marker.mark()
            upstream = marker.upstream
        ask = self._ask_usage and exchange.lacks_usage and upstream not in self._refuse_options
        response = await send(await self._body(exchange, ask, marked))
        if marker is not None and marked is not None:
            if response.status in UNKNOWN_OPTION and marker.refusable:
                await response.close()
                response = await send(await self._body(exchange, ask, None))
                marker.answered(response.status, marked=False)
            else:
                marker.answered(response.status, marked=True)
        if ask and response.status in UNKNOWN_OPTION:
            await response.close()
            ask = False
            response = await send(await self._body(exchange, ask, None))
            if response.status == 200:
                self._refuse_options.add(upstream if marker is None else marker.upstream)
        return response, ask or exchange.include_usage

    async def _body(self, exchange: Exchange, ask_usage: bool, marked: Mapping[str, Any] | None) -> bytes:
        """Return the body for the provider."""
        if self._is_short(len(exchange.raw)):
            return exchange.upstream_body(ask_usage, marked)
        body: bytes = await self._run(len(exchange.raw), partial(exchange.upstream_body, ask_usage, marked))
        return body

    async def _fetch_items(self, exchange: Exchange, per_item: PerItem, send: Send) -> Fetched | None:
        size = len(exchange.raw)
        key = partial(self._cache.keyed_items, exchange.endpoint, exchange.body, **exchange.key_args)
        requests: list[KeyedRequest] | None = await self._run(size, key)
        if requests is None:
            return self._bypass(exchange)
        found = []
        for k, request in enumerate(requests):
            found.append(await self._lookup(exchange.endpoint, request, max_age=exchange.control.max_age))
            if self._pause is not None and k % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await self._pause()
        batch = EmbeddingBatch(exchange, per_item, found)
        if batch.complete:
            return Fetched(await self._run(batch.size, batch.response), batch.answers())
        if exchange.control.only_cached:
            return Fetched(not_cached())
        started = time.perf_counter()
        response = await send(await self._run(size, batch.upstream_body))
        try:
            content = await response.read()
            seconds = time.perf_counter() - started
            if response.status == 200:
                parts = await self._run(len(content), partial(batch.split, content))
                content = b""  # half of the memory that is in use now
                fallback = None if exchange.marker is None else exchange.marker.fallback
                async for _ in batch.settle(self._settle, response.headers, parts, seconds, fallback):
                    if self._pause is not None:
                        await self._pause()
                return Fetched(await self._run(batch.size, partial(batch.response, response.pairs)), batch.answers())
        except Incomplete:
            if batch.hits:  # the provider was asked for a part: its answer is no answer to the request
                return None
        finally:
            await response.close()
        headers = [*sandboxed(forwarded_headers(response.pairs)), *outcome_headers("miss")]
        return Fetched(CachedResponse(response.status, headers, content))


async def find_similar(exchange: Exchange, request: KeyedRequest, pending: PendingFetch) -> Answer | None:
    """Return the answer to a question in another wording, which ends the fetch; None: the fetch goes on."""
    assert exchange.finder is not None
    try:
        found = await exchange.finder.find(request)
    except BaseException as error:
        pending.abandon(error)
        raise
    return None if found is None else pending.reuse_similar(*found)


def is_plain(exchange: Exchange, answer: Answer) -> bool:
    """Return whether an answer is sent as it is stored."""
    return exchange.format.per_item is None and answer.meta.get("form") == "json" and not exchange.stream


def to_whole_response(exchange: Exchange, answer: Answer, upstream_headers: Pairs | None) -> CachedResponse:
    """Return `to_response` with all blocks of a stream made."""
    found = to_response(exchange, answer, upstream_headers)
    return found if isinstance(found.body, bytes) else found._replace(body=list(found.body))
