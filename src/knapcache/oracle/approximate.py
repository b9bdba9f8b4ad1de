"""The approximate Oracle: Algorithm 3 of the paper, as a tolerance for the exact search.

What a cache pays for is what it does *not* keep. Leaving items out is a knapsack problem turned round, the
min-knapsack: throw away items of least total value whose sizes sum to at least the demand ΣS − M. The items thrown away
by an optimal knapsack are an optimal min-knapsack, and the paper asks for a (1+β)-approximation of that cost:

    C ≤ (1 + β)·C*        C value left out, C* the least possible

The paper reaches it with a scheme of its own. Here the same search serves: every unit of kept value that is missing is
a unit left out too many, OPT − z = C − C*, so the search may stop as soon as OPT − z ≤ β·(any lower bound on C*). The
linear relaxation gives one for free. Let the greedy break solution leave V_out out with room r to spare at price λ;
then

    C* ≥ V_out − λ·r

Edges. If the items of positive value all fit, C = C* = 0 and nothing is searched. If the demand is smaller than single
items, the relaxation cuts off a sliver of one item and the bound is close to 0: the tolerance vanishes and the search
is exact. Sums over the left-out items are taken directly; total − kept would cancel away what matters when almost
everything is kept.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from knapcache.kernel import kernel
from knapcache.model import Selection


@kernel
def tolerance(beta: float, tol: float, kept: float, left_out: float) -> float:
    """How far below the optimum an answer may be, given lower bounds on the value it keeps and on C*.

    The larger of β·C* and tol·min(kept, left out): the second is what "exact" means for values that are not integers.
    """
    return max(beta * left_out, tol * min(kept, left_out))


@kernel
def good_enough(gap: float, beta: float, tol: float, kept: float, left_out: float, least_left_out: float) -> bool:
    """Whether OPT − z ≤ `gap` proves what was asked for, now that the answer is known.

    Here `left_out` is C itself, and C − gap is a lower bound on C* of its own.
    """
    return gap <= beta * max(least_left_out, left_out - gap) or gap <= tol * min(kept, left_out)


def certificate(selection: Selection, values: npt.ArrayLike) -> float:
    """The β that a selection turned out to have: β̂ = (UB − z)/(C − (UB − z)), so that C ≤ (1 + β̂)·C* for certain.

    0 when it is optimal, so also when nothing of value is left out; infinite when the bound is too weak to say
    anything.
    """
    left_out = math.fsum(np.asarray(values, np.float64)[~selection.chosen].tolist())
    if selection.gap == 0.0 or left_out == 0.0:
        return 0.0
    least = left_out - selection.gap
    return selection.gap / least if least > 0.0 else math.inf
