"""Optima from independent solvers, and a check of every claim of a selection."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from ortools.algorithms.python import knapsack_solver
from scipy import optimize

from knapcache.model import Selection
from tests.support.knapsacks import KnapsackInstance
from tests.support.textbook import textbook


def exact_sum(values: Any, chosen: Any) -> Fraction:
    return sum((Fraction(float(v)) for v, c in zip(values, chosen, strict=True) if c), Fraction(0))


def brute_force(values: Any, sizes: Any, capacity: int) -> Fraction:
    """Return the value of the best subset as a rational number."""
    subsets = [(0, Fraction(0))]
    for w, s in zip(values, sizes, strict=True):
        subsets += [(size + int(s), value + Fraction(float(w))) for size, value in subsets if size + int(s) <= capacity]
    return max(value for _, value in subsets)


def exact_optimum(values: Any, sizes: Any, capacity: int) -> Fraction:
    """Return the value of the best subset as a rational number, from all subsets that no other one dominates."""
    best = {0: Fraction(0)}
    for w, s in zip(values, sizes, strict=True):
        for size, value in list(best.items()):
            larger = size + int(s)
            if larger <= capacity:
                best[larger] = max(best.get(larger, Fraction(0)), value + Fraction(float(w)))
        front, top = {}, Fraction(-1)
        for size in sorted(best):
            if best[size] > top:
                front[size] = top = best[size]
        best = front
    return max(best.values())


def by_or_tools(instance: KnapsackInstance) -> int:
    solver = knapsack_solver.KnapsackSolver(
        knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "reference"
    )
    values = [int(v) for v in instance.values]
    solver.init(values, [instance.sizes.tolist()], [instance.capacity])
    return int(solver.solve())


def by_milp(instance: KnapsackInstance) -> float:
    found = optimize.milp(
        -instance.values,
        constraints=optimize.LinearConstraint(instance.sizes[None, :].astype(float), ub=instance.capacity),
        integrality=np.ones(len(instance.values)),
        bounds=optimize.Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    return float(-found.fun)


def integer_optimum(instance: KnapsackInstance) -> int:
    """Return the optimum for integer values, from OR-Tools if the textbook's table would be too large."""
    if len(instance.values) * instance.capacity <= 2_000_000:
        return int(textbook(*instance)[1])
    return by_or_tools(instance)


def check(
    selection: Selection, instance: KnapsackInstance, optimum: Fraction | int | None, tol: float = 1e-13
) -> Fraction:
    """Check every claim of a selection in rational numbers, and return its exact value.

    `optimum` may be any feasible value.
    """
    values, sizes, capacity = instance
    assert selection.chosen.dtype == np.bool_
    assert selection.chosen.shape == values.shape
    assert sum(sizes[selection.chosen].tolist()) <= capacity
    assert not selection.chosen[values == 0].any()
    kept = exact_sum(values, selection.chosen)
    assert abs(Fraction(selection.value) - kept) <= kept * Fraction(2) ** -52
    assert selection.gap == selection.upper_bound - selection.value
    assert selection.gap >= 0
    assert Fraction(selection.upper_bound) >= kept
    if optimum is not None:
        assert Fraction(selection.upper_bound) >= optimum
        if selection.proven:
            left_out = exact_sum(values, ~selection.chosen)
            assert optimum - kept <= Fraction(tol) * min(kept, left_out)
    return kept
