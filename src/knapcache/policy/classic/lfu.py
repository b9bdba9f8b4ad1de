"""LFU: evict the answer with the fewest requests since it was admitted; of equals, the least recently used."""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    rows[i].priority += 1.0
    rows[i].tiebreak = head[0].t
    return True


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - every policy has the same signature
    evict_until_fits(head, rows, size)
    rows[i].priority = 1.0
    rows[i].tiebreak = head[0].t
    insert(head, rows, i, size)
    heap_add(head, rows, i)


class LFU(HeapPolicy):
    """Least frequently used. The count starts again at each admission."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)
