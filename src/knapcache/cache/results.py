"""The values that `Cache.stats`, `Cache.entries` and `Cache.entry` return."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from knapcache.cache.ledger import LedgerRow


class IndexedByName:
    """Access to the fields of a dataclass by their names, as in a dict: `stats["hits"]`. Type checkers report it."""

    __slots__ = ()

    if not TYPE_CHECKING:
        get, keys, values, items = Mapping.get, Mapping.keys, Mapping.values, Mapping.items
        __contains__ = Mapping.__contains__

        def __getitem__(self, name: str) -> Any:
            if name not in iter(self):
                raise KeyError(name)
            kind = type(self).__name__
            warnings.warn(f"{kind}[{name!r}] ends with 2.0: use {kind}.{name}", DeprecationWarning, stacklevel=2)
            return getattr(self, name)

        def __iter__(self) -> Iterator[str]:
            return iter([each.name for each in fields(self)])


@dataclass(slots=True)
class RequestTotals(IndexedByName, LedgerRow):
    """Counts and sums of the requests of a model, of a namespace, or of all. `LedgerRow` describes the fields."""


@dataclass(slots=True, kw_only=True)
class BreakerStats(IndexedByName):
    """The circuit breaker of reads from disk."""

    state: str = "closed"
    """"closed", "open" or "half-open"."""
    opened: int = 0
    """How often it opened."""
    skipped: int = 0
    """Reads that it skipped."""


@dataclass(slots=True, kw_only=True)
class CacheStats(RequestTotals):
    """The totals of a cache since its start, and its state. docs/guides/library.md describes the fields."""

    by_model: dict[str, RequestTotals] = field(default_factory=dict)
    by_tenant: dict[str, RequestTotals] = field(default_factory=dict)
    shadows: dict[str, float] = field(default_factory=dict)
    shadow_rate: int = 1
    entries: int = 0
    bytes: int = 0
    capacity: int = 0
    size_limit: int = 0
    disk_bytes: int = 0
    tenant_bytes: dict[str, int] = field(default_factory=dict)
    evictions: int = 0
    recycled_ids: int = 0
    rejected_by_policy: int = 0
    rejected_too_large: int = 0
    rejected_store_busy: int = 0
    rejected_over_quota: int = 0
    rejected_unstorable: int = 0
    key_collisions: int = 0
    missing_entries: int = 0
    unreadable_results: int = 0
    store_errors: int = 0
    breaker: BreakerStats = field(default_factory=BreakerStats)
    owner: bool = True
    handed_over: int = 0
    handover_failed: int = 0
    collected: int = 0
    reported_hits: int = 0
    ownership_gained: int = 0
    ownership_lost: int = 0
    policy: str | None = None
    """None in a reader, which has no policy; so are `shadows` and `tenant_bytes` empty there."""
    compiled: bool = False
    ids: int = 0
    oracle_calls: int = 0
    oracle_seconds: float = 0.0
    store: dict[str, int] = field(default_factory=dict)


def stats_of(report: Mapping[str, Any]) -> CacheStats:
    """Return the report of `InternalCache.stats` with types."""
    rows = {
        name: {label: RequestTotals(**row) for label, row in report[name].items()} for name in ("by_model", "by_tenant")
    }
    return CacheStats(**{**report, **rows, "breaker": BreakerStats(**report["breaker"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedEntry(IndexedByName):
    """One entry of a cache, without its content."""

    key: str
    """The key's digest in hex, as in `Answer.key`."""
    model: str
    tenant: str
    """The namespace."""
    tags: list[str]
    system: str
    """The digest of the system prompt; empty without one."""
    size: int
    cost: float
    """The cost of the answer, in the policy's unit."""
    usd: float | None
    seconds: float
    requests: float
    """As counted by the policy, older ones less."""
    per_day: float | None
    """Requests per day; None below a day or ten requests."""
    value: float
    """requests · cost"""
    density: float
    """value ÷ size"""
    age: float
    """Seconds since the answer was paid for."""
    expires_in: float | None
    """Seconds; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryContent(CachedEntry):
    """One entry of a cache, with its content as stored."""

    created: float
    """When the answer was paid for, in Unix time."""
    request: bytes
    """The canonical request."""
    payload: bytes
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryListing(IndexedByName):
    """A page of the entries that meet some conditions."""

    total: int
    """How many meet them."""
    rows: list[CachedEntry]
    least_value_per_mb: float
    """Value per megabyte of what is evicted first, over all entries."""
    tenants: dict[str, int]
    """Bytes of the entries of each namespace, over all entries."""
