"""The bounds of both theorems of the paper, and measured regret to compare with them.

valid_sets.py has the notation, gaps.py the gaps Δ. Sets, lengths and gaps are exact. The bounds are only shapes (see
`log_factor`). Theorem 2 (1) is printed for Δ_min > 0. Its sum divides by Δ^c_q, so it needs Δ^c_min > 0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.lab.gaps import cached_gaps, gaps, optimal_cache
from knapcache.lab.valid_sets import BanditInstance, FloatArray, checked_floats, checked_number, lengths, shown


def log_factor(n: int, horizons: npt.ArrayLike) -> FloatArray:
    """Return ln(16TN/δ) with δ = 1/T: the logarithm that the bounds below use instead of the paper's Õ.

    The paper states its bounds with Õ, which hides constants, logarithms and even the unit of cost (c2 − c1, c2). Each
    bound below is the printed leading term × this factor × `constant`. They are shapes for comparison with a measured
    regret, not certified numbers: a run above such a curve refutes nothing, one below it proves nothing.
    """
    T = _checked_horizons(horizons)
    return np.asarray(np.log(16 * T * T * checked_number("N", n, at_least=1)))


def problem_dependent_bound(instance: BanditInstance, horizons: npt.ArrayLike, *, constant: float = 1.0) -> FloatArray:
    """Exact Oracle: Σ_{q∈M*} P(q)·N·l(M,Q)/Δ_q. Infinite when two sets are equally good (Δ_min = 0)."""
    optimal = optimal_cache(instance)
    per_gap = _sum_over_gaps(instance.probabilities[optimal], cached_gaps(instance, optimal))
    factor = instance.n * lengths(instance.sizes, instance.capacity).l_mq
    return _shape(instance, horizons, constant, per_gap * factor if factor else 0.0)


def problem_independent_bound(
    instance: BanditInstance, horizons: npt.ArrayLike, *, constant: float = 1.0
) -> FloatArray:
    """Exact Oracle: sqrt(N·l(M,Q)·T)."""
    l = lengths(instance.sizes, instance.capacity).l_mq
    return _shape(instance, horizons, constant, np.sqrt(instance.n * l * _checked_horizons(horizons)))


def approximate_problem_dependent_bound(
    instance: BanditInstance,
    beta: float,
    horizons: npt.ArrayLike,
    *,
    harmful_only: bool = False,
    as_printed: bool = False,
    constant: float = 1.0,
) -> FloatArray:
    """β-approximate Oracle, β-regret: Σ_q P(q)·N·(N − l_min)/Δ^c_q, over all queries. N ≤ MAX_ENUMERATED.

    Infinite when some Δ^c_q ≤ 0: the theorem's premise fails. `harmful_only`: see `gaps`.
    `as_printed` asks only for Δ_min > 0, as the theorem does: negative gaps then enter the sum, which may be negative.
    """
    found = gaps(instance, beta, harmful_only=harmful_only)
    if as_printed and gaps(instance).minimum > 0 and (found.of_query != 0).all():
        per_gap = float((instance.probabilities / found.of_query).sum())
    else:
        per_gap = _sum_over_gaps(instance.probabilities, found.of_query)
    factor = instance.n * (instance.n - lengths(instance.sizes, instance.capacity).l_min)
    return _shape(instance, horizons, constant, per_gap * factor if factor else 0.0)


def approximate_problem_independent_bound(
    instance: BanditInstance, horizons: npt.ArrayLike, *, constant: float = 1.0
) -> FloatArray:
    """β-approximate Oracle, β-regret: sqrt(N·(N − l_min)·T)."""
    left_out = instance.n - lengths(instance.sizes, instance.capacity).l_min
    return _shape(instance, horizons, constant, np.sqrt(instance.n * left_out * _checked_horizons(horizons)))


def _shape(
    instance: BanditInstance, horizons: npt.ArrayLike, constant: float, leading: float | FloatArray
) -> FloatArray:
    constant = checked_number("constant", constant, above=0)
    return np.asarray(constant * leading * log_factor(instance.n, horizons))


def _sum_over_gaps(probabilities: FloatArray, of_query: FloatArray) -> float:
    return math.inf if (of_query <= 0).any() else float((probabilities / of_query).sum())


def oracle_call_bound(n: int, horizons: npt.ArrayLike, alpha: float) -> FloatArray:
    """N·(1 + log_{1+α} T) + log_{1+α} T: how often each query's miss count, and the time, can grow by a factor 1+α."""
    growths = np.log(_checked_horizons(horizons)) / math.log1p(checked_number("alpha", alpha, above=0))
    return np.asarray(checked_number("N", n, at_least=1) * (1 + growths) + growths)


def cumulative_regret(cache_values: npt.ArrayLike, best_value: npt.ArrayLike) -> FloatArray:
    """Σ_{s≤t} [V* − V_s] for each t, V_s = Σ_{q∈M_{s−1}} P·C*: the cache before request s.

    V* is one number, or one for each request where popularity changes.
    """
    values = checked_floats("cache_values", cache_values)
    return np.cumsum(np.broadcast_to(checked_floats("best_value", np.atleast_1d(best_value)), values.shape) - values)


def cumulative_beta_regret(
    cache_values: npt.ArrayLike, best_value: float, all_values: float, beta: float
) -> FloatArray:
    """Σ_{s≤t} [(V_all − V_s) − (1+β)·(V_all − V*)] for each t, V_all = Σ_q P·C*. Negative if better than required."""
    regret = cumulative_regret(cache_values, best_value)
    slack = 1e-9 * abs(best_value)  # if everything fits, both are the same sum in another order
    left_out = max(0.0, checked_number("all_values", all_values, at_least=best_value - slack) - best_value)
    return regret - checked_number("beta", beta, at_least=0) * left_out * np.arange(1, len(regret) + 1)


def _checked_horizons(horizons: npt.ArrayLike) -> FloatArray:
    T = np.asarray(horizons, dtype=np.float64)
    if not (np.isfinite(T) & (T >= 1)).all():
        raise InvalidInput(f"horizons are {shown(T)}; they must be finite numbers, at least 1")
    return T
