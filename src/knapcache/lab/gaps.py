"""The optimal cache, and the gaps between it and the other valid sets.

Where the printed definitions cannot be meant literally:
- Δ_q is a minimum over sets that leave q out, so it is +∞ when no such set exists (printed: when none holds q).
- Δ_min is printed as min over all of 𝔙, which holds M* itself and would always give 0. Here: over 𝔙 without M*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knapcache import oracle
from knapcache.errors import InvalidInput
from knapcache.lab.valid_sets import (
    MAX_ENUMERATED,
    BanditInstance,
    BoolArray,
    FloatArray,
    checked_number,
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
