"""Counters of limits on this machine: the steps that memory and SQLite share, and the form in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from knapcache.errors import CorruptState
from knapcache.features.limits.core import (
    KEPT_WINDOWS,
    MINUTE_SLOTS,
    SLOTS_AHEAD,
    CallAmounts,
    Operation,
    Read,
    Refusal,
    Reserve,
    Result,
    ScopeUsage,
    Slots,
    refused_limit,
    slots_at,
)


class LocalCounts(ABC):
    """Applies operations. Subclasses store the counters."""

    def apply(self, operations: Sequence[Operation], now: float) -> list[Result]:
        """Apply operations, and return what each found."""
        slots = slots_at(now)
        return [self._apply(operation, slots, now) for operation in operations]

    def _apply(self, operation: Operation, slots: Slots, now: float) -> Result:
        usages = tuple([self._usage(scope.name, slots) for scope in operation.scopes])
        if isinstance(operation, Read):
            return Result(usages)
        if isinstance(operation, Reserve):
            for scope, usage in zip(operation.scopes, usages, strict=True):
                limit = refused_limit(scope.limits, usage)
                if limit is not None:
                    return Result(usages, Refusal(scope.name, limit, usage))
            for scope in operation.scopes:
                self._add(scope.name, slots, requests=operation.amounts.calls)
                self._add_in_flight(scope.name, operation.amounts, 1, now)
            return Result(usages)
        for scope in operation.scopes:
            self._add(scope.name, slots, usd=operation.paid.usd, tokens=operation.paid.tokens)
            self._add_in_flight(scope.name, operation.reserved, -1, now)
        return Result(usages)

    def _add(self, scope: str, slots: Slots, *, usd: float = 0.0, requests: float = 0.0, tokens: float = 0.0) -> None:
        for kind, slot, amount in (
            ("day", slots.day, usd),
            ("month", slots.month, usd),
            ("requests", slots.slot, requests),
            ("tokens", slots.slot, tokens),
        ):
            if amount:
                self._add_used(scope, kind, slot, amount)

    @abstractmethod
    def _usage(self, scope: str, slots: Slots) -> ScopeUsage:
        """Return the counters of a scope."""

    @abstractmethod
    def _add_used(self, scope: str, kind: str, slot: int, amount: float) -> None:
        """Add to a counter."""

    @abstractmethod
    def _add_in_flight(self, scope: str, amounts: CallAmounts, sign: int, now: float) -> None:
        """Add calls in flight of this process, or with sign −1 remove them."""


class MemoryCounts(LocalCounts):
    """Counters of one process, in memory."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, dict[int, float]]] = {}
        """CallAmounts by scope, kind and slot."""
        self._in_flight: dict[str, CallAmounts] = {}

    def seed(self, scope: str, usage: ScopeUsage, now: float) -> None:
        """Begin with these counters of a scope; calls in flight are given by `beat`."""
        slots = slots_at(now)
        first = slots.slot - MINUTE_SLOTS + 1
        self._used[scope] = {
            "day": {slots.day: usage.usd_day},
            "month": {slots.month: usage.usd_month},
            "requests": {first + k: amount for k, amount in enumerate(usage.requests) if amount},
            "tokens": {first + k: amount for k, amount in enumerate(usage.tokens) if amount},
        }

    def beat(self, in_flight: Mapping[str, CallAmounts], now: float) -> None:
        self._in_flight = dict(in_flight)
        slots = slots_at(now)
        for kinds in self._used.values():
            for kind, amounts in kinds.items():
                if kind in ("day", "month"):
                    kept = sorted(amounts)[-KEPT_WINDOWS:]
                else:
                    kept = [slot for slot in amounts if slot > slots.slot - MINUTE_SLOTS]
                kinds[kind] = {slot: amounts[slot] for slot in kept}

    def close(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Raise CorruptState if a counter is negative."""
        amounts = [amount for kinds in self._used.values() for each in kinds.values() for amount in each.values()]
        amounts += [part for each in self._in_flight.values() for part in each]
        if any(amount < 0 for amount in amounts):
            raise CorruptState("a counter of limits is negative")

    def _usage(self, scope: str, slots: Slots) -> ScopeUsage:
        kinds, first = self._used.get(scope, {}), slots.slot - MINUTE_SLOTS + 1
        minutes = []
        for kind in ("requests", "tokens"):
            *older, present = [kinds.get(kind, {}).get(first + k, 0.0) for k in range(MINUTE_SLOTS)]
            ahead = sum(kinds.get(kind, {}).get(slots.slot + k, 0.0) for k in range(1, SLOTS_AHEAD + 1))
            minutes.append((*older, present + ahead))
        return ScopeUsage(
            kinds.get("day", {}).get(slots.day, 0.0),
            kinds.get("month", {}).get(slots.month, 0.0),
            self._in_flight.get(scope, CallAmounts()),
            *minutes,
        )

    def _add_used(self, scope: str, kind: str, slot: int, amount: float) -> None:
        amounts = self._used.setdefault(scope, {}).setdefault(kind, {})
        amounts[slot] = amounts.get(slot, 0.0) + amount

    def _add_in_flight(self, scope: str, amounts: CallAmounts, sign: int, now: float) -> None:  # noqa: ARG002
        self._in_flight[scope] = self._in_flight.get(scope, CallAmounts()).plus(amounts, sign)
