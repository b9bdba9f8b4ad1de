"""Windows, readings and decisions of limits. Pure: the caller gives the time and the counts.

    limit                  window                                      counted
    usd_per_day            the UTC day                                 dollars paid, and reserved for calls in flight
    usd_per_month          the UTC month                               the same
    requests_per_minute    the last 60 to 65 seconds, in slots of 5    calls that were begun
    tokens_per_minute      the same                                    tokens used, and reserved for calls in flight
    concurrent             now                                         calls in flight

A call is admitted if every counter of its scopes is below its limit. Then its estimated cost is reserved, in the same
step. The reservation is replaced by the true cost when the call ends. A scope is a tenant, or all callers together.

    Bound: used ≤ limit + the estimate of one call + Σ over calls in flight of max(0, true cost − reserved cost).
    For requests and concurrent calls, whose cost is exactly 1:   used ≤ limit.

Proof: before the last call was admitted, used + reserved < limit, and it reserved its own estimate. Every other change
replaces a reservation by a true cost. Rejected: to admit a call only if its estimate still fits. The last cents of a
limit could then not be spent, and a call whose estimate is too high would never be made, so never corrected.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from knapcache.price.estimate import ALL as ALL  # the scope of all callers together; no tenant can have this name

DAY = 86_400.0
SLOT_SECONDS = 5
MINUTE_SLOTS = 13
"""Slots of a minute: 12, and the one that has begun. So no 60 seconds have more than the limit."""
SLOTS_AHEAD = 2
"""Slots after the present one that count as the present one. They are in use if another machine's clock is ahead, or if
the clock was set back. Without them, two machines whose clocks differ by a millisecond could each admit a whole limit
in the millisecond in which they are in different slots."""
KEPT_WINDOWS = 8
"""Number of days, and of months, whose counters are kept: the last ones with payments. One would be enough if the clock
were always right. While it is wrong, the counter of the true day must not be deleted."""
THRESHOLDS = (50, 80, 100)
"""Percent of a spend limit at which a warning is given."""
SOON = 1.0
"""Seconds after which to try again if calls in flight use up a limit."""
MAX_RETRY_AFTER = 3600.0
"""Most seconds of Retry-After: a limit may be raised before its window ends."""
SPEND_LIMITS = ("usd_per_day", "usd_per_month")
LIMITS = (*SPEND_LIMITS, "requests_per_minute", "tokens_per_minute", "concurrent")


class LimitValues(NamedTuple):
    """The limits of one scope, in the order of LIMITS; None: no limit."""

    usd_per_day: float | None = None
    usd_per_month: float | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrent: float | None = None


class Scope(NamedTuple):
    """A scope and its limits."""

    name: str
    limits: LimitValues


class Slots(NamedTuple):
    """The numbers of the slots of a time."""

    day: int
    """Days since 1970."""
    month: int
    """Months since the year 0."""
    slot: int
    """Slots of SLOT_SECONDS since 1970."""


class CallAmounts(NamedTuple):
    """Calls, dollars and tokens."""

    calls: int = 0
    usd: float = 0.0
    tokens: float = 0.0

    def plus(self, other: CallAmounts, sign: int = 1) -> CallAmounts:
        """Return the sum, or with sign −1 the difference: 0 without calls, so that no rounding error is left."""
        calls = self.calls + sign * other.calls
        if calls <= 0:
            return CallAmounts()
        return CallAmounts(calls, max(0.0, self.usd + sign * other.usd), max(0.0, self.tokens + sign * other.tokens))


class ScopeUsage(NamedTuple):
    """The counters of one scope at one time."""

    usd_day: float = 0.0
    usd_month: float = 0.0
    in_flight: CallAmounts = CallAmounts()
    """Calls in flight, and what is reserved for them."""
    requests: tuple[float, ...] = (0.0,) * MINUTE_SLOTS
    """Calls that were begun, by slot, oldest first. The last slot is the present one, with SLOTS_AHEAD."""
    tokens: tuple[float, ...] = (0.0,) * MINUTE_SLOTS
    """Tokens that were used, by slot."""

    def used(self, limit: str) -> float:
        """Return what counts towards a limit, without reservations."""
        if limit == "requests_per_minute":
            return sum(self.requests)
        if limit == "tokens_per_minute":
            return sum(self.tokens)
        return {"usd_per_day": self.usd_day, "usd_per_month": self.usd_month}.get(limit, float(self.in_flight.calls))

    def reserved(self, limit: str) -> float:
        if limit in SPEND_LIMITS:
            return self.in_flight.usd
        return self.in_flight.tokens if limit == "tokens_per_minute" else 0.0


class Refusal(NamedTuple):
    """Why a call was not admitted."""

    scope: str
    limit: str
    usage: ScopeUsage


class Reserve(NamedTuple):
    """Admit a call and reserve its estimate, in all scopes or in none."""

    scopes: tuple[Scope, ...]
    amounts: CallAmounts


class Charge(NamedTuple):
    """Replace what was reserved for a call by what it cost. The call has ended."""

    scopes: tuple[Scope, ...]
    reserved: CallAmounts
    paid: CallAmounts
    """`calls` is not used."""


class Read(NamedTuple):
    """Read the counters."""

    scopes: tuple[Scope, ...]


Operation = Reserve | Charge | Read


class Result(NamedTuple):
    """What an operation found."""

    usages: tuple[ScopeUsage, ...]
    """Of each scope, before the operation."""
    refusal: Refusal | None = None
    """Of a Reserve that was not admitted; it changed nothing."""


class Counts(Protocol):
    """The counters of scopes. Operations of all processes are applied one after the other."""

    def apply(self, operations: Sequence[Operation], now: float) -> list[Result]:
        """Apply operations, and return what each found. May raise StoreError: then none of them has taken effect, or
        it is not known whether they have.
        """

    def beat(self, in_flight: Mapping[str, CallAmounts], now: float) -> None:
        """Set the calls in flight of this process, by scope, and forget what is old. Called every few seconds.

        Reservations of a process that has not called for STALE_SECONDS count as paid: its calls were probably billed.
        """

    def close(self) -> None:
        """Release files and connections."""


BEAT_SECONDS, STALE_SECONDS = 5.0, 20.0
"""Seconds between two beats of a process, and after which a process without one is taken for dead."""


def slots_at(now: float) -> Slots:
    date = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return Slots(int(now // DAY), date.year * 12 + date.month - 1, int(now // SLOT_SECONDS))


def refused_limit(limits: LimitValues, usage: ScopeUsage) -> str | None:
    """Return the first limit that is reached, or None: the call is admitted."""
    for name, allowed in zip(LIMITS, limits, strict=True):
        if allowed is not None and usage.used(name) + usage.reserved(name) >= allowed:
            return name
    return None


def used_after(operation: Operation, result: Result, usage: ScopeUsage) -> ScopeUsage:
    """Return what is used of a scope after an operation. Calls in flight are as before it."""
    if isinstance(operation, Reserve) and result.refusal is None:
        *older, present = usage.requests
        return usage._replace(requests=(*older, present + operation.amounts.calls))
    if isinstance(operation, Charge):
        *older, present = usage.tokens
        paid = operation.paid
        return usage._replace(
            usd_day=usage.usd_day + paid.usd,
            usd_month=usage.usd_month + paid.usd,
            tokens=(*older, present + paid.tokens),
        )
    return usage


def window_end(limit: str, now: float) -> float | None:
    """Return when the window of a spend limit ends, Unix time; None for other limits, whose window moves."""
    if limit == "usd_per_day":
        return (now // DAY + 1) * DAY
    if limit == "usd_per_month":
        date = datetime.datetime.fromtimestamp(now, datetime.UTC)
        year, month = divmod(date.year * 12 + date.month, 12)
        return datetime.datetime(year, month + 1, 1, tzinfo=datetime.UTC).timestamp()
    return None


def free_at(limit: str, allowed: float, usage: ScopeUsage, now: float) -> float:
    """Return when a limit that is reached admits calls again, Unix time, if nothing else is called until then.

    That calls in flight use it up is known only for SOON seconds.
    """
    if usage.used(limit) < allowed or limit == "concurrent":
        return now + SOON
    end = window_end(limit, now)
    if end is not None:
        return end
    slots = usage.requests if limit == "requests_per_minute" else usage.tokens
    left, first = sum(slots), slots_at(now).slot - MINUTE_SLOTS + 1
    for k, amount in enumerate(slots):
        left -= amount
        if left < allowed:
            return float((first + k + MINUTE_SLOTS) * SLOT_SECONDS)
    return now + SOON


def retry_after(limit: str, allowed: float, usage: ScopeUsage, now: float) -> int:
    """Return the seconds after which the caller may try again: 1 to MAX_RETRY_AFTER."""
    return math.ceil(min(MAX_RETRY_AFTER, max(SOON, free_at(limit, allowed, usage, now) - now)))


def crossed(limits: LimitValues, before: ScopeUsage, paid_usd: float) -> list[tuple[str, int]]:
    """Return the spend limits of which a payment has used a further threshold, and its percents.

    Payments are counted one after the other, so each threshold is crossed by one of them in a window. Of several that
    one payment crosses, only the highest is returned.
    """
    found = []
    for name in SPEND_LIMITS:
        allowed, used = getattr(limits, name), before.used(name)
        if allowed is None or paid_usd <= 0.0:
            continue
        percents = [each for each in THRESHOLDS if used * 100 < each * allowed <= (used + paid_usd) * 100]
        if percents:
            found.append((name, percents[-1]))
    return found
