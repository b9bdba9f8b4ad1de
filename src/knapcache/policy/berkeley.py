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
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from knapcache.estimate.statistics import (
    STATISTICS_HEAD,
    STATISTICS_ROW,
    Confidence,
    cost_estimate,
    count_arrival,
    count_miss,
)
from knapcache.kernel import Records, kernel
from knapcache.policy.contract import HEAD, ROW, Policy, enter, evict, leave, settling


@kernel
def density(head: Records, rows: Records, i: int) -> float:
    """v(q)/S(q), times t."""
    return rows[i].arrivals * cost_estimate(head, rows, i) / rows[i].room  # type: ignore[no-any-return]


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    count_arrival(head, rows, i)
    return bool(rows[i].resident)


@kernel
def admit(head: Records, rows: Records, i: int, room: int, cost: float) -> None:
    count_miss(head, rows, i, cost)
    rows[i].room = room
    if head[0].used + room > head[0].capacity:
        if head[0].several:
            swap_several(head, rows, i)
        else:
            swap_one(head, rows, i)
    if head[0].used + room <= head[0].capacity:
        enter(head, rows, i, room)


@kernel
def swap_one(head: Records, rows: Records, i: int) -> None:
    """Evict the resident of least density, if that is right and enough."""
    least = math.inf
    worst = -1
    for j in range(len(rows) - 1):
        if rows[j].resident:
            d = density(head, rows, j)
            if d < least:
                least = d
                worst = j
    enough = head[0].used - rows[worst].room + rows[i].room <= head[0].capacity
    if enough and least < density(head, rows, i):
        evict(head, rows, worst)


@kernel
def swap_several(head: Records, rows: Records, i: int) -> None:
    """Evict residents in order of density, all of them less dense than i, until i fits; nobody if i would not."""
    mine = density(head, rows, i)
    ids = np.empty(len(rows), np.int64)
    densities = np.empty(len(rows), np.float64)
    n = 0
    lighter = 0
    for j in range(len(rows) - 1):
        if rows[j].resident:
            d = density(head, rows, j)
            if d < mine:
                ids[n] = j
                densities[n] = d
                lighter += rows[j].room
                n += 1
    if head[0].used - lighter + rows[i].room > head[0].capacity:
        return
    for k in np.argsort(densities[:n], kind="mergesort"):
        if head[0].used + rows[i].room <= head[0].capacity:
            return
        evict(head, rows, ids[k])


class Berkeley(Policy):
    """Berkeley's rule with one swap (B1): the baseline of the VSOCB paper."""

    several: ClassVar[bool] = False
    head_fields: ClassVar = [*HEAD, *STATISTICS_HEAD, ("several", "?")]
    row_fields: ClassVar = ROW + STATISTICS_ROW
    arrive_kernel = arrive
    settle_kernel = settling(admit, leave)
    release_kernel = leave

    def __init__(self, capacity: int, ids: int, *, confidence: Confidence = Confidence()) -> None:  # noqa: B008 - frozen
        super().__init__(capacity, ids)
        self.head["several"] = self.several
        confidence.write(self.head)


class BerkeleyMulti(Berkeley):
    """Berkeley's rule with as many evictions as it takes (BM)."""

    several = True
