"""The exact Oracle for up to twelve items, by enumerating all subsets.

For so few items this is the fastest method. It compiles in a fraction of a second, while the solver of exact.py takes
many seconds, so a policy that only solves tiny instances does not wait for that.
"""

from __future__ import annotations

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

MAX_ITEMS = 12


@kernel
def select_tiny(values: Floats, sizes: Ints, capacity: int, chosen: Flags) -> float:
    """Write the best set of at most MAX_ITEMS items into `chosen`; return its value. Ties: first in binary order."""
    n = len(values)
    best, best_set = -1.0, 0
    for subset in range(1 << n):
        value, size = 0.0, 0
        for k in range(n):
            if subset >> k & 1:
                value += values[k]
                size += sizes[k]
        if size <= capacity and value > best:
            best, best_set = value, subset
    for k in range(n):
        chosen[k] = best_set >> k & 1 == 1
    return best
