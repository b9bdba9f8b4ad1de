"""The optimal cache, the gaps Δ between it and the other valid sets, the bounds of both theorems, and measured regret.

valid_sets.py has the notation. Sets, lengths and gaps are exact. The bounds are only shapes (see `log_factor`).

Where the printed definitions cannot be meant literally:
- Δ_q is a minimum over sets that leave q out, so it is +∞ when no such set exists (printed: when none holds q).
- Δ_min is printed as min over all of 𝔙, which holds M* itself and would always give 0. Here: over 𝔙 without M*.
- Theorem 2 (1) is printed for Δ_min > 0. Its sum divides by Δ^c_q, so it needs Δ^c_min > 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knapcache import oracle
from knapcache.errors import InvalidInput
from knapcache_experiments.valid_sets import (
    MAX_ENUMERATED,
    BanditInstance,
    BoolArray,
    FloatArray,
    checked_floats,
    checked_number,
    lengths,
    shown,
    table_capacity,
    valid_sets,
)


def optimal_cache(instance: BanditInstance) -> BoolArray:
    """Return M*, one flag per query: by enumeration up to MAX_ENUMERATED queries, by the exact Oracle above."""
    if instance.n <= MAX_ENUMERATED:
        valid = valid_sets(instance.sizes, instance.capacity)
        return np.asarray(valid[np.argmax(valid @ instance.values)])
    selection = oracle.solve(instance.values, instance.sizes, instance.capacity)
    if not selection.proven:
        raise InvalidInput(
            f"the Oracle left a gap of {selection.gap:g} on {instance.n} queries; a proven optimum is needed"
        )
    return selection.chosen


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """How much worse than M* the other valid sets are: Δ for β = 0, Δ^c for β > 0."""

    beta: float
    optimal: BoolArray
    """M*, one flag per query. With ties, one of the best sets: then Δ_min = 0."""
    valid: BoolArray
    """𝔙, one row per set."""
    of_set: FloatArray
    """Δ_A of each row. M* has its row too: 0, or −β·cost(M*)."""
    of_query: FloatArray
    """Δ_q = min{Δ_A : A ∈ 𝔙, A ≠ M*, q ∉ A}; +∞ when there is no such A."""
    minimum: float
    """Δ_min = min_q Δ_q."""


def gaps(instance: BanditInstance, beta: float = 0.0, *, harmful_only: bool = False) -> Gaps:
    """Compute all gaps by enumeration (N ≤ MAX_ENUMERATED): Δ^c_A = Σ_{q∉A} P·C* − (1+β)·Σ_{q∉M*} P·C*.

    For β = 0 that is Δ_A = Σ_{q∈M*} P·C* − Σ_{q∈A} P·C*.
    `harmful_only` restricts Δ_q to sets with Δ_A > 0, as is usual for combinatorial bandits: a set within 1+β of the
    best adds no β-regret. The paper does not say so, but for β > 0 its own minimum is easily negative.
    Gaps within rounding error of 0 are set to exactly 0, so that ties are recognised.
    """
    beta = checked_number("beta", beta, at_least=0)
    optimal = optimal_cache(instance)
    valid = valid_sets(instance.sizes, instance.capacity)
    of_set = ~valid @ instance.values - (1 + beta) * instance.values[~optimal].sum()
    of_set = _without_rounding(of_set, (1 + beta) * instance.values.sum(), instance.n)
    counted = (valid != optimal).any(axis=1)
    if harmful_only:
        counted &= of_set > 0
    of_query = np.where(~valid & counted[:, None], of_set[:, None], np.inf).min(axis=0)
    return Gaps(beta, optimal, valid, of_set, of_query, float(of_query.min()))


def cached_gaps(instance: BanditInstance, optimal: BoolArray | None = None) -> FloatArray:
    """Compute Δ_q of each q ∈ M*, in the order of the queries, without enumeration: O(N·log N·M). Its minimum is Δ_min.

    Δ_q = V* − max{value of A : q ∉ A, M − S(q) < Σ S ≤ M}. Each valid set without q is among these, and since
    every value is positive nothing more fits into the best of them: it is valid. Any valid A ≠ M* misses some q ∈ M*
    (it would hold M* and more otherwise, and more does not fit), so the minimum over M* is Δ_min.
    `optimal` is M*, if the caller has it already.
    """
    optimal = optimal_cache(instance) if optimal is None else optimal
    usable = table_capacity(instance.sizes, instance.capacity)
    sizes, values = instance.sizes.tolist(), instance.values.tolist()
    best = float(instance.values[optimal].sum())
    found: list[float] = []

    def grown(table: FloatArray, queries: list[int]) -> FloatArray:
        table = table.copy()
        for q in queries:
            if sizes[q] <= usable:
                np.maximum(table[sizes[q] :], table[: usable + 1 - sizes[q]] + values[q], out=table[sizes[q] :])
        return table

    def leave_out_each(table: FloatArray, queries: list[int]) -> None:
        """Leave out each query in turn. `table[c]` is the best value of total size c without these queries.

        Halving shares the work between queries.
        """
        if len(queries) == 1:
            found.append(best - float(table[max(0, usable - sizes[queries[0]] + 1) :].max()))
            return
        left, right = queries[: len(queries) // 2], queries[len(queries) // 2 :]
        leave_out_each(grown(table, right), left)
        leave_out_each(grown(table, left), right)

    empty = np.full(usable + 1, -np.inf)
    empty[0] = 0.0
    if optimal.any():
        leave_out_each(grown(empty, np.flatnonzero(~optimal).tolist()), np.flatnonzero(optimal).tolist())
    return _without_rounding(np.array(found, dtype=np.float64), instance.values.sum(), instance.n)


def _without_rounding(differences: FloatArray, scale: float, n: int) -> FloatArray:
    return np.where(np.abs(differences) <= 4 * n * np.finfo(np.float64).eps * scale, 0.0, differences)


def log_factor(n: int, horizons: npt.ArrayLike) -> FloatArray:
    """Return ln(16TN/δ) with δ = 1/T: the logarithm that the bounds below use instead of the paper's Õ.

    The paper states its bounds with Õ, which hides constants, logarithms and even the unit of cost (c2 − c1, c2). Each
    bound below is the printed leading term × this factor. They are shapes for comparison with a measured regret, not
    certified numbers: a run above such a curve refutes nothing, one below it proves nothing.
    """
    T = _checked_horizons(horizons)
    return np.asarray(np.log(16 * T * T * checked_number("N", n, at_least=1)))


def problem_dependent_bound(instance: BanditInstance, horizons: npt.ArrayLike) -> FloatArray:
    """Exact Oracle: Σ_{q∈M*} P(q)·N·l(M,Q)/Δ_q. Infinite when two sets are equally good (Δ_min = 0)."""
    optimal = optimal_cache(instance)
    per_gap = _sum_over_gaps(instance.probabilities[optimal], cached_gaps(instance, optimal))
    factor = instance.n * lengths(instance.sizes, instance.capacity).l_mq
    return np.asarray((per_gap * factor if factor else 0.0) * log_factor(instance.n, horizons))


def problem_independent_bound(instance: BanditInstance, horizons: npt.ArrayLike) -> FloatArray:
    """Exact Oracle: sqrt(N·l(M,Q)·T)."""
    l = lengths(instance.sizes, instance.capacity).l_mq
    return np.asarray(np.sqrt(instance.n * l * _checked_horizons(horizons)) * log_factor(instance.n, horizons))


def approximate_problem_dependent_bound(
    instance: BanditInstance,
    beta: float,
    horizons: npt.ArrayLike,
    *,
    harmful_only: bool = False,
    as_printed: bool = False,
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
    return np.asarray((per_gap * factor if factor else 0.0) * log_factor(instance.n, horizons))


def approximate_problem_independent_bound(instance: BanditInstance, horizons: npt.ArrayLike) -> FloatArray:
    """β-approximate Oracle, β-regret: sqrt(N·(N − l_min)·T)."""
    left_out = instance.n - lengths(instance.sizes, instance.capacity).l_min
    return np.asarray(np.sqrt(instance.n * left_out * _checked_horizons(horizons)) * log_factor(instance.n, horizons))


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
