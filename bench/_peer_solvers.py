"""Other knapsack solvers with a common interface and a time limit, for bench/oracle.py.

Each returns (seconds, value, note). The note says if a solver hit its limit; the value is then its best solution so
far, or None.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from ortools.algorithms.python import knapsack_solver
from scipy.optimize import Bounds, LinearConstraint, milp
from tests.support.textbook import textbook

from knapcache.oracle.problem import Floats, Ints

PeerResult = tuple[float, float | None, str]
VALUE_UNITS = 2**40
"""OR-Tools takes integers only. Values are scaled so that their sum is this number, about its usable precision."""
MAX_TABLE_CELLS = 2 * 10**9


def or_tools(values: Floats, sizes: Ints, capacity: int, limit: float) -> PeerResult:
    """OR-Tools' KnapsackSolver: branch and bound, with values rounded to integers."""
    scale = 1.0 if (values == np.floor(values)).all() else VALUE_UNITS / values.sum()
    integers = np.floor(values * scale).astype(np.int64).tolist()
    solver = knapsack_solver.KnapsackSolver(
        knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "peer"
    )
    solver.set_time_limit(limit)
    rows = sizes.tolist()
    start = time.perf_counter()
    solver.init(integers, [rows], [capacity])
    solver.solve()
    seconds = time.perf_counter() - start
    chosen = np.array([solver.best_solution_contains(i) for i in range(len(values))])
    return seconds, float(values[chosen].sum()), "" if solver.is_solution_optimal() else f"cut off at {limit:g} s"


def highs(values: Floats, sizes: Ints, capacity: int, limit: float) -> PeerResult:
    """HiGHS through SciPy, with a gap of 0 (the default is 1e-4)."""
    start = time.perf_counter()
    result: Any = milp(
        -values / values.max(),
        constraints=LinearConstraint(sizes[None, :].astype(float), ub=capacity),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "time_limit": limit},
    )
    seconds = time.perf_counter() - start
    if result.x is None:
        return seconds, None, f"no solution after {limit:g} s"
    chosen = np.round(result.x).astype(bool)
    return seconds, float(values[chosen].sum()), "" if result.status == 0 else f"cut off at {limit:g} s"


def table(values: Floats, sizes: Ints, capacity: int, limit: float) -> PeerResult:
    """The textbook dynamic programme with a table of N·M cells."""
    if len(values) * capacity > MAX_TABLE_CELLS * min(1.0, limit):
        return 0.0, None, f"{len(values) * capacity:.0e} cells do not fit"
    start = time.perf_counter()
    value = textbook(values, sizes, capacity)[1]
    return time.perf_counter() - start, value, ""


def greedy(values: Floats, sizes: Ints, capacity: int, _limit: float) -> PeerResult:
    """Items by falling density, up to the first that does not fit. Its loss shows the value of an exact solution."""
    start = time.perf_counter()
    order = np.argsort(-(values / sizes))
    fits = np.cumsum(sizes[order]) <= capacity
    value = float(values[order[fits]].sum())
    return time.perf_counter() - start, value, ""


PEERS = {"or-tools": or_tools, "highs": highs, "textbook": table, "greedy": greedy}
