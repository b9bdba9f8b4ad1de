"""GDS: GreedyDual-Size (Cao, Irani 1997: "Cost-Aware WWW Proxy Caching Algorithms").

    H(q) = L + c(q) / s(q)

c is the mean cost paid for q, s the size. A request sets H anew with the L of that moment; how often q was asked for
does not count. The answer of least H goes, and L, the inflation, rises to its H. No online algorithm without
randomness has a better competitive ratio.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release


@inlined
def renew(head: Records, rows: Records, i: int) -> None:
    """H(q) at this moment."""
    q = rows[i]
    q.priority = head[0].inflation + q.paid / q.misses / q.entry_size
    q.tiebreak = head[0].t


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    renew(head, rows, i)
    return True


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    rows[i].paid += cost
    rows[i].misses += 1
    head[0].inflation = max(head[0].inflation, evict_until_fits(head, rows, size))  # L
    insert(head, rows, i, size)
    renew(head, rows, i)
    heap_add(head, rows, i)


class GDS(HeapPolicy):
    """GreedyDual-Size with the mean cost of a miss."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("inflation", "f8")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("misses", "i8"), ("paid", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)
