"""LFU: evict the answer with the fewest requests since it came in; among equals, the one idle the longest."""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, kernel
from knapcache.policy.contract import HEAD, ROW, Policy, enter, leave, settling
from knapcache.policy.heap import HEAP_HEAD, HEAP_ROW, check_heap, heap_add, heap_raise, heap_remove, make_room


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    rows[i].priority += 1.0
    rows[i].turn = head[0].t
    heap_raise(head, rows, i)
    return True


@kernel
def admit(head: Records, rows: Records, i: int, room: int, cost: float) -> None:  # noqa: ARG001 - one signature for all
    make_room(head, rows, room)
    rows[i].priority = 1.0
    rows[i].turn = head[0].t
    enter(head, rows, i, room)
    heap_add(head, rows, i)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    heap_remove(head, rows, i)
    leave(head, rows, i)


class LFU(Policy):
    """Least frequently used. The count of an answer starts anew each time it comes in."""

    head_fields: ClassVar = [*HEAD, *HEAP_HEAD, ("t", "i8")]
    row_fields: ClassVar = ROW + HEAP_ROW
    arrive_kernel = arrive
    settle_kernel = settling(admit, release)
    release_kernel = release

    def check(self) -> None:
        super().check()
        check_heap(self.head, self.rows)
