"""Admission rules: whether a newcomer is admitted when residents would be evicted for it.

    ALWAYS       always
    BEATS_EACH   if its key is at least that of each victim
    BEATS_SUM    if its value is at least the sum of the victims' values

For policies that keep their residents in a heap. A key is log2 of a density that halves with every half-life, plus the
time in half-lives. So the value of an answer *now* is size · 2^(key − now), with now in half-lives too.
"""

from __future__ import annotations

from knapcache.kernel import Records, inlined
from knapcache.policy.structures.heap import heap_add, heap_remove, heap_top

ALWAYS, BEATS_EACH, BEATS_SUM = 0, 1, 2


@inlined
def value_now(key: float, size: int, now: float) -> float:
    """Return the current value of an answer with this key and size."""
    return size * 2.0 ** (key - now)  # type: ignore[no-any-return]


@inlined
def newcomer_wins(head: Records, rows: Records, i: int, size: int, rule: int, now: float) -> bool:
    """Return whether `rule` admits the newcomer i. Victims are popped from the heap to be examined, and pushed back."""
    if rule == ALWAYS:
        return True
    h = head[0]
    gain = value_now(rows[i].priority, size, now) if rule == BEATS_SUM else 0.0
    free = h.capacity - h.used
    victims = 0
    # The victim column is free to use until settle reports.
    while free < size and gain >= 0.0:
        victim = heap_top(head, rows)
        if rule == BEATS_SUM:
            gain -= value_now(rows[victim].priority, rows[victim].entry_size, now)
        elif rows[victim].priority > rows[i].priority:
            gain = -1.0
        heap_remove(head, rows, victim)
        rows[victims].victim = victim
        victims += 1
        free += rows[victim].entry_size
    for k in range(victims):
        heap_add(head, rows, rows[k].victim)
    return bool(gain >= 0.0)
