"""Gaps between the optimal cache and the other valid sets, against values by hand and naive implementations."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from knapcache.errors import InvalidInput
from knapcache_experiments import theory as gaps_module
from knapcache_experiments.theory import cached_gaps, gaps, optimal_cache, problem_dependent_bound
from knapcache_experiments.valid_sets import BanditInstance
from tests.support.bandit_instances import HAND, as_sets, instances, naive_valid
from tests.support.examples import examples

pytestmark = pytest.mark.tools


def test_gaps_by_hand() -> None:
    found = gaps(HAND)
    assert found.optimal.tolist() == [False, True, True]
    by_set = dict(zip(as_sets(found.valid), found.of_set.tolist(), strict=True))
    assert by_set == {frozenset({0}): pytest.approx(0.5), frozenset({1, 2}): 0}
    # The only valid set without query 0 is M* itself: +∞.
    assert found.of_query.tolist() == [math.inf, pytest.approx(0.5), pytest.approx(0.5)]
    assert found.minimum == pytest.approx(0.5)
    assert cached_gaps(HAND).tolist() == pytest.approx([0.5, 0.5])


def test_approximate_gaps_by_hand() -> None:
    # β = .5: Δ^c of {0} is 1.0 − 1.5·.5 = .25, and of M* itself .5 − 1.5·.5 = −.25.
    found = gaps(HAND, 0.5)
    assert sorted(found.of_set) == pytest.approx([-0.25, 0.25])
    assert found.of_query.tolist() == [math.inf, pytest.approx(0.25), pytest.approx(0.25)]
    # β = 2: {0} is within 1+β of the best, 1.0 − 3·.5 = −.5; no set is harmful.
    assert gaps(HAND, 2).minimum == pytest.approx(-0.5)
    assert gaps(HAND, 2, harmful_only=True).minimum == math.inf


@given(instances(), st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1)]), st.booleans())
def test_gaps_equal_the_naive_ones(
    drawn: tuple[BanditInstance, list[Fraction]], beta: Fraction, harmful_only: bool
) -> None:
    instance, values = drawn
    valid = naive_valid(instance.sizes.tolist(), instance.capacity)
    found = gaps(instance, float(beta), harmful_only=harmful_only)
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
@settings(max_examples=examples(100, 300))
def test_cached_gaps_need_no_enumeration(drawn: tuple[BanditInstance, list[Fraction]]) -> None:
    instance, _ = drawn
    found = gaps(instance)
    cached = cached_gaps(instance)
    assert cached.tolist() == pytest.approx(found.of_query[found.optimal].tolist())
    assert min(cached, default=math.inf) == pytest.approx(found.minimum)
    assert ((cached == 0) == (found.of_query[found.optimal] == 0)).all()


def test_large_instances_use_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    for capacity in (5, 20, 40, 200):
        weights = rng.random(12)
        small = BanditInstance(weights / weights.sum(), rng.uniform(1, 2, 12), rng.integers(1, 11, 12), capacity)
        by_hand, bound = optimal_cache(small), problem_dependent_bound(small, 1000)
        with monkeypatch.context() as patch:
            patch.setattr(gaps_module, "MAX_ENUMERATED", 3)
            assert (optimal_cache(small) == by_hand).all()
            assert problem_dependent_bound(small, 1000) == pytest.approx(bound)


class CountSets(cp_model.CpSolverSolutionCallback):
    """Counts the solutions of a model."""

    found = 0

    def on_solution_callback(self) -> None:
        self.found += 1


def valid_set_model(sizes: list[int], capacity: int) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    """Return a constraint model whose solutions are the valid sets."""
    model = cp_model.CpModel()
    held = [model.new_bool_var(f"q{q}") for q in range(len(sizes))]
    used = sum(size * x for size, x in zip(sizes, held, strict=True))
    model.add(used <= capacity)
    for size, x in zip(sizes, held, strict=True):
        model.add(used + size > capacity).only_enforce_if(x.negated())
    return model, held


@pytest.mark.parametrize("seed", range(4))
def test_a_constraint_solver_finds_the_same_sets_and_gaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacity = 12, 24
    weights, costs, sizes = rng.integers(1, 50, n), rng.integers(10, 21, n), rng.integers(1, 11, n)
    instance = BanditInstance(weights / weights.sum(), costs / 10, sizes, capacity)
    values, unit = (weights * costs).tolist(), weights.sum() * 10
    found = gaps(instance)

    solver, counter = cp_model.CpSolver(), CountSets()
    solver.parameters.num_workers = 1
    solver.parameters.enumerate_all_solutions = True
    solver.solve(valid_set_model(sizes.tolist(), capacity)[0], counter)
    assert counter.found == len(found.valid)

    def best(excluded: list[int], without: int | None = None) -> float:
        """Return the value of the best valid set other than `excluded`, without one query."""
        model, held = valid_set_model(sizes.tolist(), capacity)
        model.maximize(sum(value * x for value, x in zip(values, held, strict=True)))
        if without is not None:
            model.add(held[without] == 0)
            model.add(sum(x if q in excluded else 1 - x for q, x in enumerate(held)) < n)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        return solver.objective_value if solver.solve(model) == cp_model.OPTIMAL else -math.inf

    optimum = best([])
    assert instance.values[found.optimal].sum() * unit == pytest.approx(optimum)
    optimal = np.flatnonzero(found.optimal).tolist()
    for q in range(n):
        assert found.of_query[q] * unit == pytest.approx(optimum - best(optimal, q))


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="beta is -1; it must be a finite number, at least 0"):
        gaps(HAND, -1)
