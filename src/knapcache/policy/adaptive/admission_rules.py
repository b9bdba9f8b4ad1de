"""Whom to let in when others would have to go for it: three tempers, for policies whose residents are a heap.

    open     every newcomer comes in
    fair     it must be denser than each of those who would have to go
    choosy   it must be worth more than all of them together

Keys are log2 of a density that halves with every half-life, plus the time in half-lives; so what an answer of some room
is worth *now* is room · 2^(key − now), with now in half-lives too.
"""

from __future__ import annotations

from knapcache.kernel import Records, inlined
from knapcache.policy.structures.heap import heap_add, heap_remove, heap_top

ALWAYS, BEATS_EACH, BEATS_SUM = 0, 1, 2


@inlined
def value_now(key: float, size: int, now: float) -> float:
    """What is kept by `key`, at this moment."""
    return size * 2.0 ** (key - now)  # type: ignore[no-any-return]


@inlined
def newcomer_wins(head: Records, rows: Records, i: int, size: int, rule: int, now: float) -> bool:
    """Would the residents make way for i? Those who would have to go leave the heap to be looked at, and come back."""
    if rule == ALWAYS:
        return True
    h = head[0]
    gain = value_now(rows[i].priority, size, now) if rule == BEATS_SUM else 0.0
    free = h.capacity - h.used
    taken = 0
    # The column of victims is ours until settle reports.
    while free < size and gain >= 0.0:
        victim = heap_top(head, rows)
        if rule == BEATS_SUM:
            gain -= value_now(rows[victim].priority, rows[victim].entry_size, now)
        elif rows[victim].priority > rows[i].priority:
            gain = -1.0
        heap_remove(head, rows, victim)
        rows[taken].victim = victim
        taken += 1
        free += rows[victim].entry_size
    for k in range(taken):
        heap_add(head, rows, rows[k].victim)
    return bool(gain >= 0.0)
