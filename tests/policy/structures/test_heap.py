"""The lazy heap yields ids in the order of a sorted list, in both layouts."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import CorruptState, InvalidInput
from knapcache.policy import registry
from knapcache.policy.structures import heap, packed_heap
from knapcache.policy.structures.heap import HeapPolicy
from knapcache.policy.structures.packed_heap import PackedHeapPolicy

IDS = 40
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "raise", "remove", "pop"]), st.integers(0, IDS - 1), st.integers(0, 3)),
    max_size=120,
)
LAYOUTS = pytest.mark.parametrize(("layout", "kind"), [(heap, HeapPolicy), (packed_heap, PackedHeapPolicy)])


@LAYOUTS
@given(steps=STEPS)
def test_order_of_a_sorted_list(
    layout: ModuleType, kind: type[HeapPolicy | PackedHeapPolicy], steps: list[tuple[str, int, int]]
) -> None:
    policy = kind(1, IDS)
    head, rows = policy.head, policy.rows
    plain: dict[int, tuple[float, int]] = {}
    for t, (step, i, by) in enumerate(steps):
        if step == "pop" and plain:
            i = min(plain, key=lambda i: plain[i])
            assert layout.heap_top(head, rows) == i
        if step in ("remove", "pop") and i in plain:
            layout.heap_remove(head, rows, i)
            rows["resident"][i] = False
            del plain[i]
        elif step == "raise" and i in plain:
            plain[i] = (plain[i][0] + by, t)
            rows["priority"][i], rows["tiebreak"][i] = plain[i]  # without calling the heap
        elif step == "add" and i not in plain:
            plain[i] = (float(by), t)
            rows["priority"][i], rows["tiebreak"][i] = plain[i]
            rows["resident"][i] = True
            layout.heap_add(head, rows, i)
        policy.check()
    for i in sorted(plain, key=lambda i: plain[i]):
        assert layout.heap_top(head, rows) == i
        layout.heap_remove(head, rows, i)
    assert head["heap_size"][0] == 0


@LAYOUTS
@pytest.mark.parametrize("ids", [1, 3, 40, 100])
def test_rebuild_orders_changed_priorities(
    layout: ModuleType, kind: type[HeapPolicy | PackedHeapPolicy], ids: int
) -> None:
    policy = kind(1, ids)
    head, rows = policy.head, policy.rows
    layout.heap_rebuild(head, rows)  # of an empty heap
    for i in range(ids):
        rows["resident"][i] = True
        layout.heap_add(head, rows, i)
    priorities = np.random.default_rng(ids).permutation(ids)
    rows["priority"][:ids] = priorities
    layout.heap_rebuild(head, rows)
    policy.check()
    assert layout.heap_top(head, rows) == np.argmin(priorities)


@LAYOUTS
def test_check_detects_a_lowered_priority(layout: ModuleType, kind: type[HeapPolicy | PackedHeapPolicy]) -> None:
    policy = kind(1, IDS)
    for i in range(9):
        policy.rows["priority"][i], policy.rows["resident"][i] = np.float64(i), True
        layout.heap_add(policy.head, policy.rows, i)
    policy.check()
    policy.rows["priority"][7] = 0.5
    with pytest.raises(CorruptState, match="priority of id 7 is below"):
        policy.check()


@pytest.mark.parametrize("name", ["gds", "gdsf-cost"])
def test_a_copy_of_the_rows_has_every_byte_of_the_packed_positions(name: str) -> None:
    rows = registry.find(name).build(1000, IDS).rows
    content = np.random.default_rng(0).integers(0, 256, rows.nbytes, np.uint8)
    rows.view(np.uint8)[:] = content
    other = np.zeros_like(rows)
    other[:] = rows
    assert rows.copy().tobytes() == copy.deepcopy(rows).tobytes() == other.tobytes() == content.tobytes()


def test_padding_in_the_rows_of_a_packed_heap_is_refused() -> None:
    class Padded(PackedHeapPolicy):
        row_fields: ClassVar = [*PackedHeapPolicy.row_fields, ("flag", "?")]

    with pytest.raises(InvalidInput, match="no padding"):
        Padded(1, IDS)
