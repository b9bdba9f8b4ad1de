"""One request, from key to answer.

    find       the policy counts the request; if it says that the answer is there, the store is asked for it, and the
               request that lies beside it is compared with ours: a difference is a miss, never a wrong answer
    call       on a miss, under single flight                                                       flight.py
    settle     cost by the meter, room by the store, and the policy decides; then the store acts     books.py

Whatever happens to the store, requests are answered. Waiting for the network is the caller's: everything here is a
plain call, of microseconds but for the store's reads. `fetch` makes them itself. `fetch_async` never waits for a disk
on the event loop: what is at hand in memory it serves at once, and others read for it (reads.py). No lock that it takes
is ever held by somebody who waits for a disk; `check` alone holds everything up.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import orjson

from knapcache.cache.async_reads import AsyncReads
from knapcache.cache.coordinator import Keeper
from knapcache.cache.ledger import Ledger
from knapcache.cache.single_flight import CallResult, InFlightCall, SingleFlight
from knapcache.cache.values import NOTHING, Answer, Lookup, Reply
from knapcache.errors import InvalidInput, NotCached, StoreError
from knapcache.keys.request import KeyedRequest
from knapcache.price import Meter
from knapcache.price.meter import Bill
from knapcache.store.base import NOT_IN_MEMORY, Clock, Entry, NotInMemory


class FetchResult(NamedTuple):
    """What a flight brought, for all who waited for it."""

    payload: bytes
    meta: Mapping[str, Any]
    model: str
    bill: Bill
    created: float
    size: int
    """Room it takes; 0 where it may not be kept."""
    fresh: bool
    """Paid for by this flight. False: it was in the store by the time we looked again."""
    kept: bool


class FetchOptions(NamedTuple):
    """How a request wants to be served."""

    refresh: bool = False
    """Call in any case."""
    store: bool = True
    """Keep what comes."""
    only_cached: bool = False
    """Do not call."""
    max_age: float | None = None
    """Seconds; nothing older."""


DEFAULT_OPTIONS = FetchOptions()


class RequestEngine:
    """What all faces of the cache share."""

    def __init__(
        self, keeper: Keeper, meter: Meter, ledger: Ledger, ttl: float | None, wait: float, clock: Clock
    ) -> None:
        self.keeper, self.meter, self.ledger = keeper, meter, ledger
        self.reads = AsyncReads(keeper)
        self.single_flight: SingleFlight[FetchResult] = SingleFlight()
        self._ttl, self._wait, self._clock = ttl, wait, clock
        self._tasks: set[asyncio.Task[Answer]] = set()  # an event loop holds its tasks weakly
        _ENGINES.add(self)

    def forked(self) -> None:
        """In a child: no call of the parent's will ever land here."""
        self.single_flight = SingleFlight()
        self._tasks = set()
        self.reads.forked()
        self.ledger.forked()
        self.keeper.forked()

    # From the cache.

    def find(self, request: KeyedRequest, options: FetchOptions) -> Lookup:
        """Count the request, and look for its answer. The ledger is not told."""
        started, ended = time.perf_counter(), self.single_flight.ended
        hit, i = self._look(request, options)
        return Lookup(request.key.digest.hex(), hit, None, request, i, started, ended)

    async def find_async(self, request: KeyedRequest, options: FetchOptions) -> Lookup:
        """The same for coroutines."""
        started, ended = time.perf_counter(), self.single_flight.ended
        hit, i = await self._look_async(request, options)
        return Lookup(request.key.digest.hex(), hit, None, request, i, started, ended)

    def counted(self, found: Lookup) -> Lookup:
        """Tell the ledger of what was found, or was not."""
        request = found.request
        assert request is not None
        if found.hit is None:
            self.ledger.passed("misses", request.model, request.tenant)
        else:
            self.count_hit(found.hit, request)
        return found

    def _look(self, request: KeyedRequest, options: FetchOptions) -> tuple[Answer | None, int]:
        entry, i, serial = self._at_hand(request, options)
        if serial >= 0 and (entry is None or entry is NOT_IN_MEMORY):
            books = self.keeper.books
            digest = request.key.digest
            entry = self.keeper.store.get(digest) if books is None else books.get(digest, i, serial)
        return self._looked(entry, request, options, i), i

    async def _look_async(self, request: KeyedRequest, options: FetchOptions) -> tuple[Answer | None, int]:
        entry, i, serial = self._at_hand(request, options)
        if serial >= 0 and (entry is None or entry is NOT_IN_MEMORY):
            entry = await self.reads.get(request.key.digest, i, serial)
        return self._looked(entry, request, options, i), i

    def _at_hand(self, request: KeyedRequest, options: FetchOptions) -> tuple[Entry | NotInMemory | None, int, int]:
        """Count the request. What memory has; the id; the serial of what should be there, −1 where nothing should."""
        books = self.keeper.books
        # Without books another process decides; what it keeps is there to be read.
        i, serial = (-1, 0) if books is None else books.arrive(request.key.digest)
        if serial < 0 or options.refresh:
            return None, i, -1
        return self.keeper.store.get_nowait(request.key.digest), i, serial

    def _looked(
        self, entry: Entry | NotInMemory | None, request: KeyedRequest, options: FetchOptions, i: int
    ) -> Answer | None:
        if entry is None or isinstance(entry, NotInMemory) or not self._right(entry, request, options):
            return None
        books = self.keeper.books
        if books is not None:
            books.seen(request.key.digest, i, entry.size, entry.cost)
        elif self.keeper.report_hits:
            self.keeper.touch({entry.key: 1})
        return self._hit(entry, copied(entry.meta.get("meta", NOTHING)))

    def get_nowait(self, request: KeyedRequest) -> Answer | None:
        """A hit that is in memory, counted. Where there is none nothing is counted: the request is still to be made.

        Its meta is the kept one, no copy: whoever asks so often does not change it.
        """
        books, digest = self.keeper.books, request.key.digest
        if books is None:
            return None
        entry = self.keeper.store.get_nowait(digest)
        if entry is None or isinstance(entry, NotInMemory) or not self._right(entry, request, DEFAULT_OPTIONS):
            return None
        if not books.served(digest, entry.size, entry.cost):
            return None
        hit = self._hit(entry, entry.meta.get("meta", NOTHING))
        self.count_hit(hit, request)
        return hit

    def _right(self, entry: Entry, request: KeyedRequest, options: FetchOptions) -> bool:
        if entry.request != request.key.canonical or entry.tenant != request.tenant:
            self.ledger.count("collisions")
            return False
        return options.max_age is None or self._clock() - entry.created <= options.max_age

    # From upstream.

    def begin(self, request: KeyedRequest, options: FetchOptions) -> Answer | PendingFetch:
        """Return a stored answer or that of another caller's fetch, or a fetch that the caller must complete."""
        started, ended = time.perf_counter(), self.single_flight.ended
        found = self._begun(request, options, *self._look(request, options), started, ended)
        if isinstance(found, Answer):
            return found
        if not options.store:
            return PendingFetch(self, found, None)
        try:
            joined = self.single_flight.join(_flight_key(request, options), self._wait)
        except BaseException:
            self.ledger.passed("failed", request.model, request.tenant)
            raise
        if isinstance(joined, CallResult):
            return self.finish(found, joined.value, shared=True)
        pending = PendingFetch(self, found, joined)
        if joined is None or not self._may_be_there(found, options):
            return pending
        try:
            result = self._stored_result(self.keeper.store.get(request.key.digest), request, options)
        except BaseException as error:
            pending.abandon(error)
            raise
        return pending if result is None else pending.reuse(result)

    async def begin_async(self, request: KeyedRequest, options: FetchOptions) -> Answer | PendingFetch:
        """Do the same for coroutines. Cancelling it leaves nothing behind."""
        started, ended = time.perf_counter(), self.single_flight.ended
        found = self._begun(request, options, *await self._look_async(request, options), started, ended)
        if isinstance(found, Answer):
            return found
        if not options.store:
            return PendingFetch(self, found, None)
        try:
            joined = await self.single_flight.join_async(_flight_key(request, options), self._wait)
        except BaseException:
            self.ledger.passed("failed", request.model, request.tenant)
            raise
        if isinstance(joined, CallResult):
            return self.finish(found, joined.value, shared=True)
        pending = PendingFetch(self, found, joined, off_thread=True)
        if joined is None or not self._may_be_there(found, options):
            return pending
        try:
            result = self._stored_result(await self.reads.find(request.key.digest), request, options)
        except BaseException as error:
            pending.abandon(error)
            raise
        return pending if result is None else pending.reuse(result)

    def fetch(self, request: KeyedRequest, call: Callable[[], Reply], options: FetchOptions) -> Answer:
        """Return a stored answer, or what `call` returns, which is made once at a time for a key."""
        found = self.begin(request, options)
        if isinstance(found, Answer):
            return found
        try:
            with found.leading():
                reply, seconds = timed(call)
        except BaseException as error:
            found.abandon(error)
            raise
        return found.complete(reply, seconds)

    async def fetch_async(
        self, request: KeyedRequest, call: Callable[[], Awaitable[Reply]], options: FetchOptions
    ) -> Answer:
        """Do the same for coroutines. The leader's call is a task: it goes on if the caller is cancelled."""
        found = await self.begin_async(request, options)
        if isinstance(found, Answer):
            return found
        if not found.leads:
            return await self._call_async(found, call)
        task = asyncio.ensure_future(self._call_async(found, call))

        def done(task: asyncio.Task[Answer]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved: the caller may be gone
            found.abandon()  # if it was cancelled before it began

        self._tasks.add(task)
        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _call_async(self, found: PendingFetch, call: Callable[[], Awaitable[Reply]]) -> Answer:
        try:
            with found.leading():
                reply, seconds = await timed_async(call)
        except BaseException as error:
            found.abandon(error)
            raise
        return found.complete(reply, seconds)

    async def drain(self) -> None:
        """Wait for the calls that run in this event loop."""
        loop = asyncio.get_running_loop()
        while tasks := [task for task in self._tasks if task.get_loop() is loop]:
            await asyncio.wait(tasks)

    def in_flight(self, request: KeyedRequest, options: FetchOptions) -> bool:
        """Return whether a fetch of this request is in flight."""
        return _flight_key(request, options) in self.single_flight

    def _begun(
        self, request: KeyedRequest, options: FetchOptions, hit: Answer | None, i: int, started: float, ended: int
    ) -> Answer | Lookup:
        if hit is not None:
            self.count_hit(hit, request)
            return hit
        if options.only_cached:
            self.ledger.passed("misses", request.model, request.tenant)
            raise NotCached("only a kept answer was asked for, and there is none")
        return Lookup(request.key.digest.hex(), None, None, request, i, started, ended)

    def _may_be_there(self, found: Lookup, options: FetchOptions) -> bool:
        """Somebody may have brought the answer between our look and our turn to lead."""
        return self.single_flight.ended != found.ended and not options.refresh

    def _stored_result(self, entry: Entry | None, request: KeyedRequest, options: FetchOptions) -> FetchResult | None:
        return _stored_result(entry) if entry is not None and self._right(entry, request, options) else None

    def finish(self, found: Lookup, result: FetchResult, *, shared: bool) -> Answer:
        """Count how the request was served, and return its answer."""
        request = found.request
        assert request
        if not shared and result.fresh:
            self.ledger.passed("misses", result.model, request.tenant)
            return self._answer(result, request, "miss")
        self.ledger.served("coalesced", result.model, request.tenant, result.bill, len(result.payload))
        books = self.keeper.books
        if books is not None and result.size:
            books.seen(request.key.digest, found.id, result.size, result.bill.cost)
        return self._answer(result, request, "coalesced")

    def count_hit(self, hit: Answer, request: KeyedRequest) -> None:
        """Tell the ledger of a hit."""
        self.ledger.served("hit", hit.model, request.tenant, hit.bill, len(hit.payload))

    # Answers that were paid for.

    def bill(self, request: KeyedRequest, reply: Reply, seconds: float) -> Bill:
        """What a reply cost."""
        if not isinstance(reply, Reply):
            raise InvalidInput(f"a call must bring a Reply, not a {type(reply).__name__}")
        seconds = seconds if reply.seconds is None else reply.seconds
        if reply.cost is not None:
            weights = self.meter.weights
            dollars = weights.usd == 1.0 and weights.seconds == 0.0
            return Bill(reply.cost if dollars else None, seconds, reply.cost, "reply")
        if request.endpoint is None:
            return self.meter.time(seconds)
        model = reply.model or request.model
        return self.meter.bill(request.endpoint, model, reply.usage, seconds, service_tier=reply.tier)

    def complete(
        self, found: Lookup, reply: Reply, seconds: float, *, store: bool = True, off_thread: bool = False
    ) -> FetchResult:
        """A call has brought a reply: count what it cost, and let the policy decide. aside: never wait for a disk."""
        request = found.request
        assert request
        bill = self.bill(request, reply, seconds)
        model = reply.model or request.model
        self.ledger.paid(model, request.tenant, bill)
        entry = self._entry(request, reply, bill, model) if store and reply.cacheable else None
        kept = entry is not None and self.keeper.settle(found.id, entry, off_thread)
        if kept:
            self.ledger.kept(model, request.tenant)
        size = entry.size if entry else 0
        return FetchResult(reply.payload, reply.meta, model, bill, self._clock(), size, fresh=True, kept=kept)

    def settle(self, found: Lookup, reply: Reply) -> bool:
        """The same for a caller who has made the call on its own. Is it kept?"""
        return self.complete(found, reply, time.perf_counter() - found.started).kept

    def settle_answer(self, found: Lookup, reply: Reply) -> Answer:
        """The same, with all that is known of it."""
        assert found.request is not None
        return self._answer(self.complete(found, reply, time.perf_counter() - found.started), found.request, "miss")

    def _entry(self, request: KeyedRequest, reply: Reply, bill: Bill, model: str) -> Entry | None:
        """As the store has it, its room counted; None for what no store can hold."""
        now = self._clock()
        ttl = self._ttl if reply.ttl is None else reply.ttl
        kept: dict[str, Any] = {} if bill.usd is None else {"usd": bill.usd}
        if reply.meta:
            kept["meta"] = dict(reply.meta)
        entry = Entry(
            request.key.digest, request.tenant, model, 0, bill.cost, bill.seconds, now,
            None if ttl is None else now + ttl, kept, request.key.canonical, reply.payload,
        )  # fmt: skip
        try:
            return entry._replace(size=self.keeper.store.entry_size(entry))
        except (InvalidInput, StoreError):  # a name with half a character in it
            self.ledger.count("unstorable")
            return None

    def _answer(self, result: FetchResult, request: KeyedRequest, outcome: Any) -> Answer:
        age = max(0.0, self._clock() - result.created) if outcome != "miss" else 0.0
        saved = None if outcome == "miss" else result.bill.usd
        return Answer(
            result.payload, copied(result.meta), outcome, request.key.digest.hex(), age, saved, result.model, result.bill,
            result.size,
        )  # fmt: skip

    def _hit(self, entry: Entry, meta: Mapping[str, Any]) -> Answer:
        """The same for what lies in the store: what is served most goes the shortest way."""
        key, _, model, size, cost, seconds, created, _, kept, _, payload = entry
        usd = kept.get("usd")
        age = max(0.0, self._clock() - created)
        return Answer(payload, meta, "hit", key.hex(), age, usd, model, Bill(usd, seconds, cost, "kept"), size)


class PendingFetch:
    """A miss that the caller must fetch, and then complete or abandon. Waiters are held until then."""

    __slots__ = ("_call", "_done", "_engine", "_lookup", "_off_thread")

    def __init__(
        self, engine: RequestEngine, lookup: Lookup, call: InFlightCall | None, *, off_thread: bool = False
    ) -> None:
        self._engine, self._lookup, self._call, self._off_thread = engine, lookup, call, off_thread
        self._done = False

    @property
    def key(self) -> str:
        """The key's digest in hex."""
        return self._lookup.key

    @property
    def leads(self) -> bool:
        """Whether others may be waiting. False: the caller fetches alone, and the answer is not stored."""
        return self._call is not None

    def leading(self) -> AbstractContextManager[None]:
        """Mark the code that runs inside as part of this fetch: it never waits for its own key."""
        return nullcontext() if self._call is None else self._engine.single_flight.leading(self._call)

    def complete(self, reply: Reply, seconds: float) -> Answer:
        """Count what the reply cost, let the policy decide, and release the waiters. `seconds`: how long it took."""
        try:
            result = self._engine.complete(
                self._lookup, reply, seconds, store=self._call is not None, off_thread=self._off_thread
            )
        except BaseException as error:
            self.abandon(error)
            raise
        self._done = True
        if self._call is not None:
            self._engine.single_flight.complete(self._call, result)
        return self._engine.finish(self._lookup, result, shared=False)

    def reuse(self, result: FetchResult) -> Answer:
        """Release the waiters with an answer that was stored after the lookup."""
        self._done = True
        if self._call is not None:
            self._engine.single_flight.complete(self._call, result)
        return self._engine.finish(self._lookup, result, shared=False)

    def abandon(self, error: BaseException | None = None) -> None:
        """Release the waiters without an answer. Does nothing after `complete`."""
        if self._done:
            return
        self._done = True
        request = self._lookup.request
        assert request is not None
        self._engine.ledger.passed("failed", request.model, request.tenant)
        if self._call is not None:
            self._engine.single_flight.fail(self._call, error)


_ENGINES: weakref.WeakSet[RequestEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.forked()


os.register_at_fork(after_in_child=_after_fork)


def copied(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy: what one caller does to its answer is nothing to the next."""
    return orjson.loads(orjson.dumps(dict(meta))) if meta else NOTHING


def _stored_result(entry: Entry) -> FetchResult:
    bill = Bill(entry.meta.get("usd"), entry.seconds, entry.cost, "kept")
    meta = entry.meta.get("meta", NOTHING)
    return FetchResult(entry.payload, meta, entry.model, bill, entry.created, entry.size, fresh=False, kept=True)


def _flight_key(request: KeyedRequest, options: FetchOptions) -> tuple[bytes, bool]:
    """Tenants are part of the digest. Who wants it fresh does not join a call that began before."""
    return request.key.digest, options.refresh


def timed(call: Callable[[], Reply]) -> tuple[Reply, float]:
    """A call, and how long it took."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start


async def timed_async(call: Callable[[], Awaitable[Reply]]) -> tuple[Reply, float]:
    """The same for coroutines."""
    start = time.perf_counter()
    return await call(), time.perf_counter() - start
