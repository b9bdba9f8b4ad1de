"""The cache as programs use it. `internal.py` is the same cache as the proxy and the integrations use it."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from knapcache.cache.deprecated import old_attribute
from knapcache.cache.engine import fetch_options
from knapcache.cache.functions import Functions, checked_serializer
from knapcache.cache.internal import InternalCache
from knapcache.cache.option_groups import KeyOptions, PolicyOptions, PriceOptions, StoreSource
from knapcache.cache.options import EncryptionKey, checked_ttl
from knapcache.cache.purging import purge_conditions
from knapcache.cache.results import CachedEntry, CacheStats, EntryContent, EntryListing, stats_of
from knapcache.cache.serialize import Serializer, TypedSerializer
from knapcache.cache.values import Answer, Reply
from knapcache.keys import Rules
from knapcache.model import Endpoint
from knapcache.price.weights import Weights
from knapcache.store.base import Clock, Store, wall_clock
from knapcache.threads import run_blocking

P = ParamSpec("P")
R = TypeVar("R")


class Cache:
    """A cache of answers that saves the most cost in the capacity it is given.

        with Cache("256MB", path="answers.db") as cache:
            answer = cache.fetch("chat/completions", request, call)  # `call` runs only if no answer is stored
            print(answer.outcome, cache.stats().usd_saved)

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
    report_hits report hits to the owner process of a shared store
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
        serializer = TypedSerializer() if serializer is None else checked_serializer(serializer)
        self._internal = InternalCache(
            StoreSource(
                store=store, path=path, capacity=capacity, synchronous=synchronous, encryption_key=encryption_key
            ),
            PolicyOptions(name=policy, shadows=shadows, ids=ids, quotas=quotas),
            PriceOptions(cost=cost, prices=prices, fallback=fallback),
            KeyOptions(secret=secret, rules=rules, namespace=namespace),
            ttl=ttl,
            wait=wait,
            clock=clock,
            report_hits=report_hits,
        )
        # Parts that requests use, so that a hit has no call in between.
        self._keyer, self._engine = self._internal.keyer, self._internal.engine
        self._functions = Functions(self._engine, self._keyer.keyer, serializer)

    # Requests.

    def fetch(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any],
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

        context      other inputs of the answer, which are part of the key
        refresh      call in any case, and store the new answer
        store        False: do not store the answer
        only_cached  raise NotCached instead of calling
        max_age      serve no answer that is older, in seconds
        """
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return self._engine.fetch(keyed, call, fetch_options(refresh, store, only_cached, max_age))

    async def afetch(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any],
        call: Callable[[], Awaitable[Reply]],
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        refresh: bool = False,
        store: bool = True,
        only_cached: bool = False,
        max_age: float | None = None,
    ) -> Answer:
        """`fetch` for coroutines. When the calling task is cancelled, the call goes on and its reply is stored."""
        keyed = self._keyer.key(endpoint, request, namespace, context)
        options = fetch_options(refresh, store, only_cached, max_age)
        return await self._engine.fetch_async(keyed, call, options)

    def get(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any],
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        max_age: float | None = None,
    ) -> Answer | None:
        """Count a request. Return its stored answer; None: make the call, and pass its reply to `put`.

        For programs that make their calls themselves. Concurrent requests for a key do not share a call.
        """
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return run_blocking(self._engine.get(keyed, fetch_options(max_age=max_age), blocking=True))

    async def aget(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any],
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        max_age: float | None = None,
    ) -> Answer | None:
        """`get` for coroutines: does not block the event loop."""
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return await self._engine.get(keyed, fetch_options(max_age=max_age), blocking=False)

    def put(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any],
        reply: Reply,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> bool:
        """Store the reply of a call that was paid for, if the policy admits it. Return whether it does.

        Without `Reply.seconds` its duration is the time since the `get` of the same request that returned None. Without
        such a `get`, a request is counted, and the duration is estimated from the length of the answer.
        """
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return run_blocking(self._engine.put(keyed, reply, blocking=True))

    async def aput(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any],
        reply: Reply,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> bool:
        """`put` for coroutines: does not block the event loop."""
        keyed = self._keyer.key(endpoint, request, namespace, context)
        return await self._engine.put(keyed, reply, blocking=False)

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
        dry_run: bool = False,
    ) -> int:
        """Remove the entries that meet every condition given, or all. Return how many.

        key          as in `Answer.key`; tenant: a namespace
        older_than   in seconds; tags: one, or several of which an entry needs one
        system       the first hex digits of the system prompt's digest, as in `entries`
        dry_run      remove nothing; return how many it would be
        """
        conditions = purge_conditions(
            key=key, model=model, tenant=tenant, older_than=older_than, tags=tags, system=system
        )
        if dry_run:
            return int(self._internal.browser.purge_preview(conditions)["entries"])
        return self._internal.purge(conditions)

    def entries(
        self,
        search: str = "",
        *,
        model: str | None = None,
        tenant: str | None = None,
        tag: str | None = None,
        sort: str = "value",
        descending: bool = True,
        offset: int = 0,
        limit: int = 50,
    ) -> EntryListing:
        """Return a page of entries, how many there are that meet every condition, and the least value per megabyte.

        search   part of the key's hex, of the model, of the tenant or of a tag, in any case
        sort     a column of `CachedEntry` that is a number
        """
        found = self._internal.entries(
            search, model=model, tenant=tenant, tag=tag, sort=sort, descending=descending, offset=offset, limit=limit
        )
        return EntryListing(**found | {"rows": [CachedEntry(**row) for row in found["rows"]]})

    def entry(self, key: str | bytes) -> EntryContent | None:
        """Return one entry with its request and answer; None if there is none. Reads the store."""
        found = self._internal.browser.entry(key)
        return None if found is None else EntryContent(**found)

    def stats(self) -> CacheStats:
        """Return the totals of requests, the sizes of the store, the cost of the shadows, and what happened."""
        return stats_of(self._internal.stats())

    @property
    def owner(self) -> bool:
        """Whether this process decides; False while another process owns the store."""
        return self._internal.owner

    def maintain(self) -> None:
        """Run the maintenance that is otherwise periodic: expire, collect from readers, save the policy's state."""
        self._internal.maintain()

    def check(self) -> None:
        """Recompute every total; raise CorruptState when one differs. Reads everything, and requests wait."""
        self._internal.check()

    def close(self) -> None:
        """Write what is pending, and close the store."""
        self._internal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._internal.close_async()

    if not TYPE_CHECKING:  # type checkers report old names

        def __getattr__(self, name: str) -> Any:
            return old_attribute(self, name)


def internal_of(cache: Cache) -> InternalCache:
    """Return the internal view of a cache, for the integrations: not public."""
    return cache._internal
