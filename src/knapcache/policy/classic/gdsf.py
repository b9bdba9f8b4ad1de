"""GDSF: GreedyDual-Size with Frequency (Cherkasova 1998), without and with the cost of a miss.

    H(q) = L + F(q) · C(q) / S(q)

F counts requests since the answer came in, or all there ever were (history); C is 1, or the mean cost paid for q; S
is the size. The answer of least H goes, and L, the clock, rises to its H: what has not been asked for since then
ages without being touched.

There are two readings of what happens to a newcomer. As GreedyDual-Size has it (gds.py), the least go until it fits,
and it comes in. On *trial* it enters first, and then the least go until all fit; it may be among them, and L rises by
it all the same. libCacheSim has GDSF on trial, and so has `gdsf`, hit for hit. With cost there are both, `gdsf-cost`
and `gdsf-cost-trial`: in caches of a few answers the trial saves some percent, elsewhere they are alike.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import evict, insert, make_settle, remove
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release, heap_remove, heap_top


@inlined
def worth(head: Records, rows: Records, i: int) -> float:
    """H(q) at this moment."""
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
    rows[i].priority = worth(head, rows, i)
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
    rows[i].priority = worth(head, rows, i)
    rows[i].tiebreak = head[0].t
    heap_add(head, rows, i)
    while head[0].used > head[0].capacity:
        victim = heap_top(head, rows)
        head[0].clock = max(head[0].clock, rows[victim].priority)
        heap_remove(head, rows, victim)
        if victim == i:  # nobody has heard of it yet, so nobody is told
            remove(head, rows, i)
        else:
            evict(head, rows, victim)


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
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("requests", "i8"), ("misses", "i8"), ("paid", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)

    def __init__(
        self, capacity: int, ids: int, *, by_cost: bool = False, history: bool = False, trial: bool = True
    ) -> None:
        """Misses cost what they cost, or all the same; requests of former stays count; newcomers are on trial."""
        super().__init__(capacity, ids)
        self.head["by_cost"], self.head["history"], self.head["trial"] = by_cost, history, trial
