"""The approximate Oracle: the value left out is at most (1 + β) times the least possible."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from knapcache.model import Selection
from knapcache.oracle import solve
from knapcache.oracle.approximate import certified_beta, tolerance
from knapcache.oracle.exact import select
from tests.support.knapsack_solvers import brute_force, check, exact_sum
from tests.support.knapsacks import CACHE_MODES, CLASSIC, KnapsackInstance, cache_like, classic
from tests.support.textbook import textbook

BETAS = (1e-3, 0.01, 0.1, 0.5, 2.0)


def least_left_out(instance: KnapsackInstance) -> Fraction:
    everything = exact_sum(instance.values, np.ones(len(instance.values)))
    return everything - exact_sum(instance.values, textbook(*instance)[0])


@pytest.mark.parametrize("kind", CLASSIC)
def test_the_guarantee_holds_on_classic_instances(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(40):
        instance = classic(kind, rng, int(rng.integers(2, 41)), 100)
        least = least_left_out(instance)
        for beta in BETAS:
            selection = solve(*instance, beta=beta)
            check(selection, instance, None)
            left_out = exact_sum(instance.values, ~selection.chosen)
            assert selection.proven
            assert left_out <= (1 + Fraction(beta)) * least
            assert left_out <= (1 + Fraction(certified_beta(selection, instance.values))) * least
            assert certified_beta(selection, instance.values) <= beta * (1 + 1e-9)


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_the_guarantee_holds_on_cache_like_instances(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for _ in range(60):
        instance = cache_like(mode, rng, int(rng.integers(2, 61)))
        least = least_left_out(instance)
        for beta in BETAS:
            selection = solve(*instance, beta=beta)
            check(selection, instance, None)
            assert selection.proven
            assert exact_sum(instance.values, ~selection.chosen) <= (1 + Fraction(beta)) * least


def test_the_certificate_of_a_truncated_search_holds() -> None:
    rng = np.random.default_rng(1)
    certificates = []
    for _ in range(80):
        instance = classic("strongly", rng, 10, 100)
        selection = solve(*instance, work_limit=1)
        everything = exact_sum(instance.values, np.ones(10))
        least = everything - brute_force(*instance)
        certificates.append(certified_beta(selection, instance.values))
        if certificates[-1] < math.inf:
            left_out = exact_sum(instance.values, ~selection.chosen)
            assert left_out <= (1 + Fraction(certificates[-1])) * least * (1 + Fraction(1, 10**12))
    assert 0.0 in certificates
    assert any(0.0 < c < math.inf for c in certificates)


def test_a_larger_beta_is_less_work() -> None:
    rng = np.random.default_rng(2)
    work = dict.fromkeys((0.0, 1e-3, 1e-2, 1e-1), 0)
    for _ in range(40):
        values, sizes, capacity = classic("strongly", rng, 100, 1000)
        for beta in work:
            work[beta] += select(values, sizes, capacity, beta, 0.0, -1, np.zeros(100, np.bool_))[4]
    assert work[0.0] > 2 * work[1e-3] > 4 * work[1e-2] > 8 * work[1e-1]


def test_leaving_out_only_worthless_items_is_exact() -> None:
    selection = solve([3.0, 0.0, 0.0], [2, 50, 50], 10, beta=0.5)
    assert selection.chosen.tolist() == [True, False, False]
    assert certified_beta(selection, [3.0, 0.0, 0.0]) == 0.0


def test_a_demand_smaller_than_single_items_is_solved_exactly() -> None:
    # Demand 1: the relaxation leaves out one unit of the cheapest item, so its bound is close to 0.
    rng = np.random.default_rng(3)
    for _ in range(100):
        sizes = rng.integers(50, 100, 12)
        instance = KnapsackInstance(rng.integers(50, 1000, 12).astype(float), sizes, int(sizes.sum()) - 1)
        selection = solve(*instance, beta=0.01)
        assert exact_sum(instance.values, ~selection.chosen) == min(instance.values)


def test_a_bound_that_is_too_weak_gives_an_infinite_certificate() -> None:
    weak = Selection(np.array([True, False]), value=1.0, upper_bound=11.0, gap=10.0, proven=False, price=1.0)
    assert certified_beta(weak, [1.0, 10.0]) == math.inf
    assert certified_beta(weak, [1.0, 15.0]) == 2.0


def test_the_complement_is_summed_directly() -> None:
    values = [1e17, 3.0, 2.0]  # 1e17 + 5 − 1e17 is not 5 in floats
    selection = Selection(np.array([True, False, False]), 1e17, 1e17 + 16, gap=1.0, proven=False, price=0.0)
    assert certified_beta(selection, values) == 1.0 / 4.0


def test_tolerance_is_the_larger_of_two_terms() -> None:
    assert tolerance(0.5, 1e-3, 100.0, 10.0) == 5.0
    assert tolerance(0.0, 1e-3, 100.0, 10.0) == 0.01
    assert tolerance(0.0, 1e-3, 4.0, 10.0) == 0.004
