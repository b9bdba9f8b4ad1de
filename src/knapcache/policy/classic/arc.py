"""ARC (Megiddo, Modha, FAST 2003: "ARC: A Self-Tuning, Low Overhead Replacement Cache"), adapted to sizes.

    T1, T2   the cache: asked for once, and more than once, lately
    B1, B2   ghosts of what left T1 and T2
    p        how large T1 should be: a request for a ghost of B1 says "larger", one of B2 "smaller"

The paper counts pages. Here every count is a sum of sizes, read as libCacheSim reads it, whose decisions these are, hit
for hit:

    |T1| + |T2| ≤ c         evicting goes on until the newcomer fits: none, one or many leave
    p ± δ                   δ = max(|B2|/|B1|, 1), or its inverse, in units of size
    case IV                 each eviction for an answer that is no ghost drops one ghost, whatever the sizes of the two

Where every size is 1 this is the paper's ARC. Where sizes differ, one for one does not keep the ghosts within the
paper's |T1| + |B1| ≤ c, nor all four within 2c. Rejected: steps of δ times the size asked for, and ghosts trimmed to
those bounds. That misses less on some traces and more on others, and is an ARC that nobody else has.
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
    """Case IV: an answer for a ghost. Where B1 has none to give, the oldest of T1 leaves no ghost."""
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
    """REPLACE: the oldest of T1 or of T2 becomes a ghost."""
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
    """Two LRU queues, their ghosts, and a border between them that learns."""

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
        self._same("p within 0 … c", bool(0.0 <= self.head["p"][0] <= self.capacity), True)
