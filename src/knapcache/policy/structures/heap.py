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
from knapcache.policy.base import HEAD, ROW, Policy, evict, leave

HEAP_HEAD = [("heaped", "i8")]
HEAP_ROW = [
    ("priority", "f8"),
    ("turn", "i8"),
    ("rank", "f8"),
    ("since", "i8"),
    ("holder", "u4"),  # ids are at most 2^31: narrow rows, fewer cache lines
    ("slot", "u4"),
]


@inlined
def earlier(rank: float, since: int, other_rank: float, other_since: int) -> bool:
    """Does the first of two ranks leave before the second?

    By | and &, which compute both sides: which child is the lesser is anyone's guess, also the processor's, and a wrong
    guess costs it more than a comparison.
    """
    return (rank < other_rank) | ((rank == other_rank) & (since < other_since))


@inlined
def before(rows: Records, a: int, b: int) -> bool:
    """Does id a leave before id b?"""
    return bool(earlier(rows[a].priority, rows[a].turn, rows[b].priority, rows[b].turn))


@inlined
def place(rows: Records, i: int, k: int, rank: float, since: int) -> None:
    """Id i stands at position k from now on."""
    rows[k].rank = rank
    rows[k].since = since
    rows[k].holder = i
    rows[i].slot = k


@inlined
def sift_up(rows: Records, i: int, k: int, rank: float, since: int) -> None:
    """Move id i from position k towards the top until its parent leaves before it."""
    while k > 0:
        parent = (k - 1) >> 2
        if not earlier(rank, since, rows[parent].rank, rows[parent].since):
            break
        place(rows, rows[parent].holder, k, rows[parent].rank, rows[parent].since)
        k = parent
    place(rows, i, k, rank, since)


@inlined
def sift_down(head: Records, rows: Records, i: int, k: int, rank: float, since: int) -> None:
    """Move id i from position k towards the bottom until it leaves before all of its children."""
    n = head[0].heaped
    while True:
        first = 4 * k + 1
        if first + 3 < n:
            a = first + int(earlier(rows[first + 1].rank, rows[first + 1].since, rows[first].rank, rows[first].since))
            b = first + 2
            b += int(earlier(rows[first + 3].rank, rows[first + 3].since, rows[b].rank, rows[b].since))
            c = a + (b - a) * int(earlier(rows[b].rank, rows[b].since, rows[a].rank, rows[a].since))
        elif first < n:
            c = first
            for other in range(first + 1, n):
                if earlier(rows[other].rank, rows[other].since, rows[c].rank, rows[c].since):
                    c = other
        else:
            break
        if not earlier(rows[c].rank, rows[c].since, rank, since):
            break
        place(rows, rows[c].holder, k, rows[c].rank, rows[c].since)
        k = c
    place(rows, i, k, rank, since)


@inlined
def heap_add(head: Records, rows: Records, i: int) -> None:
    """Put id i in; its priority and turn are set."""
    k = head[0].heaped
    head[0].heaped = k + 1
    sift_up(rows, i, k, rows[i].priority, rows[i].turn)


@inlined
def heap_remove(head: Records, rows: Records, i: int) -> None:
    """Take id i out, wherever it stands. The last one takes its place, and may belong above it or below."""
    head[0].heaped -= 1
    n = head[0].heaped
    k = rows[i].slot
    if k == n:
        return
    rank, since = rows[n].rank, rows[n].since
    if earlier(rank, since, rows[k].rank, rows[k].since):
        sift_up(rows, rows[n].holder, k, rank, since)
    else:
        sift_down(head, rows, rows[n].holder, k, rank, since)


@inlined
def heap_top(head: Records, rows: Records) -> int:
    """The id that leaves first; there is at least one."""
    while True:
        i = rows[0].holder
        if rows[i].priority == rows[0].rank and rows[i].turn == rows[0].since:
            return int(i)
        sift_down(head, rows, i, 0, rows[i].priority, rows[i].turn)


@inlined
def heap_rebuild(head: Records, rows: Records) -> None:
    """Priorities of many or all have changed, up or down: restore the order."""
    n = head[0].heaped
    for k in range(n):
        i = rows[k].holder
        rows[k].rank = rows[i].priority
        rows[k].since = rows[i].turn
    for k in range((n + 2) >> 2, -1, -1):
        if k < n:
            sift_down(head, rows, rows[k].holder, k, rows[k].rank, rows[k].since)


@inlined
def make_room(head: Records, rows: Records, room: int) -> float:
    """Evict from the top until `room` more units fit; returns the greatest priority evicted, −1 when none had to go."""
    highest = -1.0
    while head[0].used + room > head[0].capacity:
        victim = heap_top(head, rows)
        highest = rows[victim].priority
        heap_remove(head, rows, victim)
        evict(head, rows, victim)
    return highest


@inlined
def heap_release(head: Records, rows: Records, i: int) -> None:
    """The resident i goes: what every policy with a heap does then."""
    heap_remove(head, rows, i)
    leave(head, rows, i)


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
    n = int(head["heaped"][0])
    ids = rows["holder"][:n].tolist()
    if sorted(ids) != rows["resident"].nonzero()[0].tolist():
        raise CorruptState("the heap and the residents differ")
    for k, i in enumerate(ids):
        if rows["slot"][i] != k:
            raise CorruptState(f"id {i} does not know its place in the heap")
        rank, since = rows["rank"][k], rows["since"][k]
        if (rank, since) > (rows["priority"][i], rows["turn"][i]):
            raise CorruptState(f"id {i} leaves earlier than the heap was told")
        parent = (k - 1) >> 2
        if k and (rank, since) < (rows["rank"][parent], rows["since"][parent]):
            raise CorruptState(f"id {i} stands below an id that should leave after it")
