"""W-TinyLFU (Einziger, Friedman, Manes 2017: "TinyLFU: A Highly Efficient Cache Admission Policy"), for answers
that differ in size (Einziger, Eytan, Friedman, Manes 2022: "Lightweight Robust Size Aware Cache Management").

    window      1 % of the cache, LRU: newcomers, so that a burst of requests hits
    main        the rest, segmented LRU: *probation*, and *protected* (80 % of main) for answers hit in main
    filter      an answer evicted from the window enters main only if it is requested as often as its victims

Frequencies come from the sketch in sketch.py; W, the additions between two halvings, is ten times the number of cached
answers. Sizes are handled as in the second paper, "aggregated victims": a candidate may need several victims, from the
old end of probation and then of protected. It is admitted if its own frequency is not below the sum of theirs; the
comparison stops as soon as it is. Victims that survive a rejected candidate move to the new end of protected, so that
the next candidate meets others. An answer too large for the window is a candidate at once; one too large for main is
rejected.

Caffeine and the first paper reject a candidate as frequent as its victim and leave the victim where it is. Caffeine
also adapts the size of the window (Einziger et al. 2018: "Adaptive Software Cache Management"); here it is fixed, as in
both papers. Cost is ignored.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.linked_list import oldest
from knapcache.policy.structures.lists import LISTS_ROW, check_lists, clear_lists, list_add, list_remove, list_size
from knapcache.policy.structures.sketch import SKETCH_HEAD, SKETCH_ROW, count, estimate

WINDOW, PROBATION, PROTECTED = 1, 2, 3


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    count(head, rows, len(rows) - 3, i, 10 * max(head[0].resident_count, 1))
    if not rows[i].resident:
        return False
    list_number = rows[i].list_number
    list_remove(rows, i)
    if list_number == WINDOW:
        list_add(rows, i, WINDOW)
    else:
        protect(head, rows, i)
    return True


@kernel
def protect(head: Records, rows: Records, i: int) -> None:
    """Append i, which is in no list, to protected, and demote its oldest answers to probation until it fits."""
    list_add(rows, i, PROTECTED)
    while list_size(rows, PROTECTED) > head[0].protected:
        demoted = oldest(rows, PROTECTED)
        list_remove(rows, demoted)
        list_add(rows, demoted, PROBATION)


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - every policy has the same signature
    if size > head[0].window:
        rows[i].entry_size = size
        if candidate_wins(head, rows, i):
            insert_into(head, rows, i, size, PROBATION)
        return
    while list_size(rows, WINDOW) + size > head[0].window:
        candidate = oldest(rows, WINDOW)
        list_remove(rows, candidate)
        if candidate_wins(head, rows, candidate):
            list_add(rows, candidate, PROBATION)
        else:
            evict(head, rows, candidate)
            head[0].resident_count -= 1
    insert_into(head, rows, i, size, WINDOW)


@kernel
def candidate_wins(head: Records, rows: Records, i: int) -> bool:
    """Return whether i is requested as often as its victims in main. If so, evict them; if not, protect them."""
    free = head[0].main - list_size(rows, PROBATION) - list_size(rows, PROTECTED)
    if rows[i].entry_size > head[0].main:
        return False
    frequency = estimate(head, rows, len(rows) - 3, i)
    compared, victims = 0, 0
    victim = oldest(rows, PROBATION)
    while free < rows[i].entry_size:
        if victim == len(rows) - PROBATION:  # the sentinel of that list
            victim = oldest(rows, PROTECTED)
        compared += 1
        victims += estimate(head, rows, len(rows) - 3, victim)
        if frequency < victims:
            for _ in range(compared):
                victim = first_victim(rows)
                list_remove(rows, victim)
                protect(head, rows, victim)
            return False
        free += rows[victim].entry_size
        victim = int(rows[victim].newer)
    for _ in range(compared):
        victim = first_victim(rows)
        list_remove(rows, victim)
        evict(head, rows, victim)
        head[0].resident_count -= 1
    return True


@kernel
def first_victim(rows: Records) -> int:
    """Return the oldest answer of probation, or of protected if probation is empty."""
    return oldest(rows, PROBATION if list_size(rows, PROBATION) > 0 else PROTECTED)


@kernel
def insert_into(head: Records, rows: Records, i: int, size: int, k: int) -> None:
    """Make i resident in list k, where it fits."""
    insert(head, rows, i, size)
    list_add(rows, i, k)
    head[0].resident_count += 1


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    list_remove(rows, i)
    remove(head, rows, i)
    head[0].resident_count -= 1


class WTinyLFU(Policy):
    """A window LRU, a segmented LRU, and a frequency filter between them."""

    head_fields: ClassVar = [
        *HEAD,
        *SKETCH_HEAD,
        ("window", "i8"),
        ("main", "i8"),
        ("protected", "i8"),
        ("resident_count", "i8"),
    ]
    row_fields: ClassVar = [*ROW, *LISTS_ROW, *SKETCH_ROW]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release
    spare = 3

    def __init__(self, capacity: int, ids: int, *, window: float = 0.01, protected: float = 0.8) -> None:
        """`window`: its share of the cache, 0 … 1; `protected`: its share of main, 0 … 1."""
        super().__init__(capacity, ids)
        for name, share in (("window", window), ("protected", protected)):
            if not 0.0 <= share <= 1.0:
                raise InvalidInput(f"{name} must be in 0 … 1, not {share}")
        self.head["window"] = int(capacity * window)
        self.head["main"] = capacity - int(capacity * window)
        self.head["protected"] = int(self.head["main"][0] * protected)
        clear_lists(self.rows, 3)

    def check(self) -> None:
        super().check()
        check_lists(self.rows, 3, resident=(WINDOW, PROBATION, PROTECTED))
        self._expect("resident_count", int(self.head["resident_count"][0]), len(self.residents))
        window, probation, protected = (int(self.rows["entry_size"][-k]) for k in (WINDOW, PROBATION, PROTECTED))
        self._expect("window within its capacity", window <= self.head["window"][0], True)
        self._expect("main within its capacity", probation + protected <= self.head["main"][0], True)
        self._expect("protected within its capacity", protected <= self.head["protected"][0], True)
