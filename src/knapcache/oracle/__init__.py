"""The Oracle: a 0-1 knapsack solver that chooses the items of greatest total value within a capacity.

`solve` checks its input and returns a selection with a certificate. `WarmSolver` does the same repeatedly while a few
items change between calls. Policies that already hold valid arrays call the kernel `knapcache.oracle.exact.select` from
their own kernels.
"""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from knapcache.model import Selection
from knapcache.oracle.exact import select
from knapcache.oracle.problem import read_problem
from knapcache.oracle.warm import WarmSolver

__all__ = ["WarmSolver", "solve"]


def solve(
    values: npt.ArrayLike,
    sizes: npt.ArrayLike,
    capacity: SupportsIndex,
    *,
    beta: float = 0.0,
    work_limit: int | None = None,
    tol: float | None = None,
) -> Selection:
    """Choose items of the greatest total value whose sizes sum to at most `capacity`.

    Integer values that sum to less than 2**53 are solved exactly, whatever `tol` is. Other values are solved until
    the optimum is proven to be at most `tol`·min(value kept, value left out) better (default 1e-13). With `beta` > 0 it
    is enough that the value left out is at most (1 + `beta`) times the least possible; this is much faster on hard
    instances. `work_limit` bounds the number of search states, not seconds, so results are reproducible. Without it the
    search runs until the result is proven, which can take very long and much memory on a hard instance.
    Raises InvalidInput.
    """
    p = read_problem(values, sizes, capacity, beta, work_limit, tol)
    chosen = np.zeros(p.values.shape[0], np.bool_)
    value, upper_bound, price, proven, _ = select(p.values, p.sizes, p.capacity, p.beta, p.tol, p.work_limit, chosen)
    chosen.flags.writeable = False
    value, upper_bound = float(value), float(upper_bound)
    return Selection(
        chosen=chosen,
        value=value,
        upper_bound=upper_bound,
        gap=upper_bound - value,
        proven=bool(proven),
        price=float(price),
    )
