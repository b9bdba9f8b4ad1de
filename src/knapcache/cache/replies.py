"""From a miss to an answer: the pending fetch, which the caller completes with a reply or abandons; what a reply cost,
how large its entry is, and whether the policy admits it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import orjson

from knapcache.cache.coordinator import Coordinator
from knapcache.cache.ledger import Ledger
from knapcache.cache.single_flight import InFlightCall, Leading, SingleFlight
from knapcache.cache.values import EMPTY, Answer, Lookup, Reply, SimilarMatch
from knapcache.errors import InvalidInput, StoreError
from knapcache.keys.request import KeyedRequest
from knapcache.price import Meter
from knapcache.price.input_tokens import input_tokens
from knapcache.price.meter import Bill, token_count
from knapcache.store.base import Clock, Entry, Lease


class FetchResult(NamedTuple):
    """The result of a call, for its leader and all waiters."""

    payload: bytes
    meta: Mapping[str, Any]
    model: str
    bill: Bill
    created: float
    size: int
    """Bytes of its entry; 0: it may not be stored."""
    fresh: bool
    """The call was made. False: the answer was stored after the leader's lookup."""
    admitted: bool
    similar: SimilarMatch | None = None
    """The entry of another question whose answer this is. No call was made."""


class ReplyProcessor:
    """Turns replies into answers, and counts both in the ledger."""

    def __init__(self, coordinator: Coordinator, meter: Meter, ledger: Ledger, ttl: float | None, clock: Clock) -> None:
        self._coordinator, self._meter, self._ledger = coordinator, meter, ledger
        self._ttl, self._clock = ttl, clock

    def complete(
        self,
        lookup: Lookup,
        reply: Reply,
        seconds: float,
        *,
        store: bool = True,
        blocking: bool = True,
        lease: Lease | None = None,
        ended: float | None = None,
    ) -> FetchResult:
        """Count what a reply cost, let the policy decide about it, and end the lease of its call.

        ended: Unix time at which the call ended; None: now.
        """
        request = lookup.request
        assert request
        bill, model = self._bill(request, reply, seconds), reply.model or request.model
        created = self._clock() if ended is None else ended
        entry, admitted = None, False
        try:
            if store and reply.cacheable:
                entry = self._entry(request, reply, bill, model, created)
            if entry is not None:
                admitted = self._coordinator.role.settle(lookup.id, entry, blocking=blocking, lease=lease)
            elif lease is not None:
                self.end(lease, blocking=blocking)
        finally:  # it was paid for, whatever happens
            self._ledger.add_spent(model, request.tenant, bill, admitted=admitted)
        size = 0 if entry is None else entry.size
        return FetchResult(reply.payload, reply.meta, model, bill, created, size, fresh=True, admitted=admitted)

    def finish(self, lookup: Lookup, result: FetchResult, *, shared: bool) -> Answer:
        """Count how a request was served, and return its answer. `shared`: another request made the call."""
        request = lookup.request
        assert request
        if lookup.bypass is not None:
            self._ledger.add_request("bypasses", result.model, request.tenant)
            return self._answer(result, request, "bypass")
        if not shared and result.fresh:
            self._ledger.add_request("misses", result.model, request.tenant)
            return self._answer(result, request, "miss")
        if result.similar is not None:
            self._ledger.add_reused("similar", result.model, request.tenant, result.bill, len(result.payload))
            # The policy counts a request for the entry that answered: it is worth keeping for both questions.
            self._coordinator.role.count_memory_hit(result.similar.key, result.size, result.bill.cost)
            return self._answer(result, request, "similar")
        self._ledger.add_reused("coalesced", result.model, request.tenant, result.bill, len(result.payload))
        if result.size:
            self._coordinator.role.count_coalesced(request.key.digest, lookup.id, result.size, result.bill.cost)
        return self._answer(result, request, "coalesced")

    def fail(self, lookup: Lookup) -> None:
        """Count a request whose call failed."""
        assert lookup.request is not None
        self._ledger.add_request("failed", lookup.request.model, lookup.request.tenant)

    def end(self, lease: Lease, *, blocking: bool) -> None:
        """End the lease of a call that has no answer to store."""
        self._coordinator.role.end(lease, blocking=blocking)

    def now(self) -> float:
        """Return the Unix time."""
        return self._clock()

    @property
    def store_busy(self) -> bool:
        """Whether `wait_for_store` may wait."""
        return self._coordinator.store.write_backlog_full

    async def wait_for_store(self) -> None:
        """Wait until the store can take an answer, at most some seconds."""
        await self._coordinator.role.wait_for_store()

    def settle(self, lookup: Lookup, reply: Reply, *, blocking: bool = True) -> bool:
        """Complete a lookup, whose miss is counted already. Return whether the answer is admitted."""
        return self.complete(lookup, reply, time.perf_counter() - lookup.started, blocking=blocking).admitted

    def settle_answers(self, calls: Sequence[tuple[Lookup, Reply]], *, blocking: bool) -> list[Answer]:
        """Complete lookups of different keys, whose misses are counted already. Return the answers."""
        now, created = time.perf_counter(), self._clock()
        paid: list[tuple[KeyedRequest, Reply, Bill, str]] = []
        entries: dict[bytes, tuple[int, Entry]] = {}
        admitted: dict[bytes, bool] = {}
        try:
            for lookup, reply in calls:
                request = lookup.request
                assert request
                bill, model = self._bill(request, reply, now - lookup.started), reply.model or request.model
                paid.append((request, reply, bill, model))
                entry = self._entry(request, reply, bill, model, created) if reply.cacheable else None
                if entry is not None:
                    entries[entry.key] = lookup.id, entry
            settled = self._coordinator.role.settle_many(list(entries.values()), blocking=blocking)
            admitted = dict(zip(entries, settled, strict=True))
        finally:
            for request, _, bill, model in paid:
                self._ledger.add_spent(model, request.tenant, bill, admitted=admitted.get(request.key.digest, False))
        answers = []
        for request, reply, bill, model in paid:
            key = request.key.digest
            size = entries[key][1].size if key in entries else 0
            result = FetchResult(
                reply.payload, reply.meta, model, bill, created, size, fresh=True, admitted=admitted.get(key, False)
            )
            answers.append(self._answer(result, request, "miss"))
        return answers

    def _bill(self, request: KeyedRequest, reply: Reply, seconds: float) -> Bill:
        if not isinstance(reply, Reply):
            raise InvalidInput(f"a call must return a Reply, not a {type(reply).__name__}")
        seconds = seconds if reply.seconds is None else reply.seconds
        if reply.cost is not None:
            weights = self._meter.weights
            in_dollars = weights.usd == 1.0 and weights.seconds == 0.0
            usage = reply.usage or {}
            sent = input_tokens(request.endpoint, usage) if request.endpoint is not None else None
            usd = reply.cost if in_dollars else None
            return Bill(usd, seconds, reply.cost, "reply", token_count(usage), sent)
        if request.endpoint is None:
            return self._meter.bill_seconds(seconds)
        model = reply.model or request.model
        return self._meter.bill(request.endpoint, model, reply.usage, seconds, service_tier=reply.tier)

    def _entry(self, request: KeyedRequest, reply: Reply, bill: Bill, model: str, created: float) -> Entry | None:
        """Return the entry of a reply, or None if no store can hold it."""
        ttl = self._ttl if reply.ttl is None else reply.ttl
        stored: dict[str, Any] = {} if bill.usd is None else {"usd": bill.usd}
        if bill.tokens:
            stored["tokens"] = bill.tokens
        if reply.tags:
            stored["tags"] = list(reply.tags)
        if system := request.system:
            stored["system"] = system
        if reply.meta:
            stored["meta"] = dict(reply.meta)
        entry = Entry(
            key=request.key.digest,
            tenant=request.tenant,
            model=model,
            size=0,
            cost=bill.cost,
            seconds=bill.seconds,
            created=created,
            expires=None if ttl is None else created + ttl,
            meta=stored,
            request=request.key.canonical,
            # A copy: what orjson returns keeps its buffer, 8 kB for an answer of 900 bytes.
            payload=bytes(memoryview(reply.payload)),
        )
        try:
            return entry._replace(size=self._coordinator.store.entry_size(entry))
        except (InvalidInput, StoreError):  # a lone surrogate in a name
            self._ledger.count("rejected_unstorable")
            return None

    def _answer(
        self, result: FetchResult, request: KeyedRequest, outcome: Literal["miss", "coalesced", "bypass", "similar"]
    ) -> Answer:
        shared = outcome in ("coalesced", "similar")
        return Answer(
            payload=result.payload,
            meta=copy_meta(result.meta),
            outcome=outcome,
            key=request.key.digest.hex(),
            age=max(0.0, self._clock() - result.created) if shared else 0.0,
            saved_usd=result.bill.usd if shared else None,
            model=result.model,
            bill=result.bill,
            size=result.size,
            similar=result.similar,
        )


def copy_meta(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a deep copy, so that callers cannot change each other's answers."""
    return orjson.loads(orjson.dumps(dict(meta))) if meta else EMPTY


def stored_result(entry: Entry) -> FetchResult:
    """Return a stored entry as the result of a call."""
    return FetchResult(
        payload=entry.payload,
        meta=entry.meta.get("meta", EMPTY),
        model=entry.model,
        bill=Bill(entry.meta.get("usd"), entry.seconds, entry.cost, "stored", entry.meta.get("tokens", 0)),
        created=entry.created,
        size=entry.size,
        fresh=False,
        admitted=True,
    )


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
