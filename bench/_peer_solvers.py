"""Other knapsack solvers behind one call, with a time limit, for bench/oracle.py.

Each returns (seconds, value, note): the note says where a peer was cut off or gave up, and the value is then what it
had, or none.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from ortools.algorithms.python import knapsack_solver
from scipy.optimize import Bounds, LinearConstraint, milp

from knapcache.oracle.problem import Floats, Ints
from knapcache.oracle.textbook import textbook

Answer = tuple[float, float | None, str]
# OR-Tools takes integers only. Values are scaled to this many units, about the precision it can work with.
UNITS = 2**40
TABLE_LIMIT = 2 * 10**9


def or_tools(values: Floats, sizes: Ints, capacity: int, limit: float) -> Answer:
    """OR-Tools' KnapsackSolver, branch and bound, with values rounded to integers."""
    scale = 1.0 if (values == np.floor(values)).all() else UNITS / values.sum()
    whole = np.floor(values * scale).astype(np.int64).tolist()
    solver = knapsack_solver.KnapsackSolver(
        knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "peer"
    )
    solver.set_time_limit(limit)
    rows = sizes.tolist()
    start = time.perf_counter()
    solver.init(whole, [rows], [capacity])
    solver.solve()
    seconds = time.perf_counter() - start
    chosen = np.array([solver.best_solution_contains(i) for i in range(len(values))])
    return seconds, float(values[chosen].sum()), "" if solver.is_solution_optimal() else f"cut off at {limit:g} s"


def highs(values: Floats, sizes: Ints, capacity: int, limit: float) -> Answer:
    """HiGHS through SciPy, asked for a gap of 0 (its default is 1e-4)."""
    start = time.perf_counter()
    found: Any = milp(
        -values / values.max(),
        constraints=LinearConstraint(sizes[None, :].astype(float), ub=capacity),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "time_limit": limit},
    )
    seconds = time.perf_counter() - start
    if found.x is None:
        return seconds, None, f"nothing after {limit:g} s"
    chosen = np.round(found.x).astype(bool)
    return seconds, float(values[chosen].sum()), "" if found.status == 0 else f"cut off at {limit:g} s"


def table(values: Floats, sizes: Ints, capacity: int, limit: float) -> Answer:
    """The textbook's table of N·M cells."""
    if len(values) * capacity > TABLE_LIMIT * min(1.0, limit):
        return 0.0, None, f"{len(values) * capacity:.0e} cells do not fit"
    start = time.perf_counter()
    value = textbook(values, sizes, capacity)[1]
    return time.perf_counter() - start, value, ""


def greedy(values: Floats, sizes: Ints, capacity: int, _limit: float) -> Answer:
    """By falling density, up to the first that does not fit; its loss shows what exactness is worth."""
    start = time.perf_counter()
    order = np.argsort(-(values / sizes))
    fits = np.cumsum(sizes[order]) <= capacity
    value = float(values[order[fits]].sum())
    return time.perf_counter() - start, value, ""


PEERS = {"or-tools": or_tools, "highs": highs, "textbook": table, "greedy": greedy}
