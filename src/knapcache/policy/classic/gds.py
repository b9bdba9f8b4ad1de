"""GDS: GreedyDual-Size (Cao, Irani 1997: "Cost-Aware WWW Proxy Caching Algorithms").

    H(q) = L + c(q) / s(q)

c is the mean cost paid for q, s the size. Each request sets H with the current L; the number of requests is
ignored. The answer of least H is evicted, and L, the inflation, rises to its H. No deterministic online algorithm
has a better competitive ratio.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release


@inlined
def set_priority(head: Records, rows: Records, i: int) -> None:
    """Set H(q) with the current L."""
    q = rows[i]
    q.priority = head[0].inflation + q.paid / q.misses / q.entry_size
    q.tiebreak = head[0].t


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    set_priority(head, rows, i)
    return True


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    rows[i].paid += cost
    rows[i].misses += 1
    head[0].inflation = max(head[0].inflation, evict_until_fits(head, rows, size))  # L
    insert(head, rows, i, size)
    set_priority(head, rows, i)
    heap_add(head, rows, i)


class GDS(HeapPolicy):
    """GreedyDual-Size with the mean cost of a miss."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("inflation", "f8")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("misses", "i8"), ("paid", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)
