"""Hyperbolic caching (Blankstein, Sen, Freedman, ATC 2017: "Hyperbolic Caching: Flexible Caching for Web
Applications").

    p(q) = n(q) · c(q) / (s(q) · age(q))

n counts requests since admission, age the requests for any query since then; c is the mean cost paid, s the size.
Two answers without requests may swap their order as they age, so no heap can hold them. To evict, a sample of
residents is drawn and the one of least priority is evicted.
"""

from __future__ import annotations

import math
from typing import ClassVar

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.pool import (
    POOL_HEAD,
    POOL_ROW,
    check_pool,
    pool_add,
    pool_draw,
    pool_remove,
    seed_random,
)


@kernel
def priority(head: Records, rows: Records, i: int) -> float:
    """Return p(q) now. The least age is 1."""
    q = rows[i]
    return q.requests * (q.paid / q.misses) / (q.entry_size * max(head[0].t - q.since, 1))  # type: ignore[no-any-return]


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    rows[i].requests += 1
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    q = rows[i]
    q.paid += cost
    q.misses += 1
    while head[0].used + size > head[0].capacity:
        victim = worst(head, rows)
        pool_remove(head, rows, victim)
        evict(head, rows, victim)
    insert(head, rows, i, size)
    pool_add(head, rows, i)
    q.requests = 1
    q.since = head[0].t


@kernel
def worst(head: Records, rows: Records) -> int:
    """Return the id of least priority in a sample, or in the whole pool if it is no larger than a sample."""
    n = head[0].pool_size
    exhaustive = n <= head[0].samples
    found = -1
    least = math.inf
    for k in range(n if exhaustive else head[0].samples):
        i = rows[k].pool_id if exhaustive else pool_draw(head, rows)
        p = priority(head, rows, i)
        if found < 0 or p < least:
            least = p
            found = i
    return int(found)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    pool_remove(head, rows, i)
    remove(head, rows, i)


class Hyperbolic(Policy):
    """Requests times cost, per size and time in the cache."""

    head_fields: ClassVar = [*HEAD, *POOL_HEAD, ("t", "i8"), ("samples", "i8")]
    row_fields: ClassVar = [*ROW, *POOL_ROW, ("requests", "i8"), ("since", "i8"), ("misses", "i8"), ("paid", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release

    def __init__(self, capacity: int, ids: int, *, samples: int = 64, seed: int = 0) -> None:
        """`samples`: residents drawn for each eviction, at least 1; `seed`: of the draws."""
        super().__init__(capacity, ids)
        if not samples >= 1:
            raise InvalidInput(f"samples must be at least 1, not {samples}")
        self.head["samples"] = samples
        seed_random(self.head, seed)

    def check(self) -> None:
        super().check()
        check_pool(self.head, self.rows)
