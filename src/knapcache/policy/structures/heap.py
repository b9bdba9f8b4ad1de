"""A 4-ary min-heap of ids with lazy increase-key, stored in six columns of `rows`.

    rows[i].priority        of id i; the least leaves first
    rows[i].tiebreak        equal priorities leave in this order
    rows[i].heap_slot       heap position of id i
    rows[k].heap_id         id at heap position k          Invariant: rows[rows[i].heap_slot].heap_id = i
    rows[k].heap_priority,  priority and tiebreak of that id when it was placed
    rows[k].heap_tiebreak                                  Invariant: never above (priority, tiebreak) of that id
    head.heap_size          number of ids in the heap

A policy sets `priority` and `tiebreak`. It may *raise* them for an id in the heap at any time without calling the
heap: a hit writes two fields and moves nothing. Positions are compared by heap_priority, which is a lower bound. If
the id at the top still has the priority it was placed with, no other id can be below it. If not, `heap_top` sinks it
to its new position and looks at the next one. So an answer with ten hits between two evictions moves at most once,
and one that never comes near the top never moves. One eviction may have many delayed moves to do, at most one for
each hit. To lower a priority, remove the id and add it again.

Comparing heap_priority instead of the priority of the id keeps each comparison within the row of its position. The
tiebreak exists because ties are the common case under LFU. Without it the order would depend on the heap's history,
and decisions could not be reproduced.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined
from knapcache.policy.base import HEAD, ROW, Policy, evict, remove

Column = npt.NDArray[Any]

HEAP_HEAD = [("heap_size", "i8")]
HEAP_ROW = [
    ("priority", "f8"),
    ("tiebreak", "i8"),
    ("heap_priority", "f8"),
    ("heap_tiebreak", "i8"),
    ("heap_id", "u4"),  # ids are at most 2^31: narrow rows, fewer cache lines
    ("heap_slot", "u4"),
]


@inlined
def precedes(priority: float, tiebreak: int, other_priority: float, other_tiebreak: int) -> bool:
    """Return whether the first (priority, tiebreak) pair leaves before the second.

    Uses | and &, which have no branch: which child is the lesser is unpredictable, and a mispredicted branch costs more
    than a comparison.
    """
    return (priority < other_priority) | ((priority == other_priority) & (tiebreak < other_tiebreak))


@inlined
def leaves_before(rows: Records, a: int, b: int) -> bool:
    """Return whether id a leaves before id b."""
    return bool(precedes(rows[a].priority, rows[a].tiebreak, rows[b].priority, rows[b].tiebreak))


@inlined
def slot_precedes(rows: Records, a: int, b: int) -> bool:
    """Return whether the id at heap position a leaves before the one at position b."""
    return precedes(rows[a].heap_priority, rows[a].heap_tiebreak, rows[b].heap_priority, rows[b].heap_tiebreak)


@inlined
def set_slot(rows: Records, i: int, k: int, priority: float, tiebreak: int) -> None:
    """Put id i at position k."""
    rows[k].heap_priority = priority
    rows[k].heap_tiebreak = tiebreak
    rows[k].heap_id = i
    rows[i].heap_slot = k


@inlined
def sift_up(rows: Records, i: int, k: int, priority: float, tiebreak: int) -> None:
    """Move id i from position k towards the top until its parent leaves before it."""
    while k > 0:
        parent = (k - 1) >> 2
        if not precedes(priority, tiebreak, rows[parent].heap_priority, rows[parent].heap_tiebreak):
            break
        set_slot(rows, rows[parent].heap_id, k, rows[parent].heap_priority, rows[parent].heap_tiebreak)
        k = parent
    set_slot(rows, i, k, priority, tiebreak)


@inlined
def sift_down(head: Records, rows: Records, i: int, k: int, priority: float, tiebreak: int) -> None:
    """Move id i from position k towards the bottom until it leaves before all of its children."""
    n = head[0].heap_size
    while True:
        first = 4 * k + 1
        if first + 3 < n:
            a = first + int(slot_precedes(rows, first + 1, first))
            b = first + 2 + int(slot_precedes(rows, first + 3, first + 2))
            c = a + (b - a) * int(slot_precedes(rows, b, a))
        elif first < n:
            c = first
            for other in range(first + 1, n):
                if slot_precedes(rows, other, c):
                    c = other
        else:
            break
        if not precedes(rows[c].heap_priority, rows[c].heap_tiebreak, priority, tiebreak):
            break
        set_slot(rows, rows[c].heap_id, k, rows[c].heap_priority, rows[c].heap_tiebreak)
        k = c
    set_slot(rows, i, k, priority, tiebreak)


@inlined
def heap_add(head: Records, rows: Records, i: int) -> None:
    """Add id i, whose priority and tiebreak are set."""
    k = head[0].heap_size
    head[0].heap_size = k + 1
    sift_up(rows, i, k, rows[i].priority, rows[i].tiebreak)


@inlined
def heap_remove(head: Records, rows: Records, i: int) -> None:
    """Remove id i from any position. The last id takes its place and moves up or down from there."""
    head[0].heap_size -= 1
    n = head[0].heap_size
    k = rows[i].heap_slot
    if k == n:
        return
    priority, tiebreak = rows[n].heap_priority, rows[n].heap_tiebreak
    if precedes(priority, tiebreak, rows[k].heap_priority, rows[k].heap_tiebreak):
        sift_up(rows, rows[n].heap_id, k, priority, tiebreak)
    else:
        sift_down(head, rows, rows[n].heap_id, k, priority, tiebreak)


@inlined
def heap_top(head: Records, rows: Records) -> int:
    """Return the id that leaves first. The heap must not be empty."""
    while True:
        i = rows[0].heap_id
        if rows[i].priority == rows[0].heap_priority and rows[i].tiebreak == rows[0].heap_tiebreak:
            return int(i)
        sift_down(head, rows, i, 0, rows[i].priority, rows[i].tiebreak)


@inlined
def heap_rebuild(head: Records, rows: Records) -> None:
    """Restore the heap order after many priorities have changed, up or down."""
    n = head[0].heap_size
    for k in range(n):
        i = rows[k].heap_id
        rows[k].heap_priority = rows[i].priority
        rows[k].heap_tiebreak = rows[i].tiebreak
    for k in range((n + 2) >> 2, -1, -1):
        if k < n:
            sift_down(head, rows, rows[k].heap_id, k, rows[k].heap_priority, rows[k].heap_tiebreak)


@inlined
def evict_until_fits(head: Records, rows: Records, size: int) -> float:
    """Evict from the top until `size` more units fit. Return the greatest priority evicted, −1 if none was."""
    highest = -1.0
    while head[0].used + size > head[0].capacity:
        victim = heap_top(head, rows)
        highest = rows[victim].priority
        heap_remove(head, rows, victim)
        evict(head, rows, victim)
    return highest


@inlined
def heap_release(head: Records, rows: Records, i: int) -> None:
    """Remove the resident i: the release kernel of policies with a heap."""
    heap_remove(head, rows, i)
    remove(head, rows, i)


class HeapPolicy(Policy):
    """Base of policies that keep their residents in the heap and evict from its top."""

    head_fields: ClassVar = [*HEAD, *HEAP_HEAD]
    row_fields: ClassVar = [*ROW, *HEAP_ROW]
    release_kernel = heap_release

    def check(self) -> None:
        super().check()
        check_heap(self.head, self.rows)


def check_heap(head: Records, rows: Records) -> None:
    """Raise CorruptState unless the heap holds exactly the residents, in heap order.

    Over columns: every snapshot that is loaded is checked, and may have a million residents.
    """
    n = int(head["heap_size"][0])
    ids = rows["heap_id"][:n].astype(np.int64)
    if len(ids) != n or n != np.count_nonzero(rows["resident"]) or not rows["resident"][ids].all():
        raise CorruptState("the heap and the residents differ")
    wrong = np.flatnonzero(rows["heap_slot"][ids] != np.arange(n))  # also where an id is in the heap twice
    if len(wrong):
        raise CorruptState(f"id {ids[wrong[0]]} has the wrong heap position")
    priority, tiebreak = rows["heap_priority"][:n], rows["heap_tiebreak"][:n]
    wrong = np.flatnonzero(_after(priority, tiebreak, rows["priority"][ids], rows["tiebreak"][ids]))
    if len(wrong):
        raise CorruptState(f"the priority of id {ids[wrong[0]]} is below the one it has in the heap")
    parents = (np.arange(1, n) - 1) >> 2
    wrong = np.flatnonzero(_after(priority[parents], tiebreak[parents], priority[1:], tiebreak[1:]))
    if len(wrong):
        raise CorruptState(f"id {ids[wrong[0] + 1]} is below an id that should leave after it")


def _after(priority: Column, tiebreak: Column, other_priority: Column, other_tiebreak: Column) -> Column:
    """Return where a pair is greater than the other pair."""
    return np.asarray((priority > other_priority) | ((priority == other_priority) & (tiebreak > other_tiebreak)))
