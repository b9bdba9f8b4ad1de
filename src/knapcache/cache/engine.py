"""One request, from key to answer.

    begin      the policy counts the request; if it holds an entry, the entry is read and its request is compared with
               this one: a difference is a miss, never a wrong answer. On a miss, single flight (`single_flight.py`)
               waits for a concurrent call, or makes this request the leader. In a store of many machines the leader
               takes a lease on the key, or waits for the answer of another process (`shared_calls.py`)
    call       by the caller
    complete   the meter computes the cost, the store the size, and the policy decides (`admission.py`)

A request is answered whatever happens to the store. All of this takes microseconds, except for reads from disk and for
waiting in single flight. Blocking and async callers share the code: only those two waits depend on `blocking`
(`threads.run_blocking`). An async caller never waits for a disk on the event loop, and never takes a lock that is held
during I/O; `check` is the exception.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from knapcache.cache.async_reads import AsyncReads, read_blocking
from knapcache.cache.coordinator import Coordinator
from knapcache.cache.leader_tasks import LeaderTasks
from knapcache.cache.ledger import Ledger
from knapcache.cache.open_misses import OpenMisses
from knapcache.cache.replies import FetchResult, PendingFetch, ReplyProcessor, copy_meta, stored_result
from knapcache.cache.shared_calls import SharedCalls
from knapcache.cache.single_flight import CallResult, InFlightCall, SingleFlight
from knapcache.cache.values import DEFAULT_OPTIONS, EMPTY, Answer, FetchOptions, Lookup, Reply
from knapcache.errors import InvalidInput, NotCached
from knapcache.keys import Key
from knapcache.keys.request import KeyedRequest, UnkeyedRequest
from knapcache.price import Meter
from knapcache.price.meter import Bill
from knapcache.store.base import Clock, Entry, NetworkStore, NotInMemory, Store
from knapcache.threads import run_blocking

NO_KEY = Key(b"", b"")
REFRESH = FetchOptions(refresh=True)
BYTES_PER_SECOND = 80.0
"""20 tokens of 4 characters: the same speed at which the price of an unknown model is estimated."""


class RequestEngine:
    """Serves requests: shared by `fetch`, `lookup` and cached functions."""

    def __init__(
        self, coordinator: Coordinator, meter: Meter, ledger: Ledger, ttl: float | None, wait: float, clock: Clock
    ) -> None:
        self.coordinator, self.ledger = coordinator, ledger
        self.replies = ReplyProcessor(coordinator, meter, ledger, ttl, clock)
        self.reads = AsyncReads()
        self.shared_calls = SharedCalls()
        self.single_flight: SingleFlight[FetchResult] = SingleFlight()
        self._wait, self._clock = wait, clock
        self.leader_tasks = LeaderTasks()
        self.open_misses = OpenMisses()
        _ENGINES.add(self)

    def after_fork(self) -> None:
        """Start without calls in a child process: those of the parent never complete here."""
        self.single_flight = SingleFlight()
        self.leader_tasks = LeaderTasks()
        self.open_misses = OpenMisses()
        self.reads.after_fork()
        self.shared_calls.after_fork()
        self.ledger.after_fork()
        self.coordinator.after_fork()

    # Fetch: begin, call, complete.

    def fetch(self, request: KeyedRequest | UnkeyedRequest, call: Callable[[], Reply], options: FetchOptions) -> Answer:
        """Return a stored answer, or the reply of `call`. Concurrent requests for a key share one call."""
        found = self.begin(request, options)
        if isinstance(found, Answer):
            return found
        with found as pending:
            reply = call()
            return pending.complete(reply)

    async def fetch_async(
        self,
        request: KeyedRequest | UnkeyedRequest,
        call: Callable[[], Awaitable[Reply]],
        options: FetchOptions,
    ) -> Answer:
        """Fetch for a coroutine. A leader's call is a task of its own: it goes on if the caller is cancelled."""
        found = await self.begin_async(request, options)
        if isinstance(found, Answer):
            return found
        return await self.leader_tasks.run(found, call)

    def begin(self, request: KeyedRequest | UnkeyedRequest, options: FetchOptions) -> Answer | PendingFetch:
        """Return an answer from the cache or from a concurrent call, or a fetch that the caller must finish."""
        if isinstance(request, UnkeyedRequest):
            return self._begin_bypass(request, options)
        found = self._from_memory(request, options)
        if isinstance(found, Answer):
            return found
        return run_blocking(self._begin(found, request, options, blocking=True))

    async def begin_async(self, request: KeyedRequest | UnkeyedRequest, options: FetchOptions) -> Answer | PendingFetch:
        """Return what `begin` returns, without blocking the event loop. Cancelling it leaves nothing behind."""
        if isinstance(request, UnkeyedRequest):
            return self._begin_bypass(request, options)
        found = self._from_memory(request, options)
        if isinstance(found, Answer):
            return found
        return await self._begin(found, request, options, blocking=False)

    async def _begin(
        self, lookup: Lookup, request: KeyedRequest, options: FetchOptions, *, blocking: bool
    ) -> Answer | PendingFetch:
        if lookup.serial >= 0:
            hit = await self._from_store(lookup, request, options, blocking=blocking)
            if hit is not None:
                return hit
        if options.only_cached:
            self.ledger.add_request("misses", request.model, request.tenant)
            raise NotCached("the answer is not in the cache, and only_cached forbids a call")
        if not options.store:
            return self._pending(lookup, None)
        key = request.key.digest, options.refresh  # a refresh does not join a call that began before it
        call = self.single_flight.lead(key)
        if call is None:
            joined = await self._join(key, request, blocking=blocking)
            if isinstance(joined, CallResult):
                return self.replies.finish(lookup, joined.value, shared=True)
            call = joined
        pending = self._pending(lookup, call, blocking=blocking)
        if call is None or options.refresh:
            return pending
        network = self.coordinator.network
        if network is None and self.single_flight.completed == lookup.completed:
            return pending  # no call has completed since the lookup, so nothing was stored
        return await self._look_again(pending, network, lookup, request, options, blocking=blocking)

    async def _join(
        self, key: tuple[bytes, bool], request: KeyedRequest, *, blocking: bool
    ) -> InFlightCall | CallResult | None:
        """Wait for the call in flight. A request that fails or is cancelled meanwhile is counted."""
        try:
            return await self.single_flight.join(key, self._wait, blocking=blocking)
        except BaseException:
            self.ledger.add_request("failed", request.model, request.tenant)
            raise

    async def _look_again(
        self,
        pending: PendingFetch,
        network: NetworkStore | None,
        lookup: Lookup,
        request: KeyedRequest,
        options: FetchOptions,
        *,
        blocking: bool,
    ) -> Answer | PendingFetch:
        """Return the answer if it was stored since the lookup; else the fetch, with a lease if the store has leases."""
        digest, entry, waited = request.key.digest, None, True
        try:
            if network is None:
                entry = await self._read(self.coordinator.store, digest, blocking=blocking)
            else:
                found, waited = await self.shared_calls.lead(network, digest, self._wait, blocking=blocking)
                if isinstance(found, Entry):
                    entry = found
                else:
                    pending.lease = found
        except BaseException as error:
            pending.abandon(error)
            raise
        if not isinstance(entry, Entry) or not self._matches(entry, request, options):
            return pending
        if waited and entry.created >= lookup.arrived:
            return pending.reuse(stored_result(entry))
        pending.release(stored_result(entry))
        return self._counted_hit(entry, request, lookup)

    def _begin_bypass(self, request: UnkeyedRequest, options: FetchOptions) -> PendingFetch:
        if options.only_cached:
            self.ledger.add_request("bypasses", "", request.tenant)
            raise NotCached(f"the request has no key, and only_cached forbids a call: {request.reason}")
        keyed = KeyedRequest(request.endpoint, NO_KEY, request.tenant, "")
        return self._pending(Lookup("", bypass=request.reason, request=keyed), None)

    def _pending(self, lookup: Lookup, call: InFlightCall | None, *, blocking: bool = True) -> PendingFetch:
        return PendingFetch(self.replies, self.single_flight, lookup, call, blocking=blocking)

    def in_flight(self, request: KeyedRequest, options: FetchOptions) -> bool:
        """Return whether a fetch of this request is in flight."""
        return (request.key.digest, options.refresh) in self.single_flight

    # Lookup.

    async def lookup(self, request: KeyedRequest | UnkeyedRequest, options: FetchOptions, *, blocking: bool) -> Lookup:
        """Count a request, and return its hit or what `settle` needs."""
        if isinstance(request, UnkeyedRequest):
            self.ledger.add_request("bypasses", "", request.tenant)
            return Lookup("", bypass=request.reason)
        found = self._from_memory(request, options)
        if isinstance(found, Answer):
            return Lookup(found.key, found, request=request)
        hit = await self._from_store(found, request, options, blocking=blocking)
        if hit is not None:
            return Lookup(hit.key, hit, request=request)
        self.ledger.add_request("misses", request.model, request.tenant)
        return found

    # Calls that the caller makes itself.

    async def get(
        self, request: KeyedRequest | UnkeyedRequest, options: FetchOptions, *, blocking: bool
    ) -> Answer | None:
        """Count a request, and return its hit. None: the caller makes the call, and `put` gets its reply."""
        lookup = await self.lookup(request, options, blocking=blocking)
        if lookup.hit is None and lookup.request is not None:
            self.open_misses.add(lookup.request.key.digest, lookup)
        return lookup.hit

    async def put(self, request: KeyedRequest | UnkeyedRequest, reply: Reply, *, blocking: bool) -> bool:
        """Settle the reply of a call, with or without a `get` before it. Return whether it is admitted."""
        if not isinstance(reply, Reply):
            raise InvalidInput(f"put takes a Reply, not a {type(reply).__name__}")
        if isinstance(request, UnkeyedRequest):
            return False
        if not blocking:
            await self.replies.wait_for_store()
        lookup = self.open_misses.take(request.key.digest)
        if lookup is None:
            found = self._from_memory(request, REFRESH)
            assert isinstance(found, Lookup), "a refresh reads no entry"
            self.ledger.add_request("misses", reply.model or request.model, request.tenant)
            lookup = found
            if reply.seconds is None:  # an answer without cost would never be stored
                reply = replace(reply, seconds=len(reply.payload) / BYTES_PER_SECOND)
        return self.replies.settle(lookup._replace(request=request), reply, blocking=blocking)

    # Hits from memory.

    def get_nowait(self, request: KeyedRequest) -> Answer | None:
        """Return a hit from memory, and count it; None, and nothing is counted, when `fetch` must be called.

        Its meta is not copied: this is the fastest path, and its callers do not change it.
        """
        return self._known_hit(self.coordinator.store.get_nowait(request.key.digest), request)

    async def get_remote(self, request: KeyedRequest) -> Answer | None:
        """Return what `get_nowait` returns, in a store of many machines, also for an entry that is not in memory."""
        if self.coordinator.network is None:
            return None
        return self._known_hit(await self.reads.get(self.coordinator.store, request.key.digest), request)

    def _known_hit(self, entry: Entry | NotInMemory | None, request: KeyedRequest) -> Answer | None:
        role, digest = self.coordinator.role, request.key.digest
        if not isinstance(entry, Entry) or not self._matches(entry, request, DEFAULT_OPTIONS):
            return None
        if not role.count_memory_hit(digest, entry.size, entry.cost):
            return None
        return self._hit(entry, request, entry.meta.get("meta", EMPTY))

    def get_entry_nowait(self, request: KeyedRequest, usable: Callable[[Entry], bool]) -> Entry | None:
        """Count a hit from memory like `get_nowait`, and return its entry. None also for one that is not `usable`."""
        role, digest = self.coordinator.role, request.key.digest
        entry = role.store.get_nowait(digest)
        if entry is None or isinstance(entry, NotInMemory) or not self._matches(entry, request, DEFAULT_OPTIONS):
            return None
        _, _, model, size, cost, seconds, _, _, stored, _, payload = entry
        if not usable(entry) or not role.count_memory_hit(digest, size, cost):
            return None
        self.ledger.add_hit(
            model, request.tenant, stored.get("usd"), seconds, cost, stored.get("tokens", 0), len(payload)
        )
        return entry

    def _from_memory(self, request: KeyedRequest, options: FetchOptions) -> Answer | Lookup:
        """Count the request. Return a hit from memory, or a lookup that says whether there is more to read."""
        started, completed = time.perf_counter(), self.single_flight.completed
        role, digest = self.coordinator.role, request.key.digest
        i, serial = role.arrive(digest)
        if serial >= 0 and not options.refresh:
            entry = role.store.get_nowait(digest)
            if entry is not None and not isinstance(entry, NotInMemory):
                if self._matches(entry, request, options):
                    role.count_hit(digest, i, entry.size, entry.cost)
                    return self._hit(entry, request, copy_meta(entry.meta.get("meta", EMPTY)))
                serial = -1
        else:
            serial = -1
        at, key = self._clock(), digest.hex()
        return Lookup(key, request=request, id=i, serial=serial, started=started, arrived=at, completed=completed)

    async def _from_store(
        self, lookup: Lookup, request: KeyedRequest, options: FetchOptions, *, blocking: bool
    ) -> Answer | None:
        """Return a hit from the store, or None. An entry that two reads do not find is forgotten (`admission.py`)."""
        if lookup.serial < 0:
            return None
        role, digest = self.coordinator.role, request.key.digest
        entry = await self._read(role.store, digest, blocking=blocking)
        if entry is None and role.drain():
            entry = await self._read(role.store, digest, blocking=blocking)
            if entry is None:
                role.forget_missing(digest, lookup.id, lookup.serial)
        if not isinstance(entry, Entry) or not self._matches(entry, request, options):
            return None
        return self._counted_hit(entry, request, lookup)

    def _counted_hit(self, entry: Entry, request: KeyedRequest, lookup: Lookup) -> Answer:
        """Count a hit, also for the policy, and return its answer."""
        self.coordinator.role.count_hit(entry.key, lookup.id, entry.size, entry.cost)
        return self._hit(entry, request, copy_meta(entry.meta.get("meta", EMPTY)))

    async def _read(self, store: Store, digest: bytes, *, blocking: bool) -> Entry | NotInMemory | None:
        return read_blocking(store, digest) if blocking else await self.reads.get(store, digest)

    def _matches(self, entry: Entry, request: KeyedRequest, options: FetchOptions) -> bool:
        if entry.request != request.key.canonical or entry.tenant != request.tenant:
            self.ledger.count("key_collisions")
            return False
        return options.max_age is None or self._clock() - entry.created <= options.max_age

    def _hit(self, entry: Entry, request: KeyedRequest, meta: Mapping[str, Any]) -> Answer:
        """Count a hit in the ledger, and return its answer. Positional, and no helper calls: the hottest path."""
        key, _, model, size, cost, seconds, created, _, stored, _, payload = entry
        usd = stored.get("usd")
        bill = Bill(usd, seconds, cost, "stored", stored.get("tokens", 0))
        self.ledger.add_hit(model, request.tenant, usd, seconds, cost, bill.tokens, len(payload))
        age = max(0.0, self._clock() - created)
        return Answer(payload, meta, "hit", key.hex(), age, usd, model, bill, size)


_ENGINES: weakref.WeakSet[RequestEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def fetch_options(
    refresh: bool = False, store: bool = True, only_cached: bool = False, max_age: float | None = None
) -> FetchOptions:
    """Return the options of a fetch; the defaults are shared."""
    if store and not refresh and not only_cached and max_age is None:
        return DEFAULT_OPTIONS
    return FetchOptions(refresh, store, only_cached, max_age)
