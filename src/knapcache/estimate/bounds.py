"""The paper's two estimators: lower confidence bounds on the cost of a miss and on the probability of arrival.

Symbols, as in the paper:

    t                 rounds so far                       T, N     horizon and number of queries
    T_c(q)  misses    times q was paid for                δ        failure probability, 1/T
    T_q(q)  arrivals  times q arrived                     c1, c2   range of the cost of a miss
    C̃(q)   paid      sum of the costs paid for q         γ        confidence scale (ours)

γ scales both radii: γ = 1 is the paper, γ = 0 is the empirical mean. The paper's own constants are very wide: at
γ = 1 a query needs hundreds of arrivals before its estimate leaves zero (see docs/background/algorithm.md). Hence the
scale.
"""

from __future__ import annotations

import math

from knapcache.kernel import kernel


@kernel
def cost_log(T: float, N: float) -> float:
    """Return L1 = ln(8TN/δ) with δ = 1/T, the logarithm in the cost radius."""
    return math.log(8.0 * T * N * T)


@kernel
def arrival_log(T: float, N: float) -> float:
    """Return L2 = ln(16TN/δ) with δ = 1/T, the logarithm in the arrival radius."""
    return math.log(16.0 * T * N * T)


@kernel
def cost_bound(paid: float, misses: float, spread: float, log_term: float, gamma: float, floor: float) -> float:
    """Ĉ(q) = max{floor, C̃/T_c − γ·(c2 − c1)·√(L1 / 2T_c)}   (paper, equation 2).

    `spread` is c2 − c1. The paper's floor is 0; c1 is a better one, because every cost is at least c1 (erratum E6).
    The estimate of a query that was never paid for is the floor.
    """
    if misses == 0:
        return floor
    return max(floor, paid / misses - gamma * spread * math.sqrt(log_term / (2.0 * misses)))


@kernel
def arrival_bound(arrivals: float, t: float, log_term: float, gamma: float) -> float:
    """P̂(q) = max{0, f − γ·(√(3·V·L2/t) + 5·L2/t)}, f = T_q/t, V = f(1 − f)   (paper, equations 3 and 4).

    V is the variance of the indicator "q arrived" over the t rounds, in closed form.
    """
    if t == 0:
        return 0.0
    f = arrivals / t
    radius = math.sqrt(3.0 * f * (1.0 - f) * log_term / t) + 5.0 * log_term / t
    return max(0.0, f - gamma * radius)
