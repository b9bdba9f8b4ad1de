"""Enumeration of all subsets against the textbook solver."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from knapcache.oracle.textbook import textbook
from knapcache.oracle.tiny import MAX_ITEMS, select_tiny


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=MAX_ITEMS),
    st.integers(0, 100),
)
def test_tiny_instances_are_solved_exactly(items: list[tuple[int, int]], capacity: int) -> None:
    values = np.array([value for value, _ in items], float)
    sizes = np.array([size for _, size in items])
    chosen = np.zeros(len(items), bool)
    best = select_tiny(values, sizes, capacity, chosen)
    assert best == values[chosen].sum() == textbook(values, sizes, capacity)[1]
    assert sizes[chosen].sum() <= capacity
