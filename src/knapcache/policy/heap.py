"""A binary min-heap of ids that lives in three columns of `rows`.

    rows[i].priority   of id i; the least is on top
    rows[k].heap       the id at heap position k
    rows[i].slot       the heap position of id i        Invariant: rows[rows[i].slot].heap = i
    head.heaped        how many ids are in the heap

Equal priorities leave in the order of `rows[i].turn`, which the policy sets: ties are the common case under
LFU, and an order that depends on the heap's history would be no policy anyone could reproduce.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.errors import CorruptState
from knapcache.kernel import Records, kernel
from knapcache.policy.contract import HEAD, ROW, Policy, evict, leave

HEAP_HEAD = [("heaped", "i8")]
HEAP_ROW = [("priority", "f8"), ("turn", "i8"), ("heap", "i8"), ("slot", "i8")]


@kernel
def before(rows: Records, a: int, b: int) -> bool:
    """Does id a leave before id b?"""
    if rows[a].priority != rows[b].priority:
        return bool(rows[a].priority < rows[b].priority)
    return bool(rows[a].turn < rows[b].turn)


@kernel
def sift_up(rows: Records, i: int, k: int) -> None:
    """Move id i from position k towards the top until its parent leaves before it."""
    while k > 0:
        parent = rows[(k - 1) >> 1].heap
        if not before(rows, i, parent):
            break
        rows[k].heap = parent
        rows[parent].slot = k
        k = (k - 1) >> 1
    rows[k].heap = i
    rows[i].slot = k


@kernel
def sift_down(head: Records, rows: Records, i: int, k: int) -> None:
    """Move id i from position k towards the bottom until it leaves before both children."""
    n = head[0].heaped
    while True:
        c = 2 * k + 1
        if c >= n:
            break
        child = rows[c].heap
        if c + 1 < n and before(rows, rows[c + 1].heap, child):
            c += 1
            child = rows[c].heap
        if not before(rows, child, i):
            break
        rows[k].heap = child
        rows[child].slot = k
        k = c
    rows[k].heap = i
    rows[i].slot = k


@kernel
def heap_add(head: Records, rows: Records, i: int) -> None:
    """Put id i in; its priority and turn are set."""
    k = head[0].heaped
    head[0].heaped = k + 1
    sift_up(rows, i, k)


@kernel
def heap_raise(head: Records, rows: Records, i: int) -> None:
    """Id i now leaves later than before: restore the order below it."""
    sift_down(head, rows, i, rows[i].slot)


@kernel
def heap_remove(head: Records, rows: Records, i: int) -> None:
    """Take id i out, wherever it stands."""
    head[0].heaped -= 1
    n = head[0].heaped
    k = rows[i].slot
    if k == n:
        return
    last = rows[n].heap
    if before(rows, last, i):
        sift_up(rows, last, k)
    else:
        sift_down(head, rows, last, k)


@kernel
def make_room(head: Records, rows: Records, room: int) -> float:
    """Evict from the top until `room` more units fit; returns the greatest priority evicted, −1 when none had to go."""
    highest = -1.0
    while head[0].used + room > head[0].capacity:
        victim = rows[0].heap
        highest = rows[victim].priority
        heap_remove(head, rows, victim)
        evict(head, rows, victim)
    return highest


@kernel
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
    ids = rows["heap"][:n].tolist()
    if sorted(ids) != rows["resident"].nonzero()[0].tolist():
        raise CorruptState("the heap and the residents differ")
    for k, i in enumerate(ids):
        if rows["slot"][i] != k:
            raise CorruptState(f"id {i} does not know its place in the heap")
        if k and before(rows, i, ids[(k - 1) >> 1]):
            raise CorruptState(f"id {i} stands below an id that should leave after it")
