"""Counters of limits in a shared store, for the processes of all machines (store/redis/call_counts.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from knapcache.features.limits.core import (
    LIMITS,
    MINUTE_SLOTS,
    SLOTS_AHEAD,
    STALE_SECONDS,
    CallAmounts,
    Operation,
    Read,
    Refusal,
    Reserve,
    Result,
    ScopeUsage,
    slots_at,
)
from knapcache.store.redis.call_counts import CallCounts


class RedisCounts:
    """Counters in a store on Valkey or Redis. The names of tenants are not readable there.

    process   a name of this process that no other has
    """

    def __init__(self, counts: CallCounts, process: str, secret: bytes) -> None:
        self._counts, self._process = counts, process
        key = hashlib.sha256(b"limits" + secret).digest()

        @lru_cache(maxsize=4096)
        def name_of(scope: str) -> str:
            return hashlib.blake2b(scope.encode(), key=key, digest_size=12).hexdigest()

        self._name_of = name_of

    def apply(self, operations: Sequence[Operation], now: float) -> list[Result]:
        """Apply operations in the server, one after the other with those of other processes."""
        sent = [(len(each.scopes), self._arguments(each)) for each in operations]
        rows = self._counts.apply(self._process, slots_at(now), (MINUTE_SLOTS, SLOTS_AHEAD), STALE_SECONDS, sent)
        results = []
        for operation, (refused, limit, numbers) in zip(operations, rows, strict=True):
            usages = tuple(map(usage_of, numbers))
            refusal = None
            if refused:
                refusal = Refusal(operation.scopes[refused - 1].name, LIMITS[limit - 1], usages[refused - 1])
            results.append(Result(usages, refusal))
        return results

    def beat(self, in_flight: Mapping[str, CallAmounts], now: float) -> None:  # noqa: ARG002
        """Set the calls in flight of this process. The server forgets by itself what is old."""
        rows = [(self._name_of(scope), *amounts) for scope, amounts in in_flight.items()]
        self._counts.set_in_flight(self._process, rows)

    def close(self) -> None:
        """Do nothing: the store has the connections."""

    def _arguments(self, operation: Operation) -> list[Any]:
        scopes = [part for scope in operation.scopes for part in (self._name_of(scope.name), *map(limit, scope.limits))]
        if isinstance(operation, Reserve):
            return ["reserve", len(operation.scopes), *scopes, *operation.amounts, 0, 0]
        if isinstance(operation, Read):
            return ["read", len(operation.scopes), *scopes, 0, 0, 0, 0, 0]
        paid = operation.paid
        return ["charge", len(operation.scopes), *scopes, *operation.reserved, paid.usd, paid.tokens]


def limit(value: float | None) -> float | str:
    return "" if value is None else value


def usage_of(numbers: Sequence[float]) -> ScopeUsage:
    """Return the counters of a scope, from the numbers of the script."""
    day, month, calls, usd, tokens, *slots = numbers
    in_flight = CallAmounts(round(calls), usd, tokens)
    return ScopeUsage(day, month, in_flight, tuple(slots[:MINUTE_SLOTS]), tuple(slots[MINUTE_SLOTS:]))
