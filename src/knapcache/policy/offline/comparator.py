"""The paper's offline comparator: VSOCB with free replacement.

The Oracle is called every round, and the cache becomes its set at once, including answers that were not fetched. Costs
are still learned from misses only. It does not see the future, but no cache could run it: it breaks
M_{t+1} ⊆ M_t ∪ {q_t}.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.estimate.statistics import count_arrival, count_miss
from knapcache.kernel import Records, kernel
from knapcache.policy.base import make_settle, remove
from knapcache.policy.vsocb.policy import VSOCB, record_size
from knapcache.policy.vsocb.recommendation import recommend


@kernel
def replace(head: Records, rows: Records) -> None:
    """M_t = Oracle(…), independent of M_{t−1}."""
    recommend(head, rows, True)
    head[0].used = head[0].recommended_size
    for i in range(len(rows) - 1):
        rows[i].resident = rows[i].recommended


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    count_arrival(head, rows, i)
    hit = bool(rows[i].resident)
    if hit:  # a miss calls the Oracle when it is settled
        replace(head, rows)
    return hit


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    count_miss(head, rows, i, cost)
    record_size(head, rows, i, size)
    replace(head, rows)


class Offline(VSOCB):
    """VSOCB's estimates, the Oracle every round, free replacement."""

    arrive_kernel: ClassVar = arrive
    settle_kernel: ClassVar = make_settle(admit, remove)
