"""From the reply of a call to an answer: what it cost, how large its entry is, and whether the policy admits it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import orjson

from knapcache.cache.coordinator import Coordinator
from knapcache.cache.ledger import Ledger
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
        request, created = lookup.request, self._clock() if ended is None else ended
        assert request
        bill = self._bill(request, reply, seconds)
        model = reply.model or request.model
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
        return FetchResult(
            payload=reply.payload,
            meta=reply.meta,
            model=model,
            bill=bill,
            created=created,
            size=entry.size if entry else 0,
            fresh=True,
            admitted=admitted,
        )

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

    def settle_answer(self, lookup: Lookup, reply: Reply, *, blocking: bool) -> Answer:
        """Complete a lookup, whose miss is counted already. Return the answer."""
        assert lookup.request is not None
        result = self.complete(lookup, reply, time.perf_counter() - lookup.started, blocking=blocking)
        return self._answer(result, lookup.request, "miss")

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
        if request.system:
            stored["system"] = request.system
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
