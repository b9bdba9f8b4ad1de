"""Small instances of the paper's problem: one by hand, random ones with exact values, and naive valid sets."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from knapcache_experiments.valid_sets import BanditInstance, BoolArray

# Sizes 3, 2, 2 in capacity 4. Valid: {0} (3 of 4, the smallest left out needs 2) and {1,2} (4 of 4); {1} and {2} have
# capacity left for the other, {} for anything. So l_min = 1, l_max = 2, l = min(2, 3 − 1) = 2.
# Values P·C* = .5, .6, .4. M* = {1,2} has value 1.0 and cost .5; {0} has value .5 and cost 1.0.
HAND_SIZES = np.array([3, 2, 2])
HAND = BanditInstance(np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 2.0]), HAND_SIZES, 4)

Sets = list[frozenset[int]]


def naive_valid(sizes: list[int], capacity: int) -> Sets:
    def subsets() -> Iterator[frozenset[int]]:
        for k in range(len(sizes) + 1):
            yield from map(frozenset, combinations(range(len(sizes)), k))

    def is_valid(held: frozenset[int]) -> bool:
        total = sum(sizes[q] for q in held)
        out = [sizes[q] for q in range(len(sizes)) if q not in held]
        return total <= capacity and (not out or capacity - min(out) < total)

    return [held for held in subsets() if is_valid(held)]


def as_sets(rows: BoolArray) -> Sets:
    return [frozenset(np.flatnonzero(row).tolist()) for row in rows]


sizes_and_capacity = st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 40))


@st.composite
def instances(draw: st.DrawFn) -> tuple[BanditInstance, list[Fraction]]:
    """Draw an instance and its exact values P·C* as fractions."""
    sizes, capacity = draw(sizes_and_capacity)
    n = len(sizes)
    weights = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    costs = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    values = [Fraction(w * c, sum(weights)) for w, c in zip(weights, costs, strict=True)]
    return BanditInstance(
        np.array(weights) / sum(weights), np.array(costs, dtype=float), np.array(sizes), capacity
    ), values
