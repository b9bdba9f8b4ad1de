"""LFU: evict the answer with the fewest requests since it came in; among equals, the one idle the longest."""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import enter, settling
from knapcache.policy.structures.heap import HeapPolicy, heap_add, heap_release, make_room


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    rows[i].priority += 1.0
    rows[i].turn = head[0].t
    return True


@inlined
def admit(head: Records, rows: Records, i: int, room: int, cost: float) -> None:  # noqa: ARG001 - one signature for all
    make_room(head, rows, room)
    rows[i].priority = 1.0
    rows[i].turn = head[0].t
    enter(head, rows, i, room)
    heap_add(head, rows, i)


class LFU(HeapPolicy):
    """Least frequently used. The count of an answer starts anew each time it comes in."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8")]
    arrive_kernel = arrive
    settle_kernel = settling(admit, heap_release)
