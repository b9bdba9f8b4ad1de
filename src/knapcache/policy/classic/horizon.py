"""Horizon: discounted frequency times cost per size, with one fixed half-life.

A request counts half as much after every H further requests:

    F(q) ← F(q) · 2^(−Δt/H) + 1            Δt requests after the last one for q

The value density of an answer is F·Ĉ/S, with Ĉ the mean cost paid and S the size. Between two requests for q its
density decays by the same factor as all others. So the order of two answers without requests never changes, and the
time-free key

    log2(F·Ĉ/S) + t_last/H

can be computed once per request and kept in a heap. H → 0 is LRU; H → ∞ is frequency · cost / size. F survives
eviction.

With `beats_sum` an answer is admitted only if its value is at least the sum of its victims' values.
"""

from __future__ import annotations

import math
from typing import ClassVar

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, inlined
from knapcache.policy.base import insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release, heap_remove, heap_top


@inlined
def key(head: Records, rows: Records, i: int) -> float:
    """Return log2(F·Ĉ/S) + t_last/H, or −∞ if the answer costs nothing."""
    q = rows[i]
    density = q.frequency * (q.paid / q.misses) / q.entry_size
    return math.log2(density) + q.tiebreak / head[0].half_life if density > 0.0 else -math.inf


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    q = rows[i]
    q.frequency = q.frequency * 2.0 ** ((q.tiebreak - head[0].t) / head[0].half_life) + 1.0
    q.tiebreak = head[0].t  # t_last
    if not q.resident:
        return False
    q.priority = key(head, rows, i)
    return True


@inlined
def value_now(head: Records, priority: float, size: int) -> float:
    """Return the current value of an answer: size times the density that its priority is the logarithm of."""
    return size * 2.0 ** (priority - head[0].t / head[0].half_life)  # type: ignore[no-any-return]


@inlined
def beats_sum(head: Records, rows: Records, i: int, size: int) -> bool:
    """Return whether i is worth as much as all its victims. They are popped from the heap, and pushed back."""
    gain = value_now(head, rows[i].priority, size)
    free = head[0].capacity - head[0].used
    victims = 0
    # The victim column is free to use until settle reports.
    while free < size and gain >= 0.0:
        victim = heap_top(head, rows)
        gain -= value_now(head, rows[victim].priority, rows[victim].entry_size)
        heap_remove(head, rows, victim)
        rows[victims].victim = victim
        victims += 1
        free += rows[victim].entry_size
    for k in range(victims):
        heap_add(head, rows, rows[k].victim)
    return bool(gain >= 0.0)


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    q = rows[i]
    q.paid += cost
    q.misses += 1
    q.entry_size = size
    q.priority = key(head, rows, i)
    if head[0].beats_sum and not beats_sum(head, rows, i, size):
        return
    evict_until_fits(head, rows, size)
    insert(head, rows, i, size)
    heap_add(head, rows, i)


class Horizon(HeapPolicy):
    """Discounted frequency times cost per size."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("half_life", "f8"), ("beats_sum", "?")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("frequency", "f8"), ("misses", "i8"), ("paid", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)

    def __init__(self, capacity: int, ids: int, *, half_life: float = 4000.0, beats_sum: bool = False) -> None:
        """`half_life` in requests, above 0; `beats_sum`: see the module docstring."""
        super().__init__(capacity, ids)
        if not 0.0 < half_life < math.inf:
            raise InvalidInput(f"half_life must be above 0 and finite, not {half_life}")
        self.head["half_life"], self.head["beats_sum"] = half_life, beats_sum
