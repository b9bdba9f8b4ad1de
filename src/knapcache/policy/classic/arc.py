"""ARC (Megiddo, Modha, FAST 2003: "ARC: A Self-Tuning, Low Overhead Replacement Cache"), adapted to sizes.

    T1, T2   the cache: answers requested once, and more than once, recently
    B1, B2   ghosts of answers evicted from T1 and T2
    p        target size of T1: a request for a ghost of B1 raises it, one for a ghost of B2 lowers it

The paper counts pages. Here every count is a sum of sizes, as in libCacheSim, whose decisions these match hit for hit:

    |T1| + |T2| ≤ c         eviction continues until the newcomer fits: none, one or many are evicted
    p ± δ                   δ = max(|B2|/|B1|, 1), or its inverse, in units of size
    case IV                 each eviction for an answer that is not a ghost drops one ghost, whatever their sizes

Where every size is 1 this is the paper's ARC. Where sizes differ, dropping one ghost per eviction does not keep the
paper's bounds |T1| + |B1| ≤ c and 2c for all four lists. Rejected: steps of δ times the requested size, and ghosts
trimmed to those bounds. That misses less on some traces and more on others, and no other implementation does it.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, kernel
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.linked_list import oldest
from knapcache.policy.structures.lists import LISTS_ROW, check_lists, clear_lists, list_add, list_remove, list_size

T1, T2, B1, B2 = 1, 2, 3, 4


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    if not rows[i].resident:
        return False
    list_remove(rows, i)
    list_add(rows, i, T2)  # case I
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001
    h = head[0]
    list_number = rows[i].list_number
    if list_number == B1:  # case II
        h.p = min(h.p + max(list_size(rows, B2) / list_size(rows, B1), 1.0), 1.0 * h.capacity)
    elif list_number == B2:  # case III
        h.p = max(h.p - max(list_size(rows, B1) / list_size(rows, B2), 1.0), 0.0)
    if list_number:
        list_remove(rows, i)
    while h.used + size > h.capacity:
        if list_number:
            replace(head, rows, list_number == B2)
        else:
            replace_one_for_one(head, rows, size)
    insert(head, rows, i, size)
    list_add(rows, i, T2 if list_number else T1)


@kernel
def replace_one_for_one(head: Records, rows: Records, size: int) -> None:
    """Case IV: evict one answer and drop one ghost. If case A finds B1 empty, evict the oldest of T1 without a
    ghost.
    """
    h = head[0]
    if list_size(rows, T1) + list_size(rows, B1) + size > h.capacity:  # case A
        if list_size(rows, B1) == 0:
            victim = oldest(rows, T1)
            list_remove(rows, victim)
            evict(head, rows, victim)
            return
        list_remove(rows, oldest(rows, B1))
    elif h.used + list_size(rows, B1) + list_size(rows, B2) >= 2 * h.capacity and list_size(rows, B2) > 0:  # case B
        list_remove(rows, oldest(rows, B2))
    replace(head, rows, False)


@kernel
def replace(head: Records, rows: Records, in_b2: bool) -> None:
    """REPLACE: evict the oldest answer of T1 or T2 and keep its ghost."""
    small = list_size(rows, T1)
    first = small > head[0].p or (in_b2 and small == head[0].p)
    k = T1 if small > 0 and (first or list_size(rows, T2) == 0) else T2
    victim = oldest(rows, k)
    list_remove(rows, victim)
    evict(head, rows, victim)
    list_add(rows, victim, B1 if k == T1 else B2)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    list_remove(rows, i)
    remove(head, rows, i)


class ARC(Policy):
    """Adaptive replacement cache: two LRU lists, their ghosts, and a learned target size."""

    head_fields: ClassVar = [*HEAD, ("p", "f8")]
    row_fields: ClassVar = ROW + LISTS_ROW
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release
    spare = 4

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        clear_lists(self.rows, 4)

    def check(self) -> None:
        super().check()
        check_lists(self.rows, 4, resident=(T1, T2))
        self._expect("p within 0 … c", bool(0.0 <= self.head["p"][0] <= self.capacity), True)
