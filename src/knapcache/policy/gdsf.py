"""GDSF: GreedyDual-Size with Frequency (Cherkasova 1998), without and with the cost of a miss.

    H(q) = L + F(q) · C(q) / S(q)

F counts requests since the answer came in, or all there ever were (history); C is 1, or the mean cost paid for q; S
is the size. The answer of least H goes, and L, the clock, rises to its H: what has not been asked for since then
ages without being touched.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.contract import enter, settling
from knapcache.policy.heap import HeapPolicy, heap_add, heap_release, make_room


@inlined
def worth(head: Records, rows: Records, i: int) -> float:
    """H(q) at this moment."""
    q = rows[i]
    cost = q.paid / q.misses if head[0].by_cost else 1.0
    return head[0].clock + q.requests * cost / q.room  # type: ignore[no-any-return]


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if rows[i].resident or head[0].history:
        rows[i].requests += 1
    if not rows[i].resident:
        return False
    rows[i].priority = worth(head, rows, i)
    rows[i].turn = head[0].t
    return True


@inlined
def admit(head: Records, rows: Records, i: int, room: int, cost: float) -> None:
    rows[i].paid += cost
    rows[i].misses += 1
    # L rises to the H of the last one to go; the heap yields them in rising order.
    head[0].clock = max(head[0].clock, make_room(head, rows, room))
    rows[i].requests = max(rows[i].requests, 1) if head[0].history else 1
    enter(head, rows, i, room)
    rows[i].priority = worth(head, rows, i)
    rows[i].turn = head[0].t
    heap_add(head, rows, i)


class GDSF(HeapPolicy):
    """GreedyDual-Size with Frequency; all misses cost the same."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("clock", "f8"), ("by_cost", "?"), ("history", "?")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("requests", "i8"), ("misses", "i8"), ("paid", "f8")]
    arrive_kernel = arrive
    settle_kernel = settling(admit, heap_release)


class GDSFCost(GDSF):
    """GreedyDual-Size with Frequency and the mean cost of a miss."""

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        self.head["by_cost"] = True


class GDSFCostHistory(GDSFCost):
    """The same, and the requests for an answer still count when it comes back."""

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        self.head["history"] = True
