"""ARC (Megiddo, Modha, FAST 2003: "ARC: A Self-Tuning, Low Overhead Replacement Cache"), adapted to sizes.

    T1, T2   the cache: asked for once, and more than once, lately
    B1, B2   ghosts of what left T1 and T2
    p        how large T1 should be: a request for a ghost of B1 says "larger", one of B2 "smaller"

The paper counts pages. Here every count is a sum of sizes, so:

    |T1| + |T2| ≤ c         evicting goes on until the newcomer fits: none, one or many leave
    |T1| + |B1| ≤ c         trimmed at the end, by the oldest of B1. In pages this is cases A and B of the paper, which
    all four ≤ 2c           make room for one page beforehand; then the oldest of B2
    p ± δ · s               δ = max(|B2|/|B1|, 1), or its inverse, in units of the size s of the answer asked for, as a
                            page is the unit of the paper; one byte at a time p would hardly move

libCacheSim reads the paper otherwise where sizes differ, and `by_bytes` decides as it does, hit for hit: p moves by δ
bytes, and each eviction for an answer that is no ghost drops one ghost, whatever the sizes of the two. With equal sizes
both readings are the paper's ARC. Of the eight cells of tests/policy/test_against_libcachesim.py ours misses less in
four, by up to 4.1 points, up to 0.5 points more in three and 1.2 in one; and its ghosts have a bound. So it is the
default.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, kernel
from knapcache.policy.contract import HEAD, ROW, Policy, enter, evict, leave, settling
from knapcache.policy.lists import LISTS_ROW, check_lists, clear_lists, put, take, total
from knapcache.policy.queue import oldest

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
    unit = 1 if h.by_bytes else room
    if home == B1:  # case II
        h.p = min(h.p + max(total(rows, B2) / total(rows, B1), 1.0) * unit, 1.0 * h.capacity)
    elif home == B2:  # case III
        h.p = max(h.p - max(total(rows, B1) / total(rows, B2), 1.0) * unit, 0.0)
    if home:
        take(rows, i)
    while h.used + room > h.capacity:
        if h.by_bytes and not home:
            replace_one_for_one(head, rows, room)
        else:
            replace(head, rows, home == B2)
    enter(head, rows, i, room)
    put(rows, i, T2 if home else T1)
    if not h.by_bytes:
        trim_ghosts(head, rows)


@kernel
def trim_ghosts(head: Records, rows: Records) -> None:
    """Cases A and B, afterwards: |T1| + |B1| ≤ c, and all four ≤ 2c."""
    h = head[0]
    while total(rows, T1) + total(rows, B1) > h.capacity:
        take(rows, oldest(rows, B1))
    while h.used + total(rows, B1) + total(rows, B2) > 2 * h.capacity:
        take(rows, oldest(rows, B2))


@kernel
def replace_one_for_one(head: Records, rows: Records, room: int) -> None:
    """Case IV of libCacheSim: an answer for a ghost. Where B1 has none to give, the oldest of T1 leaves no ghost."""
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

    head_fields: ClassVar = [*HEAD, ("p", "f8"), ("by_bytes", "?")]
    row_fields: ClassVar = ROW + LISTS_ROW
    arrive_kernel = arrive
    settle_kernel = settling(admit, release)
    release_kernel = release
    spare = 4

    def __init__(self, capacity: int, ids: int, *, by_bytes: bool = False) -> None:
        """`by_bytes`: as libCacheSim does, see the top."""
        super().__init__(capacity, ids)
        self.head["by_bytes"] = by_bytes
        clear_lists(self.rows, 4)

    def check(self) -> None:
        super().check()
        check_lists(self.rows, 4, resident=(T1, T2))
        if self.head["by_bytes"][0]:
            return  # its ghosts have no bound
        t1, t2, b1, b2 = (int(self.rows["room"][-k]) for k in (T1, T2, B1, B2))
        self._same("T1 ∪ B1 within c", t1 + b1 <= self.capacity, True)
        self._same("all lists within 2c", t1 + t2 + b1 + b2 <= 2 * self.capacity, True)
