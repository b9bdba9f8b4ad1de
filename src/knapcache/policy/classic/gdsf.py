"""GDSF: GreedyDual-Size with Frequency (Cherkasova 1998), without and with the cost of a miss.

    H(q) = L + F(q) · C(q) / S(q)

F counts requests since admission, or all requests ever (`history`). C is 1, or the mean cost paid for q
(`by_cost`). S is the size. The answer of least H is evicted, and L, the clock, rises to its H. So answers that get
no requests age without being touched.

There are two readings of how a newcomer is admitted. In GreedyDual-Size (gds.py) the answers of least H are evicted
until the newcomer fits, and it is always admitted. With `trial` it is inserted first and then the answers of least H
are evicted until all fit. The newcomer may be among them; L rises to its H all the same. libCacheSim implements
GDSF with trial, and `gdsf` matches it hit for hit. With cost both exist, `gdsf-cost` and `gdsf-cost-trial`: in caches
of a few answers the trial saves some percent, elsewhere they are alike.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import evict, insert, make_settle, remove
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release, heap_remove, heap_top


@inlined
def priority_of(head: Records, rows: Records, i: int) -> float:
    """Return H(q) with the current L."""
    q = rows[i]
    cost = q.paid / q.misses if head[0].by_cost else 1.0
    return head[0].clock + q.requests * cost / q.entry_size  # type: ignore[no-any-return]


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if rows[i].resident or head[0].history:
        rows[i].requests += 1
    if not rows[i].resident:
        return False
    rows[i].priority = priority_of(head, rows, i)
    rows[i].tiebreak = head[0].t
    return True


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    rows[i].paid += cost
    rows[i].misses += 1
    rows[i].requests = max(rows[i].requests, 1) if head[0].history else 1
    if not head[0].trial:
        head[0].clock = max(head[0].clock, evict_until_fits(head, rows, size))
    insert(head, rows, i, size)
    rows[i].priority = priority_of(head, rows, i)
    rows[i].tiebreak = head[0].t
    heap_add(head, rows, i)
    while head[0].used > head[0].capacity:
        victim = heap_top(head, rows)
        head[0].clock = max(head[0].clock, rows[victim].priority)
        heap_remove(head, rows, victim)
        if victim == i:  # was never resident for the caller, so it is not reported as evicted
            remove(head, rows, i)
        else:
            evict(head, rows, victim)


@inlined
def reprice(head: Records, rows: Records, i: int, cost: float) -> None:
    before = priority_of(head, rows, i)
    rows[i].paid = rows[i].misses * cost
    heap_remove(head, rows, i)
    rows[i].priority += priority_of(head, rows, i) - before  # with the L of its last request
    heap_add(head, rows, i)


class GDSF(HeapPolicy):
    """GreedyDual-Size with Frequency."""

    head_fields: ClassVar = [
        *HeapPolicy.head_fields,
        ("t", "i8"),
        ("clock", "f8"),
        ("by_cost", "?"),
        ("history", "?"),
        ("trial", "?"),
    ]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("requests", "i4"), ("misses", "i4"), ("paid", "f8")]
    arrive_kernel = arrive
    reprice_kernel = reprice
    settle_kernel = make_settle(admit, heap_release)

    def __init__(
        self, capacity: int, ids: int, *, by_cost: bool = False, history: bool = False, trial: bool = True
    ) -> None:
        """`by_cost`: C is the mean cost; `history`: F counts all requests; `trial`: a newcomer may be evicted at
        once.
        """
        super().__init__(capacity, ids)
        self.head["by_cost"], self.head["history"], self.head["trial"] = by_cost, history, trial
