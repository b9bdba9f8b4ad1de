"""The textbook dynamic program for the knapsack: the reference for the fast solver.

    best(j, c) = max( best(j−1, c),  w_j + best(j−1, c − S_j) )        best value of the first j items in capacity c

O(N·M) time and memory for any values, so only for small capacities. It shares no method with `exact`: no density, no
bound, and no rounding except in the addition of values (none for integers).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints, read_problem


def textbook(values: Any, sizes: Any, capacity: int) -> tuple[Flags, float]:
    """Return an optimal set, as one flag per item, and its value."""
    p = read_problem(values, sizes, capacity)
    chosen = np.zeros(p.values.shape[0], np.bool_)
    _fill_table(p.values, p.sizes, min(int(p.capacity), int(p.sizes.sum())), chosen)
    return chosen, float(p.values[chosen].sum())


@kernel
def _fill_table(values: Floats, sizes: Ints, capacity: int, chosen: Flags) -> None:
    n = values.shape[0]
    best = np.zeros(capacity + 1, np.float64)
    taken = np.zeros((n, capacity + 1), np.bool_)
    for j in range(n):
        # Downwards, so that best[c − S_j] still excludes item j.
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
