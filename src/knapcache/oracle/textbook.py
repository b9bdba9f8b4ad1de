"""The knapsack as every textbook has it: the judge of the fast solver.

    best(j, c) = max( best(j−1, c),  w_j + best(j−1, c − S_j) )        the most the first j items can be worth in room c

O(N·M) time and memory whatever the values are, so only for small capacities. It shares no idea with `exact`: no
density, no bound, no rounding beyond the addition of values (integer values are added without any).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle import problem
from knapcache.oracle.problem import Flags, Floats, Ints


def textbook(values: Any, sizes: Any, capacity: int) -> tuple[Flags, float]:
    """An optimal set, as one flag an item, and its value."""
    given = problem.read(values, sizes, capacity)
    room = min(int(given.capacity), int(given.sizes.sum()))
    chosen = np.zeros(given.values.shape[0], np.bool_)
    _fill_table(given.values, given.sizes, room, chosen)
    return chosen, float(given.values[chosen].sum())


@kernel
def _fill_table(values: Floats, sizes: Ints, capacity: int, chosen: Flags) -> None:
    n = values.shape[0]
    best = np.zeros(capacity + 1, np.float64)
    taken = np.zeros((n, capacity + 1), np.bool_)
    for j in range(n):
        # Downwards, so that best[c − S_j] is still that of the items before j.
        for c in range(capacity, sizes[j] - 1, -1):
            candidate = values[j] + best[c - sizes[j]]
            if candidate > best[c]:
                best[c] = candidate
                taken[j, c] = True
    c = capacity
    for j in range(n - 1, -1, -1):
        if taken[j, c]:
            chosen[j] = True
            c -= sizes[j]
