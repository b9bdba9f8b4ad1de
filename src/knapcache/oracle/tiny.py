"""The exact Oracle for a handful of items: all subsets.

Up to twelve items this is faster than anything clever, and compiles in a fraction of a second where the solver of
exact.py takes many; so a policy that only ever asks about a few answers need not wait for it.
"""

from __future__ import annotations

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

MAX_ITEMS = 12


@kernel
def select_tiny(values: Floats, sizes: Ints, capacity: int, chosen: Flags) -> float:
    """Write the best set of at most MOST items into `chosen`; returns its value. Ties: the first in binary order."""
    n = len(values)
    best, best_set = -1.0, 0
    for subset in range(1 << n):
        value, room = 0.0, 0
        for k in range(n):
            if subset >> k & 1:
                value += values[k]
                room += sizes[k]
        if room <= capacity and value > best:
            best, best_set = value, subset
    for k in range(n):
        chosen[k] = best_set >> k & 1 == 1
    return best
