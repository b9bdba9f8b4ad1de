"""Berkeley's cache bandit (Zhu et al. 2023: Towards Optimal Caching and Model Selection for Large Model Inference).

Value of a query: v(q) = frequency · Ĉ(q), with Ĉ the lower confidence bound on its cost. With equal sizes the rule is:
admit the newcomer if it is worth more than the least valuable resident, and evict that one. For unequal sizes value
becomes density v(q)/S(q), and there are two readings:

    one swap (B1)    evict the resident of least density if it is less dense than the newcomer, which then fits. This is
                     the baseline of the VSOCB paper. It gets stuck: a large newcomer never fits in place of a small
                     resident.
    several (BM)     evict residents in order of density, each less dense than the newcomer, until it fits. If that is
                     not enough, evict none. The obvious repair, and a mandatory baseline.

With S = 1 for all queries the two are the same, and are Berkeley's equal-size rule. Frequencies are compared at one
moment, so the common factor 1/t is left out of v.

All densities change all the time, because the radius in Ĉ does: with t, with the queries seen, with other queries'
costs. But all densities share what changes them, and Ĉ falls when the spread or the logarithm of the radius rises, and
when the floor falls. So the residents are kept in a heap by a *lower bound* on their density, computed at a spread and
a logarithm slightly above the current ones. While both stay below these limits and the floor does not fall, the bounds
hold exactly: rounding preserves order. The resident of least density is found by a search from the top that visits
only bounds below the best density found. When a limit is passed, all bounds are recomputed. Rejected: computing every
density at every miss, which is hundreds of times slower with ten thousand residents.

    Invariant: while the limits hold, rows[i].priority ≤ density(i) for every resident i.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from knapcache.estimate.bounds import cost_bound
from knapcache.estimate.statistics import (
    STATISTICS_HEAD,
    STATISTICS_ROW,
    Confidence,
    cost_estimate,
    cost_floor,
    cost_spread,
    count_arrival,
    count_miss,
    radius_log,
)
from knapcache.kernel import Records, kernel
from knapcache.policy.base import evict, insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, heap_add, heap_rebuild, heap_release, heap_remove

LIMITS_HEAD = [
    ("spread_limit", "f8"),  # the bounds hold while spread and logarithm are at most these and the floor at least this
    ("log_limit", "f8"),
    ("floor_limit", "f8"),
]
# Distance of the limits. Nearer: all bounds are recomputed more often. Farther: they are looser.
SPREAD_AHEAD, LOG_AHEAD = 1.01, 0.05
MIN_SPREAD_RATIO = 0.95  # below this share of its limit the spread has fallen so far that the bounds are too loose
DEPTH = 64  # stack of the search: at most three positions per level, and one


@kernel
def density(head: Records, rows: Records, i: int) -> float:
    """Return t·v(q)/S(q)."""
    return rows[i].arrivals * cost_estimate(head, rows, i) / rows[i].entry_size  # type: ignore[no-any-return]


@kernel
def density_bound(head: Records, rows: Records, i: int) -> float:
    """Return t·v(q)/S(q) at the limits: a lower bound on the density."""
    h, q = head[0], rows[i]
    cost = cost_bound(q.paid, q.misses, h.spread_limit, h.log_limit, h.gamma_cost, h.floor_limit)
    return q.arrivals * cost / q.entry_size  # type: ignore[no-any-return]


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    count_arrival(head, rows, i)
    if not rows[i].resident:
        return False
    rows[i].priority = density_bound(head, rows, i)  # can only rise, which the heap allows
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    count_miss(head, rows, i, cost)
    rows[i].entry_size = size
    if head[0].used + size > head[0].capacity:
        refresh_bounds(head, rows)
        if head[0].several:
            swap_several(head, rows, i)
        else:
            swap_one(head, rows, i)
    if head[0].used + size <= head[0].capacity:
        insert_resident(head, rows, i)


@kernel
def insert_resident(head: Records, rows: Records, i: int) -> None:
    """Make i resident and add it to the heap."""
    insert(head, rows, i, rows[i].entry_size)
    rows[i].priority = density_bound(head, rows, i)
    rows[i].tiebreak = i  # of equal densities the lowest id is evicted first
    heap_add(head, rows, i)


@kernel
def evict_resident(head: Records, rows: Records, i: int) -> None:
    """Evict i and remove it from the heap."""
    heap_remove(head, rows, i)
    evict(head, rows, i)


@kernel
def swap_one(head: Records, rows: Records, i: int) -> None:
    """Evict the resident of least density if it is less dense than i and i then fits."""
    worst = least_dense(head, rows)
    enough = head[0].used - rows[worst].entry_size + rows[i].entry_size <= head[0].capacity
    if enough and density(head, rows, worst) < density(head, rows, i):
        evict_resident(head, rows, worst)


@kernel
def swap_several(head: Records, rows: Records, i: int) -> None:
    """Evict residents in order of density, all less dense than i, until i fits; none if i would not fit."""
    h = head[0]
    limit = density(head, rows, i)
    while h.used + rows[i].entry_size > h.capacity:
        worst = least_dense(head, rows)
        if density(head, rows, worst) >= limit:
            while h.evicted > 0:  # undo all evictions
                h.evicted -= 1
                insert_resident(head, rows, int(rows[h.evicted].victim))
            return
        evict_resident(head, rows, worst)


@kernel
def least_dense(head: Records, rows: Records) -> int:
    """Return the resident of least density, of equals the lowest id. The limits must hold."""
    pending = np.empty(DEPTH, np.int64)
    pending[0] = 0
    n = 1
    least, worst = math.inf, -1
    while n > 0:
        n -= 1
        k = pending[n]
        j = rows[k].heap_id
        bound = rows[k].heap_priority  # at most j's bound, which may have risen since
        if bound > least or (bound == least and j > worst):
            continue  # no id below j in the heap can be less dense
        d = density(head, rows, j)
        if d < least or (d == least and j < worst):
            least, worst = d, j
        for child in range(4 * k + 1, min(4 * k + 5, head[0].heap_size)):
            pending[n] = child
            n += 1
    return worst


@kernel
def radius_terms(head: Records) -> tuple[float, float, float]:
    """Return what all densities share: spread and logarithm of the radius (0 without a radius), and the floor."""
    if head[0].gamma_cost == 0.0:
        return 0.0, 0.0, cost_floor(head)
    return cost_spread(head), radius_log(head), cost_floor(head)


@kernel
def bounds_hold(head: Records) -> bool:
    """Return whether the current spread, logarithm and floor are within the limits."""
    h = head[0]
    spread, log, floor = radius_terms(head)
    return bool(spread <= h.spread_limit and log <= h.log_limit and floor >= h.floor_limit)


@kernel
def refresh_bounds(head: Records, rows: Records) -> None:
    """Recompute all bounds if they no longer hold or are too loose."""
    h = head[0]
    spread, log, floor = radius_terms(head)
    if bounds_hold(head) and spread >= MIN_SPREAD_RATIO * h.spread_limit:
        return
    h.spread_limit, h.log_limit, h.floor_limit = SPREAD_AHEAD * spread, log + LOG_AHEAD, floor
    for k in range(h.heap_size):
        i = rows[k].heap_id
        rows[i].priority = density_bound(head, rows, i)
    heap_rebuild(head, rows)


class Berkeley(HeapPolicy):
    """Berkeley's rule with one swap (B1): the baseline of the VSOCB paper."""

    several: ClassVar[bool] = False
    head_fields: ClassVar = [*HeapPolicy.head_fields, *STATISTICS_HEAD, *LIMITS_HEAD, ("several", "?")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, *STATISTICS_ROW]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)

    def __init__(self, capacity: int, ids: int, *, confidence: Confidence = Confidence()) -> None:  # noqa: B008 - frozen
        super().__init__(capacity, ids)
        self.head["several"] = self.several
        confidence.write(self.head)

    def check(self) -> None:
        super().check()
        if self.form_of(bounds_hold)(self.head):
            bound = self.form_of(density)
            above = [i for i in self.residents if self.rows["priority"][i] > bound(self.head, self.rows, i)]
            self._expect("residents less dense than their bound", above, [])


class BerkeleyMulti(Berkeley):
    """Berkeley's rule with several evictions (BM)."""

    several = True
