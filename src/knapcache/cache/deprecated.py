"""Names that `Cache` had before 1.0. They work until 2.0, with a DeprecationWarning that says what to use instead.

Caches have the type Any here: `cache.py` imports this module.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Awaitable, Callable, Collection
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from knapcache.cache.options import checked_ttl
from knapcache.cache.purging import purge_conditions

if TYPE_CHECKING:
    from knapcache.cache.functions import CallOptions
    from knapcache.keys.request import KeyedRequest


class OldName(NamedTuple):
    """An old name of `Cache`."""

    instead: str
    """The new name. Empty: there is none, because only the proxy used the old one."""
    find: Callable[[Any], Any]
    """Returns the attribute of a cache."""


def _internal(name: str, instead: str) -> OldName:
    return OldName(instead, attrgetter(f"_internal.{name}"))


OLD_NAMES = {
    "fetch_async": OldName("afetch", attrgetter("afetch")),
    "begin": _internal("begin", "fetch, or get and put"),
    "begin_async": _internal("begin_async", "afetch, or aget and aput"),
    "lookup": _internal("lookup", "get"),
    "lookup_async": _internal("lookup_async", "aget"),
    "settle": _internal("settle", "put"),
    "settle_answer": _internal("settle_answer", "put"),
    "settle_answer_async": _internal("settle_answer_async", "aput"),
    "get_nowait": _internal("get_nowait", "get"),
    "get_entry_nowait": _internal("get_entry_nowait", "get"),
    "get_remote": _internal("get_remote", "aget"),
    "get_or_call": OldName("cached(name=…)", lambda cache: _KeyedCalls(cache).get_or_call),
    "get_or_call_async": OldName("cached(name=…)", lambda cache: _KeyedCalls(cache).get_or_call_async),
    "keyed_request": _internal("keyed_request", "the request itself"),
    "keyed_items": _internal("keyed_items", "one request for each item"),
    "count_bypass": _internal("count_bypass", "get, which counts requests without a key"),
    "touch": _internal("touch", "get, which counts a request"),
    "refreshing": _internal("refreshing", "fetch(refresh=True), which concurrent requests share"),
    "forget": OldName("purge(key=…)", lambda cache: lambda key: cache.purge(key=key) > 0),
    "purge_preview": OldName("purge(dry_run=True)", lambda cache: functools.partial(_purge_preview, cache)),
    "browser": _internal("browser", "entries and entry"),
    "similar": _internal("similar", ""),
}


def old_attribute(cache: Any, name: str) -> Any:
    """Return an attribute of a cache by its old name, and warn. AttributeError if it never had one."""
    old = OLD_NAMES.get(name)
    if old is None:
        raise AttributeError(f"{type(cache).__name__!r} object has no attribute {name!r}", name=name, obj=cache)
    advice = f"use {old.instead}" if old.instead else "it is for the proxy only"
    warnings.warn(f"Cache.{name} ends with 2.0: {advice}", DeprecationWarning, stacklevel=3)
    return old.find(cache)


def _purge_preview(cache: Any, **conditions: Any) -> dict[str, Any]:
    found: dict[str, Any] = cache._internal.browser.purge_preview(purge_conditions(**conditions))
    return found


class _KeyedCalls:
    """Results by keys that the caller chooses."""

    def __init__(self, cache: Any) -> None:
        self._functions, self._keyer = cache._functions, cache._keyer

    def get_or_call(self, key: Any, call: Callable[[], Any], **options: Any) -> Any:
        """Return the result stored under `key`, or that of `call`. Raises Uncacheable."""
        request, call_options = self._request(key, **options)
        return self._functions.call(request, call, call_options)

    async def get_or_call_async(self, key: Any, call: Callable[[], Awaitable[Any]], **options: Any) -> Any:
        """Return what `get_or_call` returns, for coroutines."""
        request, call_options = self._request(key, **options)
        return await self._functions.call_async(request, call, call_options)

    def _request(
        self,
        key: Any,
        *,
        name: str = "get_or_call",
        ttl: float | None = None,
        namespace: str | None = None,
        tags: str | Collection[str] = (),
    ) -> tuple[KeyedRequest, CallOptions]:
        options = self._functions.options(self._keyer.tenant(namespace), checked_ttl(ttl), tags)
        return self._functions.key_request(name, key, options), options
