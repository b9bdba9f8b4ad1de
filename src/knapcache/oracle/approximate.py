"""The approximate Oracle: Algorithm 3 of the paper, as a tolerance for the exact search.

A cache pays for what it does *not* keep. Choosing what to leave out is the min-knapsack problem: find items of least
total value whose sizes sum to at least the demand ΣS − M. The complement of an optimal knapsack is an optimal
min-knapsack. The paper asks for a (1+β)-approximation of its cost:

    C ≤ (1 + β)·C*        C value left out, C* the least possible

The paper uses a separate scheme. Here the exact search is reused: OPT − z = C − C*, so the search may stop as soon as
OPT − z ≤ β·(a lower bound on C*). The linear relaxation gives such a bound for free. Let the greedy break solution
leave out the value V_out, with r units of capacity free, at price λ; then

    C* ≥ V_out − λ·r

Edge cases. If all items of positive value fit, C = C* = 0 and nothing is searched. If the demand is smaller than single
items, the relaxation leaves out a fraction of one item and the bound is close to 0; then the tolerance vanishes and the
search is exact. Values left out are summed directly, because total − kept cancels when almost everything is kept.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from knapcache.kernel import kernel
from knapcache.model import Selection


@kernel
def tolerance(beta: float, tol: float, kept: float, left_out: float) -> float:
    """Return how far below the optimum a solution may be: max(β·C*, tol·min(kept, left out)).

    `kept` and `left_out` are lower bounds on the value kept and on C*. The second term defines "exact" for values that
    are not integers.
    """
    return max(beta * left_out, tol * min(kept, left_out))


@kernel
def meets_tolerance(gap: float, beta: float, tol: float, kept: float, left_out: float, least_left_out: float) -> bool:
    """Return whether OPT − z ≤ `gap` proves the requested quality of a known solution.

    Here `left_out` is C itself, so C − gap is another lower bound on C*.
    """
    return gap <= beta * max(least_left_out, left_out - gap) or gap <= tol * min(kept, left_out)


def certified_beta(selection: Selection, values: npt.ArrayLike) -> float:
    """Return β̂ = (UB − z)/(C − (UB − z)): the selection is certified to satisfy C ≤ (1 + β̂)·C*.

    0 if the selection is optimal or leaves out nothing of value; infinite if the bound is too weak.
    """
    left_out = math.fsum(np.asarray(values, np.float64)[~selection.chosen].tolist())
    if selection.gap == 0.0 or left_out == 0.0:
        return 0.0
    least = left_out - selection.gap
    return selection.gap / least if least > 0.0 else math.inf
