"""A miss between lookup and answer: the caller makes the call, and completes or abandons the fetch."""

from __future__ import annotations

import time
from typing import Any, Self

from knapcache.cache.replies import FetchResult, ReplyProcessor, stored_result
from knapcache.cache.single_flight import InFlightCall, Leading, SingleFlight
from knapcache.cache.values import Answer, Lookup, Reply, SimilarMatch
from knapcache.store.base import Entry, Lease


class PendingFetch:
    """A miss that the caller must fetch, and then complete or abandon. Waiters are held until then.

    As a context manager it starts the clock, marks the code inside as part of the call, and abandons it on an
    exception.
    """

    __slots__ = (
        "_blocking", "_call", "_done", "_ended", "_leading", "_lookup", "_replies", "_single_flight", "_started",
        "lease",
    )  # fmt: skip

    def __init__(
        self,
        replies: ReplyProcessor,
        single_flight: SingleFlight[FetchResult],
        lookup: Lookup,
        call: InFlightCall | None,
        *,
        blocking: bool,
    ) -> None:
        self._replies, self._single_flight = replies, single_flight
        self._lookup, self._call, self._blocking = lookup, call, blocking
        self._started = lookup.started
        self._done = False
        self._ended: float | None = None
        self.lease: Lease | None = None
        """The lease on the key, in a store that has leases."""

    @property
    def key(self) -> str:
        """The key's digest in hex."""
        return self._lookup.key

    @property
    def leads(self) -> bool:
        """Whether others may be waiting. False: the caller fetches alone, and the answer is not stored."""
        return self._call is not None

    def leading(self) -> Leading:
        """Mark the code that runs inside as part of this fetch: it never waits for its own key."""
        return Leading(self._call)

    def __enter__(self) -> Self:
        self._leading = Leading(self._call)
        self._leading.__enter__()
        self._started = time.perf_counter()
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if error is not None:
            self.abandon(error)
        self._leading.__exit__()

    def note_end(self) -> None:
        """Note that the call has ended: a caller may have its answer before `complete`."""
        self._ended = self._replies.now()

    @property
    def store_busy(self) -> bool:
        """Whether `wait_for_store` may wait."""
        return self._call is not None and self._replies.store_busy

    async def wait_for_store(self) -> None:
        """Wait until the store can take the reply, at most some seconds. For coroutines, which then call `complete`."""
        if self._call is not None and not self._blocking:
            await self._replies.wait_for_store()

    def complete(self, reply: Reply, seconds: float | None = None) -> Answer:
        """Count what the reply cost, let the policy decide, and release the waiters. `seconds`: how long it took."""
        if seconds is None:
            seconds = time.perf_counter() - self._started
        try:
            lookup, lease, ended = self._lookup, self.lease, self._ended
            result = self._replies.complete(
                lookup, reply, seconds, store=self.leads, blocking=self._blocking, lease=lease, ended=ended
            )
        except BaseException as error:
            self.abandon(error)
            raise
        self.lease = None
        return self.reuse(result)

    def reuse(self, result: FetchResult) -> Answer:
        """Release the waiters with a result, and return it as the answer of this fetch."""
        self.release(result)
        return self._replies.finish(self._lookup, result, shared=False)

    def reuse_similar(self, entry: Entry, match: SimilarMatch) -> Answer:
        """Release the waiters with the answer of the entry of a similar question, and return it."""
        if self.lease is not None:  # other machines look for a similar question themselves
            self._replies.end(self.lease, blocking=self._blocking)
            self.lease = None
        return self.reuse(stored_result(entry)._replace(similar=match))

    def release(self, result: FetchResult) -> None:
        """Release the waiters with a result."""
        self._done = True
        if self._call is not None:
            self._single_flight.complete(self._call, result)

    def abandon(self, error: BaseException | None = None) -> None:
        """Release the waiters without an answer. Does nothing after `complete`."""
        if self._done:
            return
        self._done = True
        self._replies.fail(self._lookup)
        if self.lease is not None:
            self._replies.end(self.lease, blocking=self._blocking)
        if self._call is not None:
            self._single_flight.fail(self._call, error)
