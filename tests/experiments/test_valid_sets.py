"""Valid sets and their lengths, against values computed by hand and against naive implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from knapcache.errors import InvalidInput
from knapcache_experiments.valid_sets import MAX_ENUMERATED, BanditInstance, lengths, valid_sets
from tests.support.bandit_instances import HAND_SIZES, as_sets, naive_valid, sizes_and_capacity
from tests.support.examples import examples

pytestmark = pytest.mark.tools


def test_valid_sets_by_hand() -> None:
    assert set(as_sets(valid_sets(HAND_SIZES, 4))) == {frozenset({0}), frozenset({1, 2})}
    assert lengths(HAND_SIZES, 4) == (3, 1, 2)
    assert lengths(HAND_SIZES, 4).l_mq == 2


@given(sizes_and_capacity)
def test_valid_sets_equal_the_naive_ones(drawn: tuple[list[int], int]) -> None:
    sizes, capacity = drawn
    found, expected = as_sets(valid_sets(np.array(sizes), capacity)), naive_valid(sizes, capacity)
    assert len(found) == len(expected)
    assert set(found) == set(expected)


@given(sizes_and_capacity)
@settings(max_examples=examples(100, 300))
def test_lengths_need_no_enumeration(drawn: tuple[list[int], int]) -> None:
    sizes, capacity = drawn
    held = [len(a) for a in naive_valid(sizes, capacity)]
    assert lengths(np.array(sizes), capacity) == (len(sizes), min(held), max(held))


def test_lengths_at_the_largest_enumerable_n() -> None:
    rng = np.random.default_rng(1)
    for capacity in (7, 30, 60):
        sizes = rng.integers(1, 11, size=MAX_ENUMERATED - 2)
        held = valid_sets(sizes, capacity).sum(axis=1)
        assert lengths(sizes, capacity) == (len(sizes), held.min(), held.max())


@pytest.mark.parametrize(("n", "capacity"), [(5, 1), (5, 2), (5, 4), (300, 100)])
def test_equal_sizes_are_the_top_k_problem(n: int, capacity: int) -> None:
    found = lengths(np.ones(n, dtype=np.int64), capacity)
    assert found == (n, capacity, capacity)
    assert found.l_mq == min(capacity, n - capacity)


def test_an_instance_copies_its_arrays() -> None:
    sizes = np.array([1, 2])
    instance = BanditInstance(np.array([0.5, 0.5]), np.array([1.0, 1.0]), sizes, 2)
    sizes[0] = 9
    assert instance.sizes.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        instance.costs[0] = 2


@pytest.mark.parametrize(
    ("probabilities", "costs", "sizes", "capacity", "message"),
    [
        ([0.5, 0.5], [1, 1], [1, 0], 3, r"sizes are \[1, 0\]; .* at least 1"),
        ([0.5, 0.5], [1, 1], [1.5, 1], 3, "integers, at least 1"),
        ([0.5, 0.5], [1, 1], [[1, 1]], 3, "flat array"),
        ([], [], [], 3, "flat array"),
        ([0.5, 0.5], [1, 1], [1, 1], -1, "capacity is -1; it must be an integer, at least 0"),
        ([0.5, 0.5], [1, 1], [1, 1], 2.5, "capacity is 2.5"),
        ([0.5, 0.4], [1, 1], [1, 1], 3, "sum 0.9; they must be positive and sum to 1"),
        ([1.0, 0.0], [1, 1], [1, 1], 3, "minimum 0 "),
        ([0.5, 0.5], [1, 0], [1, 1], 3, "costs have minimum 0; they must be positive"),
        ([0.5, 0.5], [1, np.nan], [1, 1], 3, r"costs are \[1.0, nan\]; .* finite"),
        ([0.5, 0.5], [1], [1, 1], 3, "2 probabilities, 1 costs and 2 sizes"),
    ],
)
def test_bad_instances(probabilities: object, costs: object, sizes: object, capacity: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        BanditInstance(np.array(probabilities), np.array(costs), np.array(sizes), capacity)
    assert "\n" not in str(raised.value)


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="21 queries are too many to enumerate; at most 20"):
        valid_sets(np.ones(21, dtype=np.int64), 3)
    with pytest.raises(InvalidInput, match="coarser size unit"):
        lengths(np.array([10**6, 10**6]), 10**6 + 1)
