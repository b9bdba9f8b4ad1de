"""Shared counters, with counters in memory for the time in which the shared ones cannot be used.

    shared     operations go to the file or to the server; what they read is remembered
                  │ StoreError
                  ▼
    local      counters in memory, which begin with what was read last; RETRY_SECONDS later the shared ones are tried
                  │ they answer
                  ▼
    shared     the dollars that were paid meanwhile are added to them

So limits neither stop all traffic nor end while a server is away. Each process then counts for itself: with n of them
apart, at most n times what was left of a limit is used. Rejected: to refuse every call, because a server that is away
must not take the proxy with it; to admit every call, because a bill can grow without a bound.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from knapcache.errors import StoreError
from knapcache.features.limits.core import (
    BEAT_SECONDS,
    DAY,
    CallAmounts,
    Charge,
    Counts,
    LimitValues,
    Operation,
    Reserve,
    Result,
    Scope,
    ScopeUsage,
    used_after,
)
from knapcache.features.limits.sqlite_counts import SqliteCounts

log = logging.getLogger("knapcache.serve")

RETRY_SECONDS = 1.0
NO_LIMITS = LimitValues()


class FallbackCounts:
    """Counters of one process. One thread at a time uses them. monotonic: the clock of retries and beats."""

    def __init__(self, shared: Counts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._monotonic = shared, monotonic
        self._in_flight: dict[str, CallAmounts] = {}
        """Calls of this process that are in flight, by scope."""
        self._last: dict[str, tuple[ScopeUsage, float]] = {}
        """What is known of each scope since the last operation on it, and when that was."""
        self._local: SqliteCounts | None = None
        """The counters in memory; None: the shared ones are used."""
        self._unsent: dict[tuple[str, float], float] = {}
        """Dollars paid meanwhile, by scope and the time at which their day began."""
        self._retry_at = self._beat_at = 0.0
        self.reason = ""
        """Why the shared counters are not used; empty: they are."""

    def apply(self, operations: Sequence[Operation], now: float) -> list[Result]:
        """Apply operations, and return what each found. Never raises StoreError."""
        results = self._apply_shared(operations, now)
        if results is None:
            assert self._local is not None
            results = self._local.apply(operations, now)
            for operation in operations:
                if isinstance(operation, Charge) and operation.paid.usd:
                    for scope in operation.scopes:
                        place = scope.name, now // DAY * DAY
                        self._unsent[place] = self._unsent.get(place, 0.0) + operation.paid.usd
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, Reserve) and result.refusal is None:
                self._count_in_flight(operation.scopes, operation.amounts, 1)
            elif isinstance(operation, Charge):
                self._count_in_flight(operation.scopes, operation.reserved, -1)
        return results

    def beat(self, now: float) -> None:
        """Tell the shared counters which calls are in flight, every BEAT_SECONDS at most."""
        if self._last and self._monotonic() >= self._beat_at:  # without limits there is nothing to tell
            self._beat_at = self._monotonic() + BEAT_SECONDS
            if self._local is not None:
                self._local.beat(self._in_flight, now)
            self._apply_shared((), now, beat=True)

    def close(self, now: float) -> None:
        """Tell the shared counters which calls are in flight, mostly none. Release files and connections."""
        if self._last and self._local is None:
            with contextlib.suppress(StoreError):
                self._shared.beat(self._in_flight, now)
        self._shared.close()

    def _apply_shared(self, operations: Sequence[Operation], now: float, *, beat: bool = False) -> list[Result] | None:
        """Return what the shared counters found; None: they cannot be used."""
        if self._local is not None and self._monotonic() < self._retry_at:
            return None
        try:
            if self._local is not None:
                self._send_unsent()
            if beat or self._local is not None:
                self._shared.beat(self._in_flight, now)
                self._in_flight = {scope: each for scope, each in self._in_flight.items() if each.calls}
            results = self._shared.apply(operations, now) if operations else []
        except StoreError as error:
            self._use_local(str(error), now)
            return None
        if self._local is not None:
            log.warning("The shared counters of limits are used again.")
            self._local.close()
            self._local, self.reason = None, ""
        for operation, result in zip(operations, results, strict=True):
            for scope, usage in zip(operation.scopes, result.usages, strict=True):
                self._last[scope.name] = used_after(operation, result, usage), now
        return results

    def _send_unsent(self) -> None:
        for (scope, day), usd in list(self._unsent.items()):
            # At noon, so that it is that day also by another calendar arithmetic.
            paid = Charge((Scope(scope, NO_LIMITS),), CallAmounts(), CallAmounts(0, usd))
            self._shared.apply([paid], day + DAY / 2)
            del self._unsent[scope, day]

    def _use_local(self, reason: str, now: float) -> None:
        self._retry_at = self._monotonic() + RETRY_SECONDS
        self.reason = reason
        if self._local is None:
            log.error("Limits are counted by each process for itself: %s", reason)
            self._local = SqliteCounts()
            for scope, (usage, then) in self._last.items():
                self._local.seed(scope, usage, then)
            self._local.beat(self._in_flight, now)

    def _count_in_flight(self, scopes: Sequence[Scope], amounts: CallAmounts, sign: int) -> None:
        for scope in scopes:
            self._in_flight[scope.name] = self._in_flight.get(scope.name, CallAmounts()).plus(amounts, sign)
