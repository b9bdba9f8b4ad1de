"""The cache, as programs use it. `core.py` serves a request, `books.py` decides, `keeper.py` keeps house."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from knapcache.cache.admission import AdmissionController
from knapcache.cache.coordinator import Keeper
from knapcache.cache.engine import DEFAULT_OPTIONS, FetchOptions, PendingFetch, RequestEngine, timed, timed_async
from knapcache.cache.entries import columns, page, rows_of
from knapcache.cache.functions import Functions, typed
from knapcache.cache.ledger import Ledger
from knapcache.cache.options import (
    check_parts,
    checked_counts,
    checked_digest,
    checked_shadows,
    checked_ttl,
    open_store,
    room,
)
from knapcache.cache.quotas import checked_quotas
from knapcache.cache.values import Answer, Lookup, Reply
from knapcache.errors import InvalidInput, NotCached, Uncacheable
from knapcache.keys import Key, Keyer, Rules
from knapcache.keys.request import KeyedRequest, RequestKeyer
from knapcache.model import Endpoint
from knapcache.policy import registry
from knapcache.price import Meter
from knapcache.price.meter import USD_PER_SECOND
from knapcache.price.weights import Weights, amount
from knapcache.store.base import Clock, wall_clock

P = ParamSpec("P")
R = TypeVar("R")

NO_SECRET = b"knapcache without a secret"


class Cache:
    """Answers that are worth keeping.

    capacity    bytes for all that is kept, as in "256MB"; with a path for all that the files take
    path        a file, which survives the process; None: memory
    policy      what decides (`knapcache policies`)
    cost        what is to be saved: "usd", "seconds", or a blend such as "usd + 0.01*seconds"
    namespace   whose cache it is, where a request does not say
    ttl         seconds until answers expire; None: never
    prices      of models, in dollars per million tokens; fallback: for those that have none (price/meter.py)
    rules       which fields of requests do not count (docs/reference/keys.md)
    secret      16 to 64 bytes that keys and seals depend on
    shadows     policies whose cost on the same requests is reported beside ours; "adaptive@2x" has twice the room
    wait        seconds to wait for a call that somebody else makes
    clock       Unix time, for tests; ids: how many keys the policy remembers
    quotas      bytes that namespaces may have at most; their own least valuable answers go first
    tell_hits   tell the owner of the file, where that is another process, of hits; False: somebody else does (`touch`)
    synchronous "full": a power cut loses no answer that is kept in the file, and writing is slower; "normal"
    """

    def __init__(
        self,
        capacity: int | str = "256MB",
        *,
        path: str | os.PathLike[str] | None = None,
        policy: str = "adaptive",
        cost: str | Mapping[str, float] | Weights = "usd",
        namespace: str = "",
        ttl: float | None = None,
        prices: Mapping[str, Mapping[str, float]] | None = None,
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
    ) -> None:
        if not registry.find(policy).online:
            raise InvalidInput(f"{policy!r} sees the future: it can be replayed, but no cache can run it")
        shadows = checked_shadows(shadows)
        check_parts(path, rules, clock, ids)
        meter = Meter(cost, prices, USD_PER_SECOND if fallback is None else fallback)
        self._keyer = RequestKeyer(Keyer(NO_SECRET if secret is None else secret, rules), namespace)
        self._ledger = ledger = Ledger()
        self._clock, limits = clock, checked_quotas(quotas or {})
        ttl, wait = checked_ttl(ttl), amount("wait", wait)
        store = open_store(path, room(capacity), secret, clock, synchronous)

        def open_books() -> AdmissionController:
            books = AdmissionController(store, policy, shadows, ledger, ids, limits)
            books.open(clock())
            return books

        self._keeper = Keeper(store, open_books, self._ledger, clock, report_hits)
        self._engine = RequestEngine(self._keeper, meter, self._ledger, ttl, wait, clock)
        self._functions = Functions(self._engine, self._keyer.keyer)

    # One request.

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
        """The answer to a request: a kept one, or what `call` brings, which is made once at a time for a key.

        refresh: call in any case, and keep the new answer. store=False: keep nothing. only_cached: NotCached instead of
        a call. max_age: nothing older, in seconds.
        """
        usual = store and not refresh and not only_cached and max_age is None
        options = DEFAULT_OPTIONS if usual else FetchOptions(refresh, store, only_cached, max_age)
        keyed = self._keyer.of(endpoint, request, namespace, context)
        if isinstance(keyed, KeyedRequest):
            return self._engine.fetch(keyed, call, options)
        keyed = self._bypass(keyed, endpoint, namespace, options)
        try:
            return self._bypassed(keyed, *timed(call))
        except Exception:
            self._ledger.passed("failed", "", self._keyer.tenant(namespace))
            raise

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
        """Do the same for coroutines. The call goes on when its caller is cancelled, and its answer is stored."""
        usual = store and not refresh and not only_cached and max_age is None
        options = DEFAULT_OPTIONS if usual else FetchOptions(refresh, store, only_cached, max_age)
        keyed = self._keyer.of(endpoint, request, namespace, context)
        if isinstance(keyed, KeyedRequest):
            return await self._engine.fetch_async(keyed, call, options)
        keyed = self._bypass(keyed, endpoint, namespace, options)
        try:
            return self._bypassed(keyed, *await timed_async(call))
        except BaseException:
            self._ledger.passed("failed", "", self._keyer.tenant(namespace))
            raise

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
        return self._engine.begin(request, FetchOptions(refresh, store, only_cached, max_age))

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
        return await self._engine.begin_async(request, FetchOptions(refresh, store, only_cached, max_age))

    def refreshing(self, request: KeyedRequest) -> bool:
        """Return whether a fetch with `refresh` is in flight for this request."""
        return self._engine.in_flight(request, FetchOptions(refresh=True))

    def keyed_request(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> KeyedRequest | None:
        """A request with its key, which `fetch` and `get_nowait` take in its place; None where it has none.

        For those who are asked the same again and again: a key is made from nothing but what it is made from.
        """
        found = self._keyer.of(endpoint, request, namespace, context)
        return found if isinstance(found, KeyedRequest) else None

    def get_nowait(self, request: KeyedRequest) -> Answer | None:
        """A kept answer that needs no disk, counted as a hit; None, and nothing counted, where `fetch` must look."""
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
        """The first half, for callers who stream: a hit, or what `settle` needs. Counts the request."""
        keyed = self._keyer.of(endpoint, request, namespace, context)
        if not isinstance(keyed, KeyedRequest):
            return self._no_key(keyed, namespace)
        return self._engine.counted(
            self._engine.find(keyed, DEFAULT_OPTIONS if max_age is None else FetchOptions(max_age=max_age))
        )

    async def lookup_async(
        self,
        endpoint: Endpoint | str,
        request: bytes | str | dict[str, Any] | KeyedRequest,
        *,
        namespace: str | None = None,
        context: Mapping[str, str] | None = None,
        max_age: float | None = None,
    ) -> Lookup:
        """The same for coroutines: no disk is waited for on the event loop's thread."""
        keyed = self._keyer.of(endpoint, request, namespace, context)
        if not isinstance(keyed, KeyedRequest):
            return self._no_key(keyed, namespace)
        options = DEFAULT_OPTIONS if max_age is None else FetchOptions(max_age=max_age)
        return self._engine.counted(await self._engine.find_async(keyed, options))

    def settle(self, lookup: Lookup, reply: Reply) -> bool:
        """The second half: the answer was paid for. Is it kept?"""
        return lookup.request is not None and self._engine.settle(lookup, reply)

    def settle_answer(self, lookup: Lookup, reply: Reply) -> Answer:
        """The same, for those who want to know what it cost and what room it takes."""
        return self._engine.settle_answer(lookup, reply)

    # Plain functions.

    @overload
    def cached(self, function: Callable[P, R]) -> Callable[P, R]: ...
    @overload
    def cached(
        self, *, name: str | None = None, ttl: float | None = None, namespace: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def cached(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        ttl: float | None = None,
        namespace: str | None = None,
    ) -> Any:
        """A decorator for functions, plain or async, whose arguments and results JSON can say.

        What they cost is the time they take. `name` stands for module and name of the function.
        """
        checked_ttl(ttl)
        if function is None:
            return functools.partial(self._decorated, name=name, ttl=ttl, namespace=namespace)
        return self._decorated(function, name, ttl, namespace)

    def _decorated(
        self, function: Callable[..., Any], name: str | None, ttl: float | None, namespace: str | None
    ) -> Callable[..., Any]:
        return self._functions.wrapped(function, name, self._keyer.tenant(namespace), ttl)

    def get_or_call(
        self,
        key: Any,
        call: Callable[[], R],
        *,
        name: str = "get_or_call",
        ttl: float | None = None,
        namespace: str | None = None,
    ) -> R:
        """What is kept under `key`, anything that JSON can say, or what `call` returns. `name` keeps uses apart."""
        keyed = self._functions.request(name, {"key": typed(key)}, self._keyer.tenant(namespace))
        return self._functions.call(keyed, call, checked_ttl(ttl))  # type: ignore[no-any-return]

    async def get_or_call_async(
        self,
        key: Any,
        call: Callable[[], Awaitable[R]],
        *,
        name: str = "get_or_call",
        ttl: float | None = None,
        namespace: str | None = None,
    ) -> R:
        """The same for coroutines."""
        keyed = self._functions.request(name, {"key": typed(key)}, self._keyer.tenant(namespace))
        return await self._functions.call_async(keyed, call, checked_ttl(ttl))  # type: ignore[no-any-return]

    # The house.

    def purge(
        self,
        *,
        key: str | bytes | None = None,
        model: str | None = None,
        tenant: str | None = None,
        older_than: float | None = None,
    ) -> int:
        """Remove what meets every condition given, everything when none is; how many. `older_than` in seconds."""
        return self._keeper.purge(checked_digest(key), model, tenant, older_than)

    def forget(self, key: str | bytes) -> bool:
        """Remove the answer under a key, given as `Answer.key`; was there one?"""
        return self.purge(key=key) > 0

    def entries(
        self,
        search: str = "",
        model: str | None = None,
        tenant: str | None = None,
        sort: str = "value",
        descending: bool = True,
        offset: int = 0,
        limit: int = 50,
    ) -> dict[str, Any]:
        """A page of what is kept: how many meet the conditions, rows, and the price of a megabyte (listing.py)."""
        return page(
            self._keeper.kept(), self._clock(), search=search, model=model, tenant=tenant, sort=sort,
            descending=descending, offset=offset, limit=limit,
        )  # fmt: skip

    def entry(self, key: str | bytes) -> dict[str, Any] | None:
        """One row of `entries`, with the `request` and the `payload` as bytes; reads the store."""
        found = self._keeper.entry(checked_digest(key) or b"")
        if found is None:
            return None
        kept, entry = found
        (row,) = rows_of(kept, columns(kept, self._clock()), [0])
        return {**row, "request": entry.request, "payload": entry.payload}

    def touch(self, counts: Mapping[str, int]) -> int:
        """Requests that were answered elsewhere with answers of this cache, by key (`Answer.key`).

        The policy and the shadows count them, the ledger does not. How many there were of keys that are known.
        """
        return self._keeper.touch(checked_counts(counts))

    @property
    def owner(self) -> bool:
        """Whether this process decides; False while another owns the file."""
        return self._keeper.books is not None

    def maintain(self) -> None:
        """Now, what is otherwise done every second: expire, collect from other processes, keep the policy's state."""
        self._keeper.maintain()

    def stats(self) -> dict[str, Any]:
        """The ledger: what happened, what it cost, what was saved, and what others would have cost."""
        return {**self._ledger.report(), **self._keeper.stats(), "breaker": self._engine.reads.breaker.stats()}

    def check(self) -> None:
        """Derive every total anew; CorruptState when books and reality differ. AsyncReads everything, and requests wait."""
        self._ledger.check()
        self._keeper.check()

    def close(self) -> None:
        """Keep what is to be kept, and let go."""
        self._engine.reads.close()
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._engine.drain()
        self.close()

    # Requests without a key.

    def _no_key(self, reason: Uncacheable, namespace: str | None) -> Lookup:
        self._ledger.passed("bypasses", "", self._keyer.tenant(namespace))
        return Lookup("", bypass=str(reason))

    def _bypass(self, reason: Uncacheable, endpoint: str, namespace: str | None, options: FetchOptions) -> KeyedRequest:
        """A request without a key: it can be sent, and is not kept."""
        if options.only_cached:
            self._ledger.passed("bypasses", "", self._keyer.tenant(namespace))
            raise NotCached(f"only a kept answer was asked for, and the request has no key: {reason}")
        return KeyedRequest(Endpoint(endpoint), Key(b"", b""), self._keyer.tenant(namespace), "")

    def _bypassed(self, keyed: KeyedRequest, reply: Reply, seconds: float) -> Answer:
        bill = self._engine.bill(keyed, reply, seconds)
        self._ledger.passed("bypasses", reply.model, keyed.tenant)
        self._ledger.paid(reply.model, keyed.tenant, bill)
        return Answer(reply.payload, dict(reply.meta), "bypass", "", 0.0, None, reply.model, bill)
