"""A min-heap of ids that lives in six columns of `rows`, four positions below each, and is put in order late.

    rows[i].priority   of id i; the least is to leave first
    rows[i].turn       equal priorities leave in this order
    rows[i].slot       the heap position of id i
    rows[k].holder     the id at heap position k            Invariant: rows[rows[i].slot].holder = i
    rows[k].rank,      its priority and turn when it was put there
    rows[k].since                                           Invariant: (rank, since) ≤ (priority, turn) of the holder
    head.heaped        how many ids are in the heap

A policy sets priority and turn. Of an id in the heap it may *raise* them at any time, without a word to the heap: a
hit writes two fields and moves nothing. Positions are compared by rank, which is never above the priority it stands
for; so when the holder of the top has the priority it was put there with, none can be below it, and when it has not,
it is sunk to where it belongs now and the next one is looked at (`heap_top`). An answer with ten hits between two
evictions is moved at most once, and one that never comes near the top never. The price is that one eviction may find
much left undone; each hit leaves at most one move. To lower a priority, take the id out and put it in again.

Comparing ranks, and not priorities of the holders, keeps a comparison in the row of the position it is about. Turns
are there because ties are the common case under LFU, and an order that depends on the heap's history would be no
policy anyone could reproduce.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.errors import CorruptState
from knapcache.kernel import Records, inlined
from knapcache.policy.base import HEAD, ROW, Policy, evict, remove

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
def precedes(heap_priority: float, heap_tiebreak: int, other_priority: float, other_tiebreak: int) -> bool:
    """Does the first of two ranks leave before the second?

    By | and &, which compute both sides: which child is the lesser is anyone's guess, also the processor's, and a wrong
    guess costs it more than a comparison.
    """
    return (heap_priority < other_priority) | ((heap_priority == other_priority) & (heap_tiebreak < other_tiebreak))


@inlined
def leaves_before(rows: Records, a: int, b: int) -> bool:
    """Does id a leave before id b?"""
    return bool(precedes(rows[a].priority, rows[a].tiebreak, rows[b].priority, rows[b].tiebreak))


@inlined
def set_slot(rows: Records, i: int, k: int, heap_priority: float, heap_tiebreak: int) -> None:
    """Id i stands at position k from now on."""
    rows[k].heap_priority = heap_priority
    rows[k].heap_tiebreak = heap_tiebreak
    rows[k].heap_id = i
    rows[i].heap_slot = k


@inlined
def sift_up(rows: Records, i: int, k: int, heap_priority: float, heap_tiebreak: int) -> None:
    """Move id i from position k towards the top until its parent leaves before it."""
    while k > 0:
        parent = (k - 1) >> 2
        if not precedes(heap_priority, heap_tiebreak, rows[parent].heap_priority, rows[parent].heap_tiebreak):
            break
        set_slot(rows, rows[parent].heap_id, k, rows[parent].heap_priority, rows[parent].heap_tiebreak)
        k = parent
    set_slot(rows, i, k, heap_priority, heap_tiebreak)


@inlined
def sift_down(head: Records, rows: Records, i: int, k: int, heap_priority: float, heap_tiebreak: int) -> None:
    """Move id i from position k towards the bottom until it leaves before all of its children."""
    n = head[0].heap_size
    while True:
        first = 4 * k + 1
        if first + 3 < n:
            a = first + int(
                precedes(
                    rows[first + 1].heap_priority,
                    rows[first + 1].heap_tiebreak,
                    rows[first].heap_priority,
                    rows[first].heap_tiebreak,
                )
            )
            b = first + 2
            b += int(
                precedes(
                    rows[first + 3].heap_priority,
                    rows[first + 3].heap_tiebreak,
                    rows[b].heap_priority,
                    rows[b].heap_tiebreak,
                )
            )
            c = a + (b - a) * int(
                precedes(rows[b].heap_priority, rows[b].heap_tiebreak, rows[a].heap_priority, rows[a].heap_tiebreak)
            )
        elif first < n:
            c = first
            for other in range(first + 1, n):
                if precedes(
                    rows[other].heap_priority, rows[other].heap_tiebreak, rows[c].heap_priority, rows[c].heap_tiebreak
                ):
                    c = other
        else:
            break
        if not precedes(rows[c].heap_priority, rows[c].heap_tiebreak, heap_priority, heap_tiebreak):
            break
        set_slot(rows, rows[c].heap_id, k, rows[c].heap_priority, rows[c].heap_tiebreak)
        k = c
    set_slot(rows, i, k, heap_priority, heap_tiebreak)


@inlined
def heap_add(head: Records, rows: Records, i: int) -> None:
    """Put id i in; its priority and turn are set."""
    k = head[0].heap_size
    head[0].heap_size = k + 1
    sift_up(rows, i, k, rows[i].priority, rows[i].tiebreak)


@inlined
def heap_remove(head: Records, rows: Records, i: int) -> None:
    """Take id i out, wherever it stands. The last one takes its place, and may belong above it or below."""
    head[0].heap_size -= 1
    n = head[0].heap_size
    k = rows[i].heap_slot
    if k == n:
        return
    heap_priority, heap_tiebreak = rows[n].heap_priority, rows[n].heap_tiebreak
    if precedes(heap_priority, heap_tiebreak, rows[k].heap_priority, rows[k].heap_tiebreak):
        sift_up(rows, rows[n].heap_id, k, heap_priority, heap_tiebreak)
    else:
        sift_down(head, rows, rows[n].heap_id, k, heap_priority, heap_tiebreak)


@inlined
def heap_top(head: Records, rows: Records) -> int:
    """The id that leaves first; there is at least one."""
    while True:
        i = rows[0].heap_id
        if rows[i].priority == rows[0].heap_priority and rows[i].tiebreak == rows[0].heap_tiebreak:
            return int(i)
        sift_down(head, rows, i, 0, rows[i].priority, rows[i].tiebreak)


@inlined
def heap_rebuild(head: Records, rows: Records) -> None:
    """Priorities of many or all have changed, up or down: restore the order."""
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
    """Evict from the top until `room` more units fit; returns the greatest priority evicted, −1 when none had to go."""
    highest = -1.0
    while head[0].used + size > head[0].capacity:
        victim = heap_top(head, rows)
        highest = rows[victim].priority
        heap_remove(head, rows, victim)
        evict(head, rows, victim)
    return highest


@inlined
def heap_release(head: Records, rows: Records, i: int) -> None:
    """The resident i goes: what every policy with a heap does then."""
    heap_remove(head, rows, i)
    remove(head, rows, i)


class HeapPolicy(Policy):
    """A policy whose residents are the heap, and which evicts from its top."""

    head_fields: ClassVar = [*HEAD, *HEAP_HEAD]
    row_fields: ClassVar = [*ROW, *HEAP_ROW]
    release_kernel = heap_release

    def check(self) -> None:
        super().check()
        check_heap(self.head, self.rows)


def check_heap(head: Records, rows: Records) -> None:
    """The heap holds exactly the residents, in heap order."""
    n = int(head["heap_size"][0])
    ids = rows["heap_id"][:n].tolist()
    if sorted(ids) != rows["resident"].nonzero()[0].tolist():
        raise CorruptState("the heap and the residents differ")
    for k, i in enumerate(ids):
        if rows["heap_slot"][i] != k:
            raise CorruptState(f"id {i} does not know its place in the heap")
        heap_priority, heap_tiebreak = rows["heap_priority"][k], rows["heap_tiebreak"][k]
        if (heap_priority, heap_tiebreak) > (rows["priority"][i], rows["tiebreak"][i]):
            raise CorruptState(f"id {i} leaves earlier than the heap was told")
        parent = (k - 1) >> 2
        if k and (heap_priority, heap_tiebreak) < (rows["heap_priority"][parent], rows["heap_tiebreak"][parent]):
            raise CorruptState(f"id {i} stands below an id that should leave after it")
