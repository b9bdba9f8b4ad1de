"""An exchange answered through the cache, on asyncio: what the async transport and the proxy do alike.

    plain     a call under the cache's single flight, or the kept answer
    streamed  the asker hears it while it comes                                                   relay.py
              listens: the fetch runs in the asker's task, and tells a `Listener`
              pulls:   the fetch runs in a task of its own, and the asker gets what it brings as an iterator
    several   embeddings of several texts: what is missing is fetched                             batch.py

How to send is the caller's: a `Sender` takes a body and brings a `Received`. An answer that has not what is asked for
(a stream without usage, and usage is wanted) is fetched anew, once; where that does not help either, and for requests
without a key, the answer is None: send it as if there were no cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from knapcache.cache import Answer, Cache, Reply
from knapcache.errors import Incomplete, NotCached
from knapcache.exchange.embedding_batch import Batch, batch_of_async
from knapcache.exchange.exchange import CachedResponse, Exchange, given, is_stream, not_cached, passing, plain_reply
from knapcache.exchange.stream_tee import Heard, Opened, StreamTee

REFUSALS = (400, 422)
"""What servers say that do not know `stream_options`."""
PATIENCE = 5.0
"""Seconds that closing waits for streams which are still being read, though nobody listens any more."""


class Received(Protocol):
    """A response whose body is still to be read."""

    status: int
    headers: dict[str, str]
    """By lower-case names."""
    pairs: list[tuple[str, str]]
    """The same as they came."""

    async def read(self) -> bytes:
        """All of the body."""

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it comes."""

    async def close(self) -> None:
        """Let go of it, read or not."""


Sender = Callable[[bytes], Awaitable[Received]]
Early = Callable[[CachedResponse], Awaitable[None]]
S = TypeVar("S")


class Listener(Protocol):
    """Whoever hears a stream while it comes. Is told and never waited for: the others who want the answer are not kept
    waiting by one who is slow.
    """

    def begin(self, relay: StreamTee) -> None:
        """A fetch begins; `relay.left` is to be set when nobody listens any more."""

    def hear(self, heard: Heard) -> None:
        """Opened, then blocks; the last of them are in `relay.held`, to be said when the answer was kept."""


class StreamDelivered(NamedTuple):
    """A listener has heard an answer, all but its end."""

    answer: Answer
    relay: StreamTee


class StreamOpen(NamedTuple):
    """An answer that is still coming."""

    headers: list[tuple[str, str]]
    blocks: AsyncIterator[bytes]
    relay: StreamTee
    fetch: asyncio.Task[Answer]
    """Goes on when the asker leaves."""


class Fetcher:
    """Answers exchanges.

    ask_usage   ask for the usage of streams that come without, so that their price is known; the asker does not see it
    finish      read a stream to its end, and keep it, when the asker leaves in the middle
    steady      whoever calls `answer` is a task that nobody cancels
    """

    def __init__(self, cache: Cache, *, ask_usage: bool = True, finish: bool = True, shielded: bool = False) -> None:
        self._cache, self._ask_usage, self._finish, self._shielded = cache, ask_usage, finish, shielded
        self._plain_places: set[str] = set()  # they refused stream_options
        self._tasks: set[asyncio.Task[Answer]] = set()  # an event loop holds its tasks weakly

    async def answer(self, exchange: Exchange, place: str, send: Sender) -> CachedResponse | StreamOpen | None:
        """What the asker gets. place: whom `send` sends to, by name."""
        return await self._answer(exchange, send, None, lambda: self._streamed(exchange, place, send))

    async def tell(
        self, exchange: Exchange, place: str, send: Sender, listener: Listener, early: Early | None = None
    ) -> CachedResponse | StreamDelivered | None:
        """The same for one who listens.

        early: is given a whole plain answer that was paid for, before it is weighed and kept, which takes as long again
        as the rest of what we do. Nothing is waited for in between: who then asks again finds it kept.
        """
        return await self._answer(exchange, send, early, lambda: self._listened(exchange, place, send, listener))

    async def _answer(
        self,
        exchange: Exchange,
        send: Sender,
        early: Early | None,
        streamed: Callable[[], Awaitable[CachedResponse | S | None]],
    ) -> CachedResponse | S | None:
        batch = await batch_of_async(self._cache, exchange)
        if exchange.bypass or (batch and batch.bypass):
            if batch is None:
                self._cache.lookup(exchange.endpoint, exchange.raw, **exchange.whose)
            return not_cached() if exchange.control.only_cached else None
        try:
            if batch:
                return await self._several(exchange, batch, send)
            if exchange.stream:
                return await streamed()
            return await self._plain(exchange, send, early)
        except NotCached:
            return not_cached()

    async def _plain(self, exchange: Exchange, send: Sender, early: Early | None) -> CachedResponse | None:
        headers: list[tuple[str, str]] | None = None
        question = self._cache.keyed_request(exchange.endpoint, exchange.body, **exchange.whose)

        async def call() -> Reply:
            nonlocal headers
            response = await send(exchange.sent(False))
            try:
                content = await response.read()
            finally:
                await response.close()
            headers = response.pairs
            reply = plain_reply(exchange, response.status, response.headers, content)
            if early is not None and question is not None and reply.cacheable:
                key = question.key.digest.hex()
                await early(given(exchange, Answer(reply.payload, reply.meta, "miss", key, 0.0, None, ""), headers))
            return reply

        asked = question or exchange.body
        for refresh in (exchange.control.refresh, True):
            answer = await self._cache.fetch_async(
                exchange.endpoint, asked, call, shielded=self._shielded, **exchange.wishes(refresh)
            )
            try:
                return given(exchange, answer, headers)
            except Incomplete:
                continue
        return None

    async def _listened(
        self, exchange: Exchange, place: str, send: Sender, listener: Listener
    ) -> CachedResponse | StreamDelivered | None:
        for refresh in (exchange.control.refresh, True):
            relay = StreamTee(exchange, self._finish, listener.hear)
            listener.begin(relay)
            answer = await self._fetch(exchange, place, send, relay, refresh)
            if relay.open:
                return StreamDelivered(answer, relay)
            try:
                return given(exchange, answer, relay.answered)
            except Incomplete:
                continue
        return None

    async def _streamed(self, exchange: Exchange, place: str, send: Sender) -> CachedResponse | StreamOpen | None:
        for refresh in (exchange.control.refresh, True):
            heard: asyncio.Queue[Heard] = asyncio.Queue()
            relay = StreamTee(exchange, self._finish, heard.put_nowait)
            task = asyncio.create_task(self._told(exchange, place, send, relay, refresh))
            self._tasks.add(task)
            task.add_done_callback(self._over)
            try:
                first = await heard.get()
            except asyncio.CancelledError:
                relay.left = True
                raise
            if isinstance(first, Opened):
                said = [*passing(first.headers), *miss_said()]
                return StreamOpen(said, blocks_of(heard, relay), relay, task)
            if isinstance(first, BaseException):
                raise first
            assert isinstance(first, Answer)
            try:
                return given(exchange, first, relay.answered)
            except Incomplete:
                continue
        return None

    def _over(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the asker has heard of it, or has left

    async def _told(self, exchange: Exchange, place: str, send: Sender, relay: StreamTee, refresh: bool) -> Answer:
        """In a task of its own: whatever happens, the asker hears of it."""
        try:
            answer = await self._fetch(exchange, place, send, relay, refresh)
        except BaseException as error:
            relay.put(error)
            raise
        relay.put(answer)
        return answer

    async def _fetch(self, exchange: Exchange, place: str, send: Sender, relay: StreamTee, refresh: bool) -> Answer:
        async def call() -> Reply:
            return await self._stream_call(exchange, place, send, relay)

        return await self._cache.fetch_async(
            exchange.endpoint, exchange.body, call, shielded=True, **exchange.wishes(refresh)
        )

    async def _stream_call(self, exchange: Exchange, place: str, send: Sender, relay: StreamTee) -> Reply:
        asking = self._ask_usage and exchange.usage_apart and place not in self._plain_places
        response = await send(exchange.sent(asking))
        if asking and response.status in REFUSALS:
            await response.close()
            asking = False
            response = await send(exchange.sent(False))
            if response.status == 200:  # it takes the request without `stream_options`, and not with them
                self._plain_places.add(place)
        try:
            if not is_stream(response.status, response.headers):
                relay.answered = response.pairs
                return plain_reply(exchange, response.status, response.headers, await response.read())
            relay.opened(response.headers, response.pairs, asking or exchange.usage)
            async for piece in response.iter_bytes():
                if relay.fed(piece):
                    break
            return relay.reply()
        finally:
            await response.close()

    async def _several(self, exchange: Exchange, batch: Batch, send: Sender) -> CachedResponse | None:
        if batch.complete:
            return batch.given()
        if exchange.control.only_cached:
            raise NotCached
        response = await send(batch.sent())
        try:
            content = await response.read()
            if response.status == 200:
                batch.settle(response.headers, content)
                return batch.given(response.pairs)
        except Incomplete:
            if batch.hits:  # half an answer helps nobody: as if there were no cache
                return None
        finally:
            await response.close()
        return CachedResponse(response.status, [*passing(response.pairs), *miss_said()], content)

    async def settled(self, patience: float = PATIENCE) -> None:
        """Wait for streams that are still being read, though nobody may listen any more."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)


async def blocks_of(heard: asyncio.Queue[Heard], relay: StreamTee) -> AsyncIterator[bytes]:
    """What is heard, to the end of the answer."""
    while isinstance(block := await heard.get(), bytes):
        yield block
    for held in relay.held:
        yield held
    if isinstance(block, BaseException):
        raise block


def miss_said() -> list[tuple[str, str]]:
    """What is said of an answer that was fetched."""
    return [("x-knapcache", "miss"), ("cache-status", "knapcache; fwd=miss")]
