"""The cache as programs use it. `engine.py` serves requests, `admission.py` decides, `coordinator.py` maintains."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, ParamSpec, Self, TypeVar, overload

from knapcache.cache.browse import EntryBrowser
from knapcache.cache.coordinator import AdmissionOpener, Coordinator
from knapcache.cache.engine import RequestEngine, fetch_options
from knapcache.cache.entries import page
from knapcache.cache.functions import Functions
from knapcache.cache.ledger import Ledger
from knapcache.cache.options import EncryptionKey, check_types, checked_counts, checked_shadows, checked_ttl, open_store
from knapcache.cache.pending_fetch import PendingFetch
from knapcache.cache.purging import purge_conditions
from knapcache.cache.quotas import checked_quotas
from knapcache.cache.serialize import Serializer
from knapcache.cache.similar import SimilarEntries
from knapcache.cache.values import Answer, Lookup, Reply
from knapcache.errors import InvalidInput
from knapcache.keys import Keyer, ParsedBody, Rules
from knapcache.keys.canonical import RequestKeyer
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.policy import registry
from knapcache.price import Meter
from knapcache.price.meter import USD_PER_SECOND
from knapcache.price.weights import Weights, amount
from knapcache.store.base import Clock, Store, wall_clock
from knapcache.threads import run_blocking

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_SECRET = b"knapcache without a secret"


class Cache:
    """A cache of answers that saves the most cost in the capacity it is given.

    capacity    bytes for all entries, by default "256MB"; with a path for everything that the files take
    path        a file in an existing directory, which survives the process, or a store's URL; None: memory
    store       a store instance, instead of path and capacity; it is closed with the cache
    policy      what decides (`knapcache policies`)
    cost        what to save: "usd", "seconds", or a blend such as "usd + 0.01*seconds"
    namespace   the default namespace of requests; namespaces do not share entries
    ttl         seconds until answers expire; None: never
    prices      of models, in dollars per million tokens; fallback: for models that have none (`price/meter.py`)
    rules       fields of requests that are not part of the key (docs/reference/keys.md)
    secret      16 to 64 bytes that keys and seals depend on
    shadows     policies whose cost on the same requests is reported; "adaptive@2x" has twice the capacity
    wait        seconds to wait for a concurrent call for the same key
    clock       Unix time, for tests; ids: how many keys the policy remembers
    quotas      bytes that the entries of a namespace may take; its least valuable entries are evicted first
    report_hits report hits to the owner process of a shared store; False: another component does (`touch`)
    synchronous "full": no stored answer is lost in a power cut, and writes are slower; "normal"
    encryption_key  32 bytes, raw, hex or base64: the file is encrypted; of several keys the first encrypts, all decrypt
    serializer  how results of cached functions are stored; None: a TypedSerializer
    """

    def __init__(
        self,
        capacity: int | str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        store: Store | None = None,
        policy: str = "adaptive",
        cost: str | Mapping[str, float] | Weights = "usd",
        namespace: str = "",
        ttl: float | None = None,
        prices: Mapping[str, Mapping[str, float] | None] | None = None,
        fallback: Mapping[str, float] | float | None = None,
        rules: Rules | None = None,
        secret: bytes | None = None,
        shadows: tuple[str, ...] = ("lru", "gdsf-cost"),
        wait: float = 60.0,
        clock: Clock = wall_clock,
        ids: int | None = None,
        quotas: Mapping[str, int] | None = None,
        report_hits: bool = True,
        synchronous: str = "normal",
        encryption_key: EncryptionKey = None,
        serializer: Serializer | None = None,
    ) -> None:
        if not registry.find(policy).online:
            raise InvalidInput(f"{policy!r} needs to know future requests: it can be replayed, but not run in a cache")
        shadows = checked_shadows(shadows)
        check_types(path, rules, clock, ids)
        meter = Meter(cost, prices, USD_PER_SECOND if fallback is None else fallback)
        self._keyer = RequestKeyer(Keyer(DEFAULT_SECRET if secret is None else secret, rules), namespace)
        self._ledger = ledger = Ledger()
        self._clock, limits, ttl, wait = clock, checked_quotas(quotas or {}), checked_ttl(ttl), amount("wait", wait)
        opened = open_store(store, path, capacity, secret, clock, synchronous, encryption_key=encryption_key)
        opener = AdmissionOpener(policy, shadows, ledger, ids, limits, clock)
        self._coordinator = Coordinator(opened, opener, ledger, clock, report_hits)
        self._engine = RequestEngine(self._coordinator, meter, ledger, ttl, wait, clock)
        # No methods: a call in between costs a hit 0.1 µs.
        self.get_entry_nowait, self.get_remote = self._engine.get_entry_nowait, self._engine.get_remote
        self._functions = Functions(self._engine, self._keyer.keyer, serializer)
        self.similar = SimilarEntries(self._coordinator)
        self.browser = EntryBrowser(self._coordinator, clock, self._engine.reads)

    # Requests.

    def fetch(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        call: Callable[[], Reply],
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer:
        """Return a stored answer, or the reply of `call`. Concurrent requests for a key share one call.

        refresh      call in any case, and store the new answer
        store        False: do not store the answer
        only_cached  raise NotCached instead of calling
        max_age      serve no answer that is older, in seconds
        """
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return self._engine.fetch(keyed, call, fetch_options(refresh, store, only_cached, max_age))

    async def fetch_async(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        call: Callable[[], Awaitable[Reply]],
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer:
        """Do the same for coroutines. When the calling task is cancelled, the call goes on and its reply is stored."""
        keyed = self._keyer.key(endpoint, request, namespace, context)
        options = fetch_options(refresh, store, only_cached, max_age)
        return await self._engine.fetch_async(keyed, call, options)

    def begin(
        self,
        request: KeyedRequest,
        *,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer | PendingFetch:
        """Return an answer, or a fetch that the caller must complete or abandon. Options: as of `fetch`.

        For callers that must see the reply before it is stored, or that stream it. Waits for another caller's fetch.
        """
        return self._engine.begin(request, fetch_options(refresh, store, only_cached, max_age))

    async def begin_async(
        self,
        request: KeyedRequest,
        *,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer | PendingFetch:
        """Do the same without blocking the event loop."""
        return await self._engine.begin_async(request, fetch_options(refresh, store, only_cached, max_age))

    def refreshing(self, request: KeyedRequest) -> bool:
        """Return whether a fetch with `refresh` is in flight for this request."""
        return self._engine.in_flight(request, fetch_options(refresh=True))

    def keyed_request(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> KeyedRequest | None:
        """Return the request with its key, or None when it has none. Other methods take it in place of the request.

        The key depends only on these arguments, so a program that repeats a request computes it once.
        """
        keyed = self._keyer.key(endpoint, request, namespace, context)
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
        found = self._keyer.items(endpoint, request, namespace, context)
        return found if isinstance(found, list) else None

    def count_bypass(self, namespace: str | None = None) -> None:
        """Count a request that has no key."""
        self._ledger.add_request("bypasses", "", self._keyer.tenant(namespace))

    def get_nowait(self, request: KeyedRequest) -> Answer | None:
        """Return an answer from memory, and count a hit; None, and nothing is counted, when `fetch` must be called."""
        return self._engine.get_nowait(request)

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
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return run_blocking(self._engine.lookup(keyed, fetch_options(max_age=max_age), blocking=True))

    async def lookup_async(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        max_age: float | None = None,
    ) -> Lookup:
        """Do the same without blocking the event loop."""
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return await self._engine.lookup(keyed, fetch_options(max_age=max_age), blocking=False)

    def settle(self, lookup: Lookup, reply: Reply) -> bool:
        """Tell the policy that the answer of a lookup was paid for. Return whether it is admitted."""
        return lookup.request is not None and self._engine.replies.settle(lookup, reply)

    def settle_answer(self, lookup: Lookup, reply: Reply) -> Answer:
        """Do the same for a lookup that has a key. Return the answer, with its cost and size."""
        return self._engine.replies.settle_answer(lookup, reply, blocking=True)

    async def settle_answer_async(self, lookup: Lookup, reply: Reply) -> Answer:
        """Do the same without blocking the event loop."""
        await self._engine.replies.wait_for_store()
        return self._engine.replies.settle_answer(lookup, reply, blocking=False)

    # Cached functions.

    @overload
    def cached(self, function: Callable[P, R]) -> Callable[P, R]: ...
    @overload
    def cached(
        self,
        *,
        name: str | None = None,
        ttl: float | None = None,
        namespace: str | None = None,
        tags: str | Collection[str] = (),
        serializer: Serializer | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def cached(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        ttl: float | None = None,
        namespace: str | None = None,
        tags: str | Collection[str] = (),
        serializer: Serializer | None = None,
    ) -> Any:
        """Decorate a function, plain or async. docs/guides/library.md lists what arguments and results may be.

        Its cost is the time it takes. `name` replaces the module and name of the function in its keys.
        """
        options = self._functions.options(self._keyer.tenant(namespace), checked_ttl(ttl), tags, serializer)
        decorate = functools.partial(self._functions.decorate, name=name, options=options)
        return decorate if function is None else decorate(function)

    def get_or_call(
        self,
        key: Any,
        call: Callable[[], R],
        *,
        name: str = "get_or_call",
        ttl: float | None = None,
        namespace: str | None = None,
        tags: str | Collection[str] = (),
    ) -> R:
        """Return the result stored under `key`, or that of `call`. Raises Uncacheable. `name` separates uses."""
        options = self._functions.options(self._keyer.tenant(namespace), checked_ttl(ttl), tags)
        request = self._functions.key_request(name, key, options)
        return self._functions.call(request, call, options)  # type: ignore[no-any-return]

    async def get_or_call_async(
        self,
        key: Any,
        call: Callable[[], Awaitable[R]],
        *,
        name: str = "get_or_call",
        ttl: float | None = None,
        namespace: str | None = None,
        tags: str | Collection[str] = (),
    ) -> R:
        """Do the same for coroutines."""
        options = self._functions.options(self._keyer.tenant(namespace), checked_ttl(ttl), tags)
        request = self._functions.key_request(name, key, options)
        return await self._functions.call_async(request, call, options)  # type: ignore[no-any-return]

    # Administration.

    def purge(
        self,
        *,
        key: str | bytes | None = None,
        model: str | None = None,
        tenant: str | None = None,
        older_than: float | None = None,
        tags: str | Collection[str] | None = None,
        system: str | None = None,
    ) -> int:
        """Remove the entries that meet every condition given, or all. Return how many.

        older_than   in seconds; tags: one, or several of which an entry needs one
        system       the first hex digits of the system prompt's digest, as in `entries`
        """
        conditions = purge_conditions(
            key=key, model=model, tenant=tenant, older_than=older_than, tags=tags, system=system
        )
        self._coordinator.maintain(sweep=False)  # collects what other processes have handed over
        return self._coordinator.role.purge(conditions)

    def purge_preview(self, **conditions: Any) -> dict[str, Any]:
        """Return what `purge` would remove: the number of `entries`, `bytes`, `value`, and the first `rows`."""
        return self.browser.purge_preview(purge_conditions(**conditions))

    def forget(self, key: str | bytes) -> bool:
        """Remove the entry of a key, as in `Answer.key`. Return whether there was one."""
        return self.purge(key=key) > 0

    def entries(self, search: str = "", **options: Any) -> dict[str, Any]:
        """Return a page of entries, how many match, and the least value per megabyte.

        Options: `model`, `tenant` and `tag` that entries must have, `sort`, `descending`, `offset`, `limit`.
        """
        return page(self._coordinator.role.entries(), self._clock(), search=search, **options)

    def entry(self, key: str | bytes) -> dict[str, Any] | None:
        """Return one row of `entries`, with `request` and `payload` as bytes, and `meta`. Reads the store."""
        return self.browser.entry(key)

    def touch(self, counts: Mapping[str, int]) -> int:
        """Count requests that were answered elsewhere with entries of this cache, by key (`Answer.key`).

        The policy and the shadows count them, the ledger does not. Return how many were for known keys.
        """
        return self._coordinator.role.touch(checked_counts(counts))

    @property
    def owner(self) -> bool:
        """Whether this process decides; False while another process owns the store."""
        return self._coordinator.role.is_owner

    def maintain(self) -> None:
        """Run the maintenance that is otherwise periodic: expire, collect from readers, save the policy's state."""
        self._coordinator.maintain()

    def stats(self) -> dict[str, Any]:
        """Return the ledger, the sizes of the store, the cost of the shadows, and the state of the breaker."""
        return {**self._ledger.report(), **self._coordinator.stats(), "breaker": self._engine.reads.breaker.stats()}

    def check(self) -> None:
        """Recompute every total; raise CorruptState when one differs. Reads everything, and requests wait."""
        self._ledger.check()
        self._coordinator.check()

    def close(self) -> None:
        """Write what is pending, and close the store."""
        self._engine.reads.close()
        self._engine.shared_calls.close()
        self._coordinator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.leader_tasks.drain()
        self.close()
