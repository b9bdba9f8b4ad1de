"""The Oracle: which items to keep so that their values sum to the most in the room there is (0-1 knapsack).

`solve` checks its input and answers with a certificate; `WarmSolver` does so again and again while items change. Policies
that already hold clean arrays call the kernel underneath, `knapcache.oracle.exact.select`, from their own kernels.
"""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from knapcache.model import Selection
from knapcache.oracle.exact import select
from knapcache.oracle.problem import read
from knapcache.oracle.warm import WarmSolver

__all__ = ["WarmSolver", "solve"]


def solve(
    values: npt.ArrayLike,
    sizes: npt.ArrayLike,
    capacity: SupportsIndex,
    *,
    beta: float = 0.0,
    budget: int | None = None,
    tol: float | None = None,
) -> Selection:
    """Choose items of the greatest total value whose sizes sum to at most `capacity`.

    Integer values that sum to less than 2**53 are solved exactly, whatever `tol` says. Other values are solved until
    the optimum is known to be at most `tol`·min(value kept, value left out) better (1e-13 unless given). With `beta` >
    0 it is enough that the value left out is at most (1 + `beta`) times the least possible, which is much faster on
    hard instances. `budget` bounds the work, in states looked at (never in seconds, so that an answer can be repeated);
    without one, the search runs until it has the proof, and on a hard instance that can take very long and much memory.
    """
    p = read(values, sizes, capacity, beta, budget, tol)
    chosen = np.zeros(p.values.shape[0], np.bool_)
    value, upper_bound, price, proven, _ = select(p.values, p.sizes, p.capacity, p.beta, p.tol, p.budget, chosen)
    chosen.flags.writeable = False
    value, upper_bound = float(value), float(upper_bound)
    return Selection(chosen, value, upper_bound, upper_bound - value, bool(proven), float(price))
