"""The paper's definitions, against values computed by hand and against naive implementations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.sim import theory
from knapcache.sim.theory import BanditInstance

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


def as_sets(rows: theory.BoolArray) -> Sets:
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


# Valid sets and lengths


def test_valid_sets_by_hand() -> None:
    assert set(as_sets(theory.valid_sets(HAND_SIZES, 4))) == {frozenset({0}), frozenset({1, 2})}
    assert theory.lengths(HAND_SIZES, 4) == (3, 1, 2)
    assert theory.lengths(HAND_SIZES, 4).l_mq == 2


@given(sizes_and_capacity)
def test_valid_sets_equal_the_naive_ones(drawn: tuple[list[int], int]) -> None:
    sizes, capacity = drawn
    found, expected = as_sets(theory.valid_sets(np.array(sizes), capacity)), naive_valid(sizes, capacity)
    assert len(found) == len(expected)
    assert set(found) == set(expected)


@given(sizes_and_capacity)
@settings(max_examples=300)
def test_lengths_need_no_enumeration(drawn: tuple[list[int], int]) -> None:
    sizes, capacity = drawn
    held = [len(a) for a in naive_valid(sizes, capacity)]
    expected = (len(sizes), min(held), max(held))
    assert theory.lengths(np.array(sizes), capacity) == expected
    assert theory.lengths_by_enumeration(np.array(sizes), capacity) == expected


def test_lengths_at_the_largest_enumerable_n() -> None:
    rng = np.random.default_rng(1)
    for capacity in (7, 30, 60):
        sizes = rng.integers(1, 11, size=theory.MAX_ENUMERATED - 2)
        assert theory.lengths(sizes, capacity) == theory.lengths_by_enumeration(sizes, capacity)


@pytest.mark.parametrize(("n", "capacity"), [(5, 1), (5, 2), (5, 4), (300, 100)])
def test_equal_sizes_are_the_top_k_problem(n: int, capacity: int) -> None:
    lengths = theory.lengths(np.ones(n, dtype=np.int64), capacity)
    assert lengths == (n, capacity, capacity)
    assert lengths.l_mq == min(capacity, n - capacity)


@pytest.mark.parametrize("capacity", [7, 8, 10**30])
def test_when_everything_fits_there_is_nothing_to_learn(capacity: int) -> None:
    whole = BanditInstance(HAND.probabilities, HAND.costs, HAND_SIZES, capacity)
    assert as_sets(theory.valid_sets(HAND_SIZES, capacity)) == [frozenset({0, 1, 2})]
    assert theory.lengths(HAND_SIZES, capacity) == theory.lengths_by_enumeration(HAND_SIZES, capacity) == (3, 3, 3)
    assert theory.lengths(HAND_SIZES, capacity).l_mq == 0
    assert theory.gaps(whole).minimum == math.inf
    assert theory.problem_dependent_bound(whole, 1000) == 0
    assert theory.problem_independent_bound(whole, 1000) == 0
    assert theory.approximate_problem_dependent_bound(whole, 0.5, 1000) == 0
    assert theory.approximate_problem_independent_bound(whole, 1000) == 0


@pytest.mark.parametrize("capacity", [0, 1])
def test_when_nothing_fits_the_empty_set_is_the_only_one(capacity: int) -> None:
    nothing = BanditInstance(HAND.probabilities, HAND.costs, HAND_SIZES, capacity)
    assert as_sets(theory.valid_sets(HAND_SIZES, capacity)) == [frozenset()]
    assert theory.lengths(HAND_SIZES, capacity) == (3, 0, 0)
    assert not theory.optimal_cache(nothing).any()
    assert theory.cached_gaps(nothing).size == 0
    assert theory.problem_dependent_bound(nothing, 1000) == 0
    assert theory.problem_independent_bound(nothing, 1000) == 0
    # N − l_min = N, as printed: a loose bound.
    assert theory.approximate_problem_dependent_bound(nothing, 0.5, 1000) == 0
    assert theory.approximate_problem_independent_bound(nothing, 1000) > 0


# Gaps


def test_gaps_by_hand() -> None:
    found = theory.gaps(HAND)
    assert found.optimal.tolist() == [False, True, True]
    by_set = dict(zip(as_sets(found.valid), found.of_set.tolist(), strict=True))
    assert by_set == {frozenset({0}): pytest.approx(0.5), frozenset({1, 2}): 0}
    # The only valid set without query 0 is M* itself: +∞.
    assert found.of_query.tolist() == [math.inf, pytest.approx(0.5), pytest.approx(0.5)]
    assert found.minimum == pytest.approx(0.5)
    assert theory.cached_gaps(HAND).tolist() == pytest.approx([0.5, 0.5])


def test_approximate_gaps_by_hand() -> None:
    # β = .5: Δ^c of {0} is 1.0 − 1.5·.5 = .25, and of M* itself .5 − 1.5·.5 = −.25.
    found = theory.gaps(HAND, 0.5)
    assert sorted(found.of_set) == pytest.approx([-0.25, 0.25])
    assert found.of_query.tolist() == [math.inf, pytest.approx(0.25), pytest.approx(0.25)]
    # β = 2: {0} is within 1+β of the best, 1.0 − 3·.5 = −.5; no set is harmful.
    assert theory.gaps(HAND, 2).minimum == pytest.approx(-0.5)
    assert theory.gaps(HAND, 2, harmful_only=True).minimum == math.inf


@given(instances(), st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1)]), st.booleans())
def test_gaps_equal_the_naive_ones(
    drawn: tuple[BanditInstance, list[Fraction]], beta: Fraction, harmful_only: bool
) -> None:
    instance, values = drawn
    valid = naive_valid(instance.sizes.tolist(), instance.capacity)
    found = theory.gaps(instance, float(beta), harmful_only=harmful_only)
    (optimal,) = as_sets(found.optimal[None, :])
    assert optimal in valid
    assert sum(values[q] for q in optimal) == max(sum(values[q] for q in a) for a in valid)

    def cost(held: frozenset[int]) -> Fraction:
        return sum((v for q, v in enumerate(values) if q not in held), Fraction(0))

    gap = {a: cost(a) - (1 + beta) * cost(optimal) for a in valid}
    counted = [a for a in valid if a != optimal and (gap[a] > 0 or not harmful_only)]
    expected = [float(min((gap[a] for a in counted if q not in a), default=math.inf)) for q in range(instance.n)]
    # Exactly 0 where the fractions are 0.
    assert [x == 0 for x in found.of_query] == [x == 0 for x in expected]
    assert found.of_query.tolist() == pytest.approx(expected)
    assert found.minimum == pytest.approx(min((float(gap[a]) for a in counted), default=math.inf))


@given(instances())
@settings(max_examples=300)
def test_cached_gaps_need_no_enumeration(drawn: tuple[BanditInstance, list[Fraction]]) -> None:
    instance, _ = drawn
    found = theory.gaps(instance)
    cached = theory.cached_gaps(instance)
    assert cached.tolist() == pytest.approx(found.of_query[found.optimal].tolist())
    assert min(cached, default=math.inf) == pytest.approx(found.minimum)
    assert ((cached == 0) == (found.of_query[found.optimal] == 0)).all()


def test_large_instances_use_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    for capacity in (5, 20, 40, 200):
        weights = rng.random(12)
        small = BanditInstance(weights / weights.sum(), rng.uniform(1, 2, 12), rng.integers(1, 11, 12), capacity)
        by_hand, bound = theory.optimal_cache(small), theory.problem_dependent_bound(small, 1000)
        with monkeypatch.context() as patch:
            patch.setattr(theory, "MAX_ENUMERATED", 3)
            assert (theory.optimal_cache(small) == by_hand).all()
            assert theory.problem_dependent_bound(small, 1000) == pytest.approx(bound)


# Theorems


def test_bounds_by_hand() -> None:
    T = 10
    log = math.log(16 * 10 * 3 * 10)  # ln(16·T·N/δ), δ = 1/T
    assert theory.log_factor(3, T) == pytest.approx(log)
    # Σ_{q∈M*} P·N·l/Δ_q = (.3 + .2)·3·2/.5 = 6
    assert theory.problem_dependent_bound(HAND, T) == pytest.approx(6 * log)
    assert theory.problem_independent_bound(HAND, T) == pytest.approx(math.sqrt(3 * 2 * 10) * log)
    # Σ_q P·N·(N − l_min)/Δ^c_q = 0 + (.3 + .2)·3·2/.25 = 12
    assert theory.approximate_problem_dependent_bound(HAND, 0.5, T) == pytest.approx(12 * log)
    assert theory.approximate_problem_independent_bound(HAND, T, constant=2) == pytest.approx(2 * math.sqrt(60) * log)


def test_bounds_are_infinite_without_a_gap() -> None:
    # Two queries of equal value, capacity for one.
    tie = BanditInstance(np.array([0.5, 0.5]), np.array([1.0, 1.0]), np.array([1, 1]), 1)
    assert theory.problem_dependent_bound(tie, 10) == math.inf
    assert theory.problem_independent_bound(tie, 10) < math.inf
    # β = 1: Δ^c of {0} is 1.0 − 2·.5 = 0. There is no harmful set, so no β-regret.
    assert theory.approximate_problem_dependent_bound(HAND, 1, 10) == math.inf
    assert theory.approximate_problem_dependent_bound(HAND, 1, 10, harmful_only=True) == 0


@given(instances())
def test_bounds_never_fall_as_t_grows(drawn: tuple[BanditInstance, list[Fraction]]) -> None:
    instance, _ = drawn
    T = np.array([1, 2, 10, 1000, 10**6])
    for curve in (
        theory.problem_dependent_bound(instance, T),
        theory.problem_independent_bound(instance, T),
        theory.approximate_problem_dependent_bound(instance, 0.1, T),
        theory.approximate_problem_independent_bound(instance, T),
        theory.oracle_call_bound(instance.n, T, 0.5),
    ):
        assert curve.shape == T.shape
        assert (curve >= 0).all()
        assert (curve[1:] >= curve[:-1]).all()


def test_oracle_call_bound_by_hand() -> None:
    assert theory.oracle_call_bound(3, 8, 1) == pytest.approx(3 * (1 + 3) + 3)  # log_2 8 = 3
    assert theory.oracle_call_bound(2, [1, 81], 2).tolist() == pytest.approx([2, 2 * (1 + 4) + 4])  # log_3 81 = 4


# Regret


def test_regret_by_hand() -> None:
    # V* = 1.5, V_all = 2: β = .5 allows .5·(2 − 1.5) = .25 per request.
    assert theory.cumulative_regret([0, 1, 1.5], 1.5).tolist() == [1.5, 2, 2]
    assert theory.cumulative_beta_regret([0, 1, 1.5], 1.5, 2, 0.5).tolist() == [1.25, 1.5, 1.25]
    assert theory.cumulative_beta_regret([0, 1, 1.5], 1.5, 2, 0).tolist() == [1.5, 2, 2]


# Bad arguments


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
        theory.valid_sets(np.ones(21, dtype=np.int64), 3)
    with pytest.raises(InvalidInput, match="coarser size unit"):
        theory.lengths(np.array([10**6, 10**6]), 10**6 + 1)
    with pytest.raises(InvalidInput, match="beta is -1; it must be a finite number, at least 0"):
        theory.gaps(HAND, -1)
    with pytest.raises(InvalidInput, match=r"horizons are 0.0; they must be finite numbers, at least 1"):
        theory.problem_independent_bound(HAND, 0)
    with pytest.raises(InvalidInput, match="constant is 0; it must be a finite number above 0"):
        theory.problem_independent_bound(HAND, 10, constant=0)
    with pytest.raises(InvalidInput, match="alpha is 0; it must be a finite number above 0"):
        theory.oracle_call_bound(3, 10, 0)
    with pytest.raises(InvalidInput, match="N is 0; it must be a finite number, at least 1"):
        theory.oracle_call_bound(0, 10, 1)
    with pytest.raises(InvalidInput, match=r"best_value are .*nan.*; they must be a flat array of finite numbers"):
        theory.cumulative_regret([1.0], math.nan)
    with pytest.raises(InvalidInput, match="cache_values are "):
        theory.cumulative_regret([], 1)
    with pytest.raises(InvalidInput, match="all_values is 1; it must be a finite number, at least 2"):
        theory.cumulative_beta_regret([1.0], 2, 1, 0.5)
