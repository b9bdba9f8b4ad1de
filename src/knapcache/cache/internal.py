"""The cache as the proxy and the integrations use it: keys, steps of a fetch, and pages of entries.

Not part of the public interface, which is `Cache`: a release may change any of it. Both are views of the same objects.
`engine.py` serves requests, `admission.py` decides, `coordinator.py` maintains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from knapcache.cache.browse import EntryBrowser
from knapcache.cache.coordinator import Coordinator
from knapcache.cache.engine import RequestEngine, fetch_options
from knapcache.cache.entries import page, stored_request
from knapcache.cache.ledger import Ledger
from knapcache.cache.option_groups import KeyOptions, PolicyOptions, PriceOptions, StoreSource
from knapcache.cache.options import checked_clock, checked_counts, checked_ttl
from knapcache.cache.purging import PurgeConditions
from knapcache.cache.replies import PendingFetch
from knapcache.cache.roles import Owner
from knapcache.cache.values import Answer, Lookup, Reply
from knapcache.errors import StoreError
from knapcache.keys import ParsedBody
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.price.weights import amount
from knapcache.store.base import Clock, Entry, wall_clock
from knapcache.threads import run_blocking


class SimilarEntries:
    """Entries by key, and the counts of the policy, for the semantic tier.

    Nothing here counts as a request, and all of it may block.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def entry(self, key: bytes) -> Entry | None:
        """Return an entry; None if there is none, if it has expired, or if the store cannot be read."""
        try:
            return self._coordinator.store.get(key)
        except StoreError:
            return None

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the keys that have no entry. Raises StoreError if the store cannot be read."""
        stored = {info.key for info in self._coordinator.store.scan()}
        return [key for key in keys if key not in stored]

    def inherit(self, key: bytes, other: bytes) -> None:
        """Let a request that is not stored start with the request count of another one, which means the same."""
        self._coordinator.role.inherit(key, other)


class InternalCache:
    """A cache in the terms of its parts. Arguments: those of `option_groups.py`, and of `Cache`."""

    def __init__(
        self,
        source: StoreSource,
        policy: PolicyOptions,
        price: PriceOptions,
        keys: KeyOptions,
        *,
        ttl: float | None = None,
        wait: float = 60.0,
        clock: Clock = wall_clock,
        report_hits: bool = True,
    ) -> None:
        # Everything is checked before the store is opened, which may create a file.
        meter, self.keyer, clock = price.meter(), keys.keyer(), checked_clock(clock)
        self.ledger, self.clock, ttl, wait = Ledger(), clock, checked_ttl(ttl), amount("wait", wait)
        opener, store = policy.opener(self.ledger, clock), source.open(keys.secret, clock)
        self.coordinator = Coordinator(store, opener, self.ledger, clock, report_hits, at_once=False)
        self.engine = RequestEngine(self.coordinator, meter, self.ledger, ttl, wait, clock)
        # No methods: a call in between costs a hit 0.1 µs.
        self.get_nowait, self.get_entry_nowait = self.engine.get_nowait, self.engine.get_entry_nowait
        self.get_remote = self.engine.get_remote
        self.similar = SimilarEntries(self.coordinator)
        self.browser = EntryBrowser(self.coordinator, clock, self.engine.reads)

    # Keys.

    def keyed_request(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> KeyedRequest | None:
        """Return the request with its key, or None when it has none. Other methods take it instead of the request.

        The key depends only on these arguments, so a program that repeats a request computes it once.
        """
        keyed = self.keyer.key(endpoint, request, namespace, context)
        return keyed if isinstance(keyed, KeyedRequest) else None

    def keyed_items(
        self,
        endpoint: Endpoint,
        request: ParsedBody,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> list[KeyedRequest] | None:
        """Return one request for each item of `input`, or None when they have no keys."""
        found = self.keyer.items(endpoint, request, namespace, context)
        return found if isinstance(found, list) else None

    def count_bypass(self, namespace: str | None = None) -> None:
        """Count a request that has no key."""
        self.ledger.add_request("bypasses", "", self.keyer.tenant(namespace))

    # Requests in steps.

    def begin(
        self,
        request: KeyedRequest,
        *,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer | PendingFetch:
        """Return an answer, or a fetch that the caller must complete or abandon. Options: as of `Cache.fetch`.

        For callers that must see the reply before it is stored, or that stream it. Waits for another caller's fetch.
        """
        return self.engine.begin(request, fetch_options(refresh, store, only_cached, max_age))

    async def begin_async(
        self,
        request: KeyedRequest,
        *,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer | PendingFetch:
        """Return what `begin` returns, without blocking the event loop."""
        return await self.engine.begin_async(request, fetch_options(refresh, store, only_cached, max_age))

    def refreshing(self, request: KeyedRequest) -> bool:
        """Return whether a fetch with `refresh` is in flight for this request."""
        return self.engine.in_flight(request, fetch_options(refresh=True))

    def lookup(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        max_age: float | None = None,
    ) -> Lookup:
        """Count a request, and return its hit or what `settle` needs. Concurrent requests do not share a call."""
        keyed = self.keyer.key(endpoint, request, namespace, context)
        return run_blocking(self.engine.lookup(keyed, fetch_options(max_age=max_age), blocking=True))

    async def lookup_async(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        max_age: float | None = None,
    ) -> Lookup:
        """Return what `lookup` returns, without blocking the event loop."""
        keyed = self.keyer.key(endpoint, request, namespace, context)
        return await self.engine.lookup(keyed, fetch_options(max_age=max_age), blocking=False)

    def settle(self, lookup: Lookup, reply: Reply) -> bool:
        """Tell the policy that the answer of a lookup was paid for. Return whether it is admitted."""
        return lookup.request is not None and self.engine.replies.settle(lookup, reply)

    def settle_answer(self, lookup: Lookup, reply: Reply) -> Answer:
        """Settle a lookup that has a key. Return the answer, with its cost and size."""
        return self.settle_answers([(lookup, reply)])[0]

    async def settle_answer_async(self, lookup: Lookup, reply: Reply) -> Answer:
        """Return what `settle_answer` returns, without blocking the event loop."""
        return (await self.settle_answers_async([(lookup, reply)]))[0]

    def settle_answers(self, calls: Sequence[tuple[Lookup, Reply]]) -> list[Answer]:
        """Settle lookups of different keys, together. Return the answers."""
        return self.engine.replies.settle_answers(calls, blocking=True)

    async def settle_answers_async(self, calls: Sequence[tuple[Lookup, Reply]]) -> list[Answer]:
        """Return what `settle_answers` returns, without blocking the event loop."""
        await self.engine.replies.wait_for_store()
        return self.engine.replies.settle_answers(calls, blocking=False)

    def touch(self, counts: Mapping[str, int]) -> int:
        """Count requests that were answered elsewhere with entries of this cache, by key (`Answer.key`).

        The policy and the shadows count them, the ledger does not. Return how many were for known keys.
        """
        return self.coordinator.role.touch(checked_counts(counts))

    def reprice(self, costs: Mapping[bytes, float]) -> None:
        """Set what a miss of some stored keys costs from now on, for the policy. A reader does nothing."""
        if isinstance(role := self.coordinator.role, Owner):
            role.admission.reprice(costs)

    def stored_requests(self, namespaces: Collection[str]) -> Iterator[tuple[bytes, float, bytes]]:
        """Yield key, paid cost and canonical request of every entry of some namespaces. Reads the store, and blocks."""
        table = self.coordinator.role.entries()
        for k, number in enumerate(table.records["tenant"].tolist()):
            if table.tenants[number] in namespaces:
                request = stored_request(self.coordinator.store, table.keys[k])
                if request is not None:
                    yield table.keys[k], float(table.records["cost"][k]), request

    # Administration.

    def purge(self, conditions: PurgeConditions) -> int:
        """Remove the entries that meet every condition. Return how many. `browser.purge_preview` shows them."""
        self.coordinator.maintain(sweep=False)  # collects what other processes have handed over
        return self.coordinator.role.purge(conditions)

    def entries(self, search: str = "", **options: Any) -> dict[str, Any]:
        """Return a page of entries, how many match, and the least value per megabyte (`entries.page`)."""
        return page(self.coordinator.role.entries(), self.clock(), search=search, **options)

    @property
    def owner(self) -> bool:
        """Whether this process decides; False while another process owns the store."""
        return self.coordinator.owner

    def maintain(self) -> None:
        """Run the maintenance that is otherwise periodic: expire, collect from readers, save the policy's state."""
        self.coordinator.maintain()

    def stats(self) -> dict[str, Any]:
        """Return the ledger, the sizes of the store, the cost of the shadows, and the state of the breaker."""
        return {**self.ledger.report(), **self.coordinator.stats(), "breaker": self.engine.reads.breaker.stats()}

    def check(self) -> None:
        """Recompute every total; raise CorruptState when one differs. Reads everything, and requests wait."""
        self.ledger.check()
        self.coordinator.check()

    def close(self) -> None:
        """Write what is pending, and close the store."""
        self.engine.reads.close()
        self.engine.shared_calls.close()
        self.coordinator.close()

    async def close_async(self) -> None:
        """Wait for the calls that cancelled coroutines have left, and close."""
        await self.engine.leader_tasks.drain()
        self.close()
