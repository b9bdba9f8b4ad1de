"""The bounds of the theorems and measured regret, against values computed by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from knapcache.errors import InvalidInput
from knapcache_experiments import theory
from knapcache_experiments.theory import cached_gaps, gaps, optimal_cache
from knapcache_experiments.valid_sets import BanditInstance, lengths, valid_sets
from tests.support.bandit_instances import HAND, HAND_SIZES, as_sets, instances

pytestmark = pytest.mark.tools


@pytest.mark.parametrize("capacity", [7, 8, 10**30])
def test_when_everything_fits_there_is_nothing_to_learn(capacity: int) -> None:
    whole = BanditInstance(HAND.probabilities, HAND.costs, HAND_SIZES, capacity)
    assert as_sets(valid_sets(HAND_SIZES, capacity)) == [frozenset({0, 1, 2})]
    assert lengths(HAND_SIZES, capacity) == (3, 3, 3)
    assert lengths(HAND_SIZES, capacity).l_mq == 0
    assert gaps(whole).minimum == math.inf
    assert theory.problem_dependent_bound(whole, 1000) == 0
    assert theory.problem_independent_bound(whole, 1000) == 0
    assert theory.approximate_problem_dependent_bound(whole, 0.5, 1000) == 0
    assert theory.approximate_problem_independent_bound(whole, 1000) == 0


@pytest.mark.parametrize("capacity", [0, 1])
def test_when_nothing_fits_the_empty_set_is_the_only_one(capacity: int) -> None:
    nothing = BanditInstance(HAND.probabilities, HAND.costs, HAND_SIZES, capacity)
    assert as_sets(valid_sets(HAND_SIZES, capacity)) == [frozenset()]
    assert lengths(HAND_SIZES, capacity) == (3, 0, 0)
    assert not optimal_cache(nothing).any()
    assert cached_gaps(nothing).size == 0
    assert theory.problem_dependent_bound(nothing, 1000) == 0
    assert theory.problem_independent_bound(nothing, 1000) == 0
    # N − l_min = N, as printed: a loose bound.
    assert theory.approximate_problem_dependent_bound(nothing, 0.5, 1000) == 0
    assert theory.approximate_problem_independent_bound(nothing, 1000) > 0


def test_bounds_by_hand() -> None:
    T = 10
    log = math.log(16 * 10 * 3 * 10)  # ln(16·T·N/δ), δ = 1/T
    assert theory.log_factor(3, T) == pytest.approx(log)
    # Σ_{q∈M*} P·N·l/Δ_q = (.3 + .2)·3·2/.5 = 6
    assert theory.problem_dependent_bound(HAND, T) == pytest.approx(6 * log)
    assert theory.problem_independent_bound(HAND, T) == pytest.approx(math.sqrt(3 * 2 * 10) * log)
    # Σ_q P·N·(N − l_min)/Δ^c_q = 0 + (.3 + .2)·3·2/.25 = 12
    assert theory.approximate_problem_dependent_bound(HAND, 0.5, T) == pytest.approx(12 * log)
    assert theory.approximate_problem_independent_bound(HAND, T) == pytest.approx(math.sqrt(60) * log)


def test_bounds_are_infinite_without_a_gap() -> None:
    # Two queries of equal value, capacity for one.
    tie = BanditInstance(np.array([0.5, 0.5]), np.array([1.0, 1.0]), np.array([1, 1]), 1)
    assert theory.problem_dependent_bound(tie, 10) == math.inf
    assert theory.problem_independent_bound(tie, 10) < math.inf
    # β = 1: Δ^c of {0} is 1.0 − 2·.5 = 0. There is no harmful set, so no β-regret.
    assert theory.approximate_problem_dependent_bound(HAND, 1, 10) == math.inf
    assert theory.approximate_problem_dependent_bound(HAND, 1, 10, harmful_only=True) == 0


def test_the_printed_bound_of_theorem_2_can_be_negative() -> None:
    # β = 2: Δ^c of {0} is 1.0 − 3·.5 = −.5, so Σ_q P·N·(N − l_min)/Δ^c_q = (.3 + .2)·3·2/−.5 = −6. Δ_min is .5 > 0.
    log = float(theory.log_factor(3, 10))
    assert theory.approximate_problem_dependent_bound(HAND, 2, 10, as_printed=True) == pytest.approx(-6 * log)
    assert theory.approximate_problem_dependent_bound(HAND, 2, 10) == math.inf
    # Where all gaps are positive the readings agree; where one is 0 the sum does not exist.
    assert theory.approximate_problem_dependent_bound(HAND, 0.5, 10, as_printed=True) == pytest.approx(12 * log)
    assert theory.approximate_problem_dependent_bound(HAND, 1, 10, as_printed=True) == math.inf


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


def test_regret_by_hand() -> None:
    # V* = 1.5, V_all = 2: β = .5 allows .5·(2 − 1.5) = .25 per request.
    assert theory.cumulative_regret([0, 1, 1.5], 1.5).tolist() == [1.5, 2, 2]
    assert theory.cumulative_beta_regret([0, 1, 1.5], 1.5, 2, 0.5).tolist() == [1.25, 1.5, 1.25]
    assert theory.cumulative_beta_regret([0, 1, 1.5], 1.5, 2, 0).tolist() == [1.5, 2, 2]


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match=r"horizons are 0.0; they must be finite numbers, at least 1"):
        theory.problem_independent_bound(HAND, 0)
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
