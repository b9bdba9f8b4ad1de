"""The lazy heap yields ids in the order of a sorted list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import CorruptState
from knapcache.kernel import records
from knapcache.policy.base import HEAD, ROW
from knapcache.policy.structures.heap import HEAP_HEAD, HEAP_ROW, check_heap, heap_add, heap_remove, heap_top

IDS = 40
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "raise", "remove", "pop"]), st.integers(0, IDS - 1), st.integers(0, 3)),
    max_size=120,
)


@given(STEPS)
def test_order_of_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    head, rows = records([*HEAD, *HEAP_HEAD], 1), records([*ROW, *HEAP_ROW], IDS + 1)
    plain: dict[int, tuple[float, int]] = {}
    for t, (step, i, by) in enumerate(steps):
        if step == "pop" and plain:
            i = min(plain, key=lambda i: plain[i])
            assert heap_top(head, rows) == i
        if step in ("remove", "pop") and i in plain:
            heap_remove(head, rows, i)
            rows["resident"][i] = False
            del plain[i]
        elif step == "raise" and i in plain:
            plain[i] = (plain[i][0] + by, t)
            rows["priority"][i], rows["tiebreak"][i] = plain[i]  # without calling the heap
        elif step == "add" and i not in plain:
            plain[i] = (float(by), t)
            rows["priority"][i], rows["tiebreak"][i] = plain[i]
            rows["resident"][i] = True
            heap_add(head, rows, i)
        check_heap(head, rows)
    for i in sorted(plain, key=lambda i: plain[i]):
        assert heap_top(head, rows) == i
        heap_remove(head, rows, i)
    assert head["heap_size"][0] == 0


def test_check_detects_a_lowered_priority() -> None:
    head, rows = records([*HEAD, *HEAP_HEAD], 1), records([*ROW, *HEAP_ROW], IDS + 1)
    for i in range(9):
        rows["priority"][i], rows["resident"][i] = np.float64(i), True
        heap_add(head, rows, i)
    check_heap(head, rows)
    rows["priority"][7] = 0.5
    with pytest.raises(CorruptState, match="priority of id 7 is below"):
        check_heap(head, rows)
