"""The counters of a bandit policy for each query, and the estimates derived from them.

The counters are columns of a policy's `rows`; the settings of the estimators are fields of its `head`. The formulas
are in bounds.py. `Confidence` configures the estimators for all policies that use them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.estimate.bounds import arrival_bound, arrival_log, cost_bound, cost_log
from knapcache.kernel import Records, kernel

STATISTICS_HEAD = [
    ("t", "i8"),  # rounds: arrivals of any query
    ("seen", "i8"),  # queries that were paid for at least once
    ("gamma_cost", "f8"),
    ("gamma_arrival", "f8"),
    ("horizon", "i8"),  # T, or 0: use t
    ("queries", "i8"),  # N, or 0: use seen
    ("c1", "f8"),
    ("c2", "f8"),
    ("range_known", "?"),  # c1 and c2 are configured; otherwise c1 is the least cost seen and 2σ̂ replaces c2 − c1
    ("squares", "f8"),  # squared deviations of costs from the mean of their query, over all queries
    ("repeats", "i8"),  # misses after the first of their query: the degrees of freedom of `squares`
    ("floored", "?"),  # no cost is estimated below c1 ("clip" is taken: every NumPy scalar has one)
]
STATISTICS_ROW = [
    ("arrivals", "i8"),  # T_q(q)
    ("misses", "i8"),  # T_c(q)
    ("paid", "f8"),  # C̃(q)
]

NO_RADIUS = 1e-13
"""A radius below this share of the least cost counts as zero. It is far below the tolerance of a certificate."""


@dataclass(frozen=True)
class Confidence:
    """Settings of the estimators.

    gamma, gamma_arrival   scale of the cost and arrival radius, 0 … 1. The second defaults to the first. The paper: 1.
    T, N                   horizon and number of queries. None: anytime, with the rounds and queries seen so far.
    c1, c2                 range of the cost of a miss. None: learned, see `cost_spread`.
    clip                   never estimate a cost below c1 (the paper: below 0).
    """

    gamma: float = 1.0
    gamma_arrival: float | None = None
    T: int | None = None
    N: int | None = None
    c1: float | None = None
    c2: float | None = None
    clip: bool = True

    def __post_init__(self) -> None:
        for name, scale in (("gamma", self.gamma), ("gamma_arrival", self.gamma_arrival)):
            if scale is not None and not 0.0 <= scale <= 1.0:
                raise InvalidInput(f"{name} must be between 0 and 1, not {scale}")
        for name, count in (("T", self.T), ("N", self.N)):
            if count is not None and not count >= 1:
                raise InvalidInput(f"{name} must be at least 1, not {count}")
        if (self.c1 is None) != (self.c2 is None):
            raise InvalidInput("c1 and c2 must be given together")
        if self.c1 is not None and self.c2 is not None and not 0.0 <= self.c1 <= self.c2 < math.inf:
            raise InvalidInput(f"costs must satisfy 0 ≤ c1 ≤ c2 and be finite, not c1={self.c1}, c2={self.c2}")

    def write(self, head: Records) -> None:
        """Write the settings into a policy's header."""
        head["gamma_cost"] = self.gamma
        head["gamma_arrival"] = self.gamma if self.gamma_arrival is None else self.gamma_arrival
        head["horizon"] = self.T or 0
        head["queries"] = self.N or 0
        head["range_known"] = self.c1 is not None
        head["c1"] = math.inf if self.c1 is None else self.c1
        head["c2"] = math.inf if self.c2 is None else self.c2
        head["floored"] = self.clip


@kernel
def count_arrival(head: Records, rows: Records, i: int) -> None:
    head[0].t += 1
    rows[i].arrivals += 1


@kernel
def count_miss(head: Records, rows: Records, i: int, cost: float) -> None:
    h, q = head[0], rows[i]
    if q.misses == 0:
        h.seen += 1
    else:
        # Welford's update, pooled: queries differ in their mean and are assumed to share their variance.
        h.repeats += 1
        h.squares += (cost - q.paid / q.misses) ** 2 * q.misses / (q.misses + 1)
    q.misses += 1
    q.paid += cost
    if not h.range_known:
        h.c1 = min(h.c1, cost)


@kernel
def cost_spread(head: Records) -> float:
    """Return the unit of the cost radius: c2 − c1, or 2σ̂ if the range is not known.

    A cost within [c1, c2] is sub-Gaussian with σ = (c2 − c1)/2, and the paper's radius uses nothing else of the range.
    Real costs have long tails, so the range seen so far would be far too wide; the pooled standard deviation is not.
    """
    h = head[0]
    if h.range_known:
        return h.c2 - h.c1  # type: ignore[no-any-return]
    return 2.0 * math.sqrt(h.squares / h.repeats) if h.repeats > 0 else 0.0


@kernel
def radius_log(head: Records) -> float:
    """Return L1, the logarithm in the cost radius, now."""
    h = head[0]
    T = h.horizon if h.horizon > 0 else max(h.t, 1)
    N = h.queries if h.queries > 0 else max(h.seen, 1)
    return cost_log(T, N)


@kernel
def unit_radius(head: Records) -> float:
    """Return ρ = γ·(c2 − c1)·√(L1/2), the cost radius of a query that was paid for once; that of others is ρ/√T_c."""
    return head[0].gamma_cost * cost_spread(head) * math.sqrt(0.5 * radius_log(head))  # type: ignore[no-any-return]


@kernel
def cost_floor(head: Records) -> float:
    """Return the least value of a cost estimate: c1, or 0 if it is unknown or clipping is off."""
    h = head[0]
    return h.c1 if h.floored and h.c1 < math.inf else 0.0


@kernel
def cost_estimate(head: Records, rows: Records, i: int) -> float:
    """Return Ĉ_t(q)."""
    q = rows[i]
    return cost_bound(q.paid, q.misses, cost_spread(head), radius_log(head), head[0].gamma_cost, cost_floor(head))


@kernel
def arrival_estimate(head: Records, rows: Records, i: int) -> float:
    """Return P̂_t(q)."""
    h = head[0]
    T = h.horizon if h.horizon > 0 else max(h.t, 1)
    N = h.queries if h.queries > 0 else max(h.seen, 1)
    return arrival_bound(rows[i].arrivals, h.t, arrival_log(T, N), h.gamma_arrival)


@kernel
def value_estimate(head: Records, rows: Records, i: int) -> float:
    """Return w(q) = P̂_t(q)·Ĉ_t(q): a lower bound on the cost saved per round by keeping q."""
    return arrival_estimate(head, rows, i) * cost_estimate(head, rows, i)


@kernel
def relative_value(head: Records, rows: Records, i: int) -> float:
    """Return w(q) up to a common factor: t·w(q) = T_q(q)·Ĉ_t(q) if γ_arrival = 0.

    Then a round changes the value of the query that arrived and no other.
    """
    if head[0].gamma_arrival == 0.0:
        return rows[i].arrivals * cost_estimate(head, rows, i)  # type: ignore[no-any-return]
    return value_estimate(head, rows, i)


@kernel
def values_of(head: Records, rows: Records, ids: np.ndarray, relative: bool) -> np.ndarray:
    """Return `relative_value` or `value_estimate` of many ids, bit-identical; common terms are computed once."""
    h = head[0]
    T = h.horizon if h.horizon > 0 else max(h.t, 1)
    N = h.queries if h.queries > 0 else max(h.seen, 1)
    spread, cost_log_, arrival_log_, floor = cost_spread(head), cost_log(T, N), arrival_log(T, N), cost_floor(head)
    counted = relative and h.gamma_arrival == 0.0
    values = np.empty(len(ids), np.float64)
    for k in range(len(ids)):
        q = rows[ids[k]]
        arrivals = q.arrivals if counted else arrival_bound(q.arrivals, h.t, arrival_log_, h.gamma_arrival)
        values[k] = arrivals * cost_bound(q.paid, q.misses, spread, cost_log_, h.gamma_cost, floor)
    return values


@kernel
def values_are_static(head: Records) -> bool:
    """Return whether the `relative_value` of a query changes only when that query arrives or is paid for.

    The arrival bound depends on t. The cost radius depends on t and on the queries seen, unless T and N are configured,
    and on all costs, unless their range is. Without radii none of that matters. Nor does a radius that is lost in the
    rounding of the least cost, as while every query has cost the same each time. (The least cost seen, at which costs
    are clipped, is below every mean up to rounding.)
    """
    h = head[0]
    if h.gamma_arrival > 0.0:
        return False
    fixed_radius = h.horizon > 0 and h.queries > 0 and h.range_known
    if h.gamma_cost == 0.0 or fixed_radius:
        return True
    return bool(unit_radius(head) <= NO_RADIUS * cost_floor(head))


@kernel
def empirical_value(head: Records, rows: Records, i: int) -> float:
    """Return what keeping q would have saved per round so far: frequency times mean cost, without bounds."""
    q = rows[i]
    if q.misses == 0 or head[0].t == 0:
        return 0.0
    return q.arrivals / head[0].t * (q.paid / q.misses)  # type: ignore[no-any-return]
