"""Berkeley's cache bandit (Zhu et al. 2023: Towards Optimal Caching and Model Selection for Large Model Inference).

Value of a query: v(q) = frequency · Ĉ(q), with Ĉ the lower confidence bound on its cost. With equal sizes the
rule is: keep the newcomer if it is worth more than the least valuable resident, which then goes. For unequal
sizes value becomes density v(q)/S(q), and there are two readings:

    one swap (B1)    the resident of least density goes, if it is less dense than the newcomer, which then fits. This
                     is the baseline that the VSOCB paper measures itself against. It gets stuck: a large newcomer
                     never fits in place of a small resident.
    several (BM)     residents go in order of density, as long as each is less dense than the newcomer, until it fits;
                     if that is not enough, nobody goes. The obvious repair, and a mandatory baseline.

With S = 1 for all queries the two are the same, and are Berkeley's equal-size rule. Frequencies are compared at
one moment, so the common factor 1/t is left out of v.

Every density moves all the time, since the radius in Ĉ does: with t, with the queries seen, with the costs of others.
But all share what moves it, and Ĉ falls as the spread or the logarithm of the radius rise, and as the floor falls. So
the residents stand in a heap by a *lower bound* on their density, taken at a spread and a logarithm a little above what
they are. While both stay below, and the floor where it is, the bounds hold, to the last bit: rounding keeps order. The
resident of least density is then found by walking down from the top, no further than bounds lie below the best seen.
When something has passed its limit, all bounds are taken anew. Rejected: looking at every density at every miss, which
is hundreds of times slower with ten thousand residents.

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
    ("spread_limit", "f8"),  # the bounds hold while spread and logarithm are no higher than these, the floor no lower
    ("log_limit", "f8"),
    ("floor_limit", "f8"),
]
# How far ahead the limits are set. Nearer: all bounds are taken anew more often. Farther: they are looser.
SPREAD_AHEAD, LOG_AHEAD = 1.01, 0.05
MIN_SPREAD_RATIO = 0.95  # a spread that has fallen below this much of its limit: the bounds hold, and are worth little
DEPTH = 64  # more than the search ever leaves open: three a level, and one


@kernel
def density(head: Records, rows: Records, i: int) -> float:
    """v(q)/S(q), times t."""
    return rows[i].arrivals * cost_estimate(head, rows, i) / rows[i].entry_size  # type: ignore[no-any-return]


@kernel
def density_bound(head: Records, rows: Records, i: int) -> float:
    """What v(q)/S(q), times t, would be at the limits: no more than it is."""
    h, q = head[0], rows[i]
    cost = cost_bound(q.paid, q.misses, h.spread_limit, h.log_limit, h.gamma_cost, h.floor_limit)
    return q.arrivals * cost / q.entry_size  # type: ignore[no-any-return]


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    count_arrival(head, rows, i)
    if not rows[i].resident:
        return False
    rows[i].priority = density_bound(head, rows, i)  # has risen: the heap need not be told
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
    """Id i becomes a resident."""
    insert(head, rows, i, rows[i].entry_size)
    rows[i].priority = density_bound(head, rows, i)
    rows[i].tiebreak = i  # of equal densities the lowest id is the first to go
    heap_add(head, rows, i)


@kernel
def evict_resident(head: Records, rows: Records, i: int) -> None:
    """Id i is evicted."""
    heap_remove(head, rows, i)
    evict(head, rows, i)


@kernel
def swap_one(head: Records, rows: Records, i: int) -> None:
    """Evict the resident of least density, if that is right and enough."""
    worst = least_dense(head, rows)
    enough = head[0].used - rows[worst].entry_size + rows[i].entry_size <= head[0].capacity
    if enough and density(head, rows, worst) < density(head, rows, i):
        evict_resident(head, rows, worst)


@kernel
def swap_several(head: Records, rows: Records, i: int) -> None:
    """Evict residents in order of density, all of them less dense than i, until i fits; nobody if i would not."""
    h = head[0]
    mine = density(head, rows, i)
    while h.used + rows[i].entry_size > h.capacity:
        worst = least_dense(head, rows)
        if density(head, rows, worst) >= mine:
            while h.evicted > 0:  # all come back
                h.evicted -= 1
                insert_resident(head, rows, rows[h.evicted].victim)
            return
        evict_resident(head, rows, worst)


@kernel
def least_dense(head: Records, rows: Records) -> int:
    """The resident of least density, of equals the lowest id. There is one, and the limits hold."""
    open_ = np.empty(DEPTH, np.int64)
    open_[0] = 0
    n = 1
    least, worst = math.inf, -1
    while n > 0:
        n -= 1
        k = open_[n]
        j = rows[k].heap_id
        bound = rows[k].heap_priority  # no more than j's bound, which may have risen since
        if bound > least or (bound == least and j > worst):
            continue  # and so it is with all that stand below j
        d = density(head, rows, j)
        if d < least or (d == least and j < worst):
            least, worst = d, j
        for child in range(4 * k + 1, min(4 * k + 5, head[0].heap_size)):
            open_[n] = child
            n += 1
    return worst


@kernel
def radius_terms(head: Records) -> tuple[float, float, float]:
    """What moves all densities: the spread and the logarithm of the radius, if there is one, and the floor."""
    if head[0].gamma_cost == 0.0:
        return 0.0, 0.0, cost_floor(head)
    return cost_spread(head), radius_log(head), cost_floor(head)


@kernel
def bounds_hold(head: Records) -> bool:
    """Whether all is within the limits."""
    h = head[0]
    spread, log, floor = radius_terms(head)
    return bool(spread <= h.spread_limit and log <= h.log_limit and floor >= h.floor_limit)


@kernel
def refresh_bounds(head: Records, rows: Records) -> None:
    """Take all bounds anew if they do not hold any more, or are too loose."""
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
        if bounds_hold(self.head):
            above = [i for i in self.residents if self.rows["priority"][i] > density(self.head, self.rows, i)]
            self._same("residents less dense than their bound", above, [])


class BerkeleyMulti(Berkeley):
    """Berkeley's rule with as many evictions as it takes (BM)."""

    several = True
