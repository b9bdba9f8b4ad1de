"""Responses to exchanges: what is written to the caller, and what remains to be done afterwards."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from knapcache.cache import Answer, PendingFetch, Reply
from knapcache.exchange.exchange import CachedResponse
from knapcache.exchange.headers import Pairs, forwarded_headers, outcome_headers
from knapcache.exchange.stream_tee import StreamTee


class UpstreamResponse(Protocol):
    """A response whose body is still to be read."""

    status: int
    headers: dict[str, str]
    """By lower-case names."""
    pairs: Pairs
    """The same, as they came."""

    async def read(self) -> bytes:
        """Return the whole body."""

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""

    async def close(self) -> None:
        """Release the connection. May be called more than once."""


class Fetched:
    """A response. Write its body, then call `finish`; call `abort` if writing raises an exception."""

    def __init__(self, response: CachedResponse, answers: tuple[Answer, ...] = ()) -> None:
        self.status, self.headers = response.status, response.headers
        self.body = response.body
        """Bytes, or an iterable of blocks that are all in memory. Empty for a live stream."""
        self.answers = answers
        """One for each item of the request. Empty before `finish` if the answer was fetched, and after a failure."""

    @property
    def failed(self) -> bool:
        """Whether the provider's answer is an error. Known after `finish`."""
        return self.status != 200

    async def finish(self) -> tuple[Answer, ...]:
        """Store an answer that was fetched, release its waiters, and return `answers`.

        A stream that was not read to its end is read, or aborted if the fetcher has finish_abandoned=False.
        """
        return self.answers

    async def drain(self) -> tuple[Answer, ...]:
        """Read the rest of the body, and finish."""
        return await self.finish()

    async def abort(self) -> None:
        """End the fetch at once, and release the waiters."""


class FetchedAnswer(Fetched):
    """A plain answer that was paid for and is not stored yet."""

    def __init__(self, response: CachedResponse, pending: PendingFetch, reply: Reply, seconds: float) -> None:
        super().__init__(response)
        self._pending, self._reply, self._seconds = pending, reply, seconds

    async def finish(self) -> tuple[Answer, ...]:
        if not self.answers:
            await self._pending.wait_for_store()
            self.answers = (self._pending.complete(self._reply, self._seconds),)
        return self.answers

    async def abort(self) -> None:
        await self.finish()  # it was paid for


class LiveStream(Fetched):
    """A stream that the provider is still sending: `blocks` instead of a body.

    A stream that is longer than the tee's limit is forwarded, and not stored. Its waiters are released, and it is
    aborted when its caller leaves.
    """

    def __init__(
        self,
        response: UpstreamResponse,
        tee: StreamTee,
        pending: PendingFetch,
        started: float,
        *,
        finish_abandoned: bool,
        run: Callable[[int, Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        super().__init__(CachedResponse(200, [*forwarded_headers(response.pairs), *outcome_headers("miss")], b""))
        self.blocks = self._read()
        """Blocks that arrive together are yielded together. The last ones are yielded after the answer is stored."""
        self._response, self._tee, self._pending, self._started = response, tee, pending, started
        self._finish_abandoned, self._reading, self._run = finish_abandoned, True, run

    @property
    def overflowed(self) -> bool:
        """Whether the stream is too long to be stored."""
        return self._tee.overflowed

    @property
    def failed(self) -> bool:
        return not self.answers or "status" in self.answers[0].meta

    async def _read(self) -> AsyncGenerator[bytes, None]:
        tee = self._tee
        try:
            async for data in self._response.iter_bytes():
                if blocks := tee.feed(data):
                    yield blocks[0] if len(blocks) == 1 else b"".join(blocks)
                if tee.ended:
                    break
                if tee.overflowed:
                    self._pending.abandon()
                    if not self._reading:
                        return
            for block in tee.close():
                yield block
            if tee.overflowed:
                self._pending.abandon()
                return
            reply = await self._run(tee.size, tee.reply)
        except BaseException as error:
            self._pending.abandon(error)
            raise
        finally:
            await self._response.close()
        seconds = time.perf_counter() - self._started
        tail = tee.tail
        if self._pending.store_busy:  # the caller gets the whole stream before the store is waited for
            for block in tail:
                yield block
            tail = []
            await self._pending.wait_for_store()
        self.answers = (self._pending.complete(reply, seconds),)
        for block in tail:
            yield block

    async def finish(self) -> tuple[Answer, ...]:
        if self._finish_abandoned or self.answers:
            return await self.drain()
        await self.abort()
        return ()

    async def drain(self) -> tuple[Answer, ...]:
        self._reading = False
        async for _ in self.blocks:
            pass
        return self.answers

    async def abort(self) -> None:
        await self.blocks.aclose()
        self._pending.abandon()  # if no block was read, the generator has not begun and cannot do it
        await self._response.close()
