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
from knapcache.policy.base import HEAD, ROW, Policy, enter, evict, leave, settling
from knapcache.policy.structures.linked_list import oldest
from knapcache.policy.structures.lists import LISTS_ROW, check_lists, clear_lists, put, take, total

T1, T2, B1, B2 = 1, 2, 3, 4


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    if not rows[i].resident:
        return False
    take(rows, i)
    put(rows, i, T2)  # case I
    return True


@kernel
def admit(head: Records, rows: Records, i: int, room: int, cost: float) -> None:  # noqa: ARG001
    h = head[0]
    home = rows[i].home
    if home == B1:  # case II
        h.p = min(h.p + max(total(rows, B2) / total(rows, B1), 1.0), 1.0 * h.capacity)
    elif home == B2:  # case III
        h.p = max(h.p - max(total(rows, B1) / total(rows, B2), 1.0), 0.0)
    if home:
        take(rows, i)
    while h.used + room > h.capacity:
        if home:
            replace(head, rows, home == B2)
        else:
            replace_one_for_one(head, rows, room)
    enter(head, rows, i, room)
    put(rows, i, T2 if home else T1)


@kernel
def replace_one_for_one(head: Records, rows: Records, room: int) -> None:
    """Case IV: an answer for a ghost. Where B1 has none to give, the oldest of T1 leaves no ghost."""
    h = head[0]
    if total(rows, T1) + total(rows, B1) + room > h.capacity:  # case A
        if total(rows, B1) == 0:
            victim = oldest(rows, T1)
            take(rows, victim)
            evict(head, rows, victim)
            return
        take(rows, oldest(rows, B1))
    elif h.used + total(rows, B1) + total(rows, B2) >= 2 * h.capacity and total(rows, B2) > 0:  # case B
        take(rows, oldest(rows, B2))
    replace(head, rows, False)


@kernel
def replace(head: Records, rows: Records, in_b2: bool) -> None:
    """REPLACE: the oldest of T1 or of T2 becomes a ghost."""
    small = total(rows, T1)
    first = small > head[0].p or (in_b2 and small == head[0].p)
    k = T1 if small > 0 and (first or total(rows, T2) == 0) else T2
    victim = oldest(rows, k)
    take(rows, victim)
    evict(head, rows, victim)
    put(rows, victim, B1 if k == T1 else B2)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    take(rows, i)
    leave(head, rows, i)


class ARC(Policy):
    """Two LRU queues, their ghosts, and a border between them that learns."""

    head_fields: ClassVar = [*HEAD, ("p", "f8")]
    row_fields: ClassVar = ROW + LISTS_ROW
    arrive_kernel = arrive
    settle_kernel = settling(admit, release)
    release_kernel = release
    spare = 4

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        clear_lists(self.rows, 4)

    def check(self) -> None:
        super().check()
        check_lists(self.rows, 4, resident=(T1, T2))
        self._same("p within 0 … c", bool(0.0 <= self.head["p"][0] <= self.capacity), True)
