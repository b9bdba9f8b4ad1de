"""The paper's theory as code: valid sets, gaps and the bounds of both theorems, for comparison with measured runs.

Notation: N queries; query q has arrival probability P(q), mean cost C*(q) and size S(q); the cache has capacity M.
The value of a set of queries is the sum of its P·C*; the best set that fits is M*. A set is *valid* if it fits and no
query left out would fit as well. 𝔙 is the set of all valid sets.

Sets, lengths and gaps are exact. The bounds are only shapes (see `log_factor`).

Where the printed definitions cannot be meant literally:
- Δ_q is a minimum over sets that leave q out, so it is +∞ when no such set exists (printed: when none holds q).
- Δ_min is printed as min over all of 𝔙, which holds M* itself and would always give 0. Here: over 𝔙 without M*.
- The approximate theorem asks for Δ_min > 0. Its sum divides by Δ^c_q, so it needs Δ^c_min > 0.

This file is longer than most, so that it follows the paper from top to bottom: 𝔙, l, Δ, theorems, regret.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache import oracle
from knapcache.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_ENUMERATED = 20
"""Enumeration visits 2^N sets; it raises InvalidInput for more queries than this."""
MAX_TABLE = 1_000_000
"""Largest capacity (in size units) for which a table over capacities is filled."""


@dataclass(frozen=True, slots=True, eq=False)
class BanditInstance:
    """One problem of the paper with all parameters known. Arrays are copied and made read-only."""

    probabilities: FloatArray
    """P(q), positive, summing to 1."""
    costs: FloatArray
    """C*(q), positive. So every query has a positive value, and an optimal set is always valid."""
    sizes: IntArray
    """S(q), integers of at least 1."""
    capacity: int
    """M."""

    def __post_init__(self) -> None:
        sizes, capacity = _checked_sizes(self.sizes, self.capacity)
        probabilities = _checked_floats("probabilities", self.probabilities)
        costs = _checked_floats("costs", self.costs)
        if not len(sizes) == len(probabilities) == len(costs):
            raise InvalidInput(
                f"{len(probabilities)} probabilities, {len(costs)} costs and {len(sizes)} sizes were given; "
                "each query needs one of each"
            )
        if probabilities.min() <= 0 or abs(probabilities.sum() - 1) > 1e-9:
            raise InvalidInput(
                f"probabilities have minimum {probabilities.min():g} and sum {probabilities.sum():.12g}; "
                "they must be positive and sum to 1"
            )
        if costs.min() <= 0:
            raise InvalidInput(f"costs have minimum {costs.min():g}; they must be positive")
        for name, array in (("probabilities", probabilities), ("costs", costs), ("sizes", sizes)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "capacity", capacity)

    @property
    def n(self) -> int:
        """N."""
        return len(self.sizes)

    @property
    def values(self) -> FloatArray:
        """P(q)·C*(q): the expected saving per request if q is cached."""
        return self.probabilities * self.costs


# Valid sets and their lengths ------------------------------------------------------------------------------------


def valid_sets(sizes: IntArray, capacity: int) -> BoolArray:
    """𝔙 = {A : M − min_{q'∉A} S(q') < Σ_{q∈A} S(q) ≤ M}, one row per set, one column per query. N ≤ MAX_ENUMERATED.

    The set of all queries, if it fits, is valid: no q' remains. It is then the only valid set.
    """
    sizes, capacity = _checked_sizes(sizes, capacity)
    capacity, n = min(capacity, int(sizes.sum())), len(sizes)
    if n > MAX_ENUMERATED:
        raise InvalidInput(f"{n} queries are too many to enumerate; at most {MAX_ENUMERATED} are allowed")
    # Sets are bit masks 0 … 2^N − 1. Query i doubles both tables: the first half without it, the second half with it.
    total = np.zeros(1, dtype=np.int64)
    smallest_out = np.full(1, capacity + 1, dtype=np.int64)  # nothing left out yet: a size that never fits
    for size in sizes:
        total = np.concatenate((total, total + size))
        smallest_out = np.concatenate((np.minimum(smallest_out, size), smallest_out))
    masks = np.flatnonzero((capacity - smallest_out < total) & (total <= capacity))
    return np.asarray((masks[:, None] >> np.arange(n)) & 1, dtype=np.bool_)


class Lengths(NamedTuple):
    """How many queries a valid set can hold."""

    n: int
    """N."""
    l_min: int
    """min_{A∈𝔙} |A|."""
    l_max: int
    """max_{A∈𝔙} |A|."""

    @property
    def l_mq(self) -> int:
        """The paper's l(M,Q) = min{l_max, N − l_min}."""
        return min(self.l_max, self.n - self.l_min)


def lengths_by_enumeration(sizes: IntArray, capacity: int) -> Lengths:
    """Compute l_min and l_max from their definitions. N ≤ MAX_ENUMERATED."""
    held = valid_sets(sizes, capacity).sum(axis=1)
    return Lengths(len(sizes), int(held.min()), int(held.max()))


def lengths(sizes: IntArray, capacity: int) -> Lengths:
    """Compute l_min and l_max without enumeration, in O(N·M).

    l_max: take the smallest queries first. No feasible set holds more, and the next one does not fit, so it is valid.
    """
    sizes, capacity = _checked_sizes(sizes, capacity)
    l_max = int(np.searchsorted(np.cumsum(np.sort(sizes)), capacity, side="right"))
    return Lengths(len(sizes), _l_min(sizes, capacity), l_max)


def _l_min(sizes: IntArray, capacity: int) -> int:
    """Compute l_min by a table over total sizes.

    For each size s that could be the smallest one left out, all smaller queries are in, one of size s is out, and the
    others are free to choose: find the fewest that bring the total into (M − s, M]. The table grows from the largest
    size down, so it always covers exactly the free queries.
    """
    usable = _table_capacity(sizes, capacity)
    if usable == sizes.sum():
        return len(sizes)
    unreachable = len(sizes) + 1
    fewest = np.full(usable + 1, unreachable, dtype=np.int64)  # fewest free queries with exactly this total size
    fewest[0] = 0
    best = unreachable

    def add_free(size: int) -> None:
        if size <= usable:
            np.minimum(fewest[size:], fewest[: usable + 1 - size] + 1, out=fewest[size:])

    for size, copies in sorted(Counter(sizes.tolist()).items(), reverse=True):
        smaller = sizes[sizes < size]
        for _ in range(copies - 1):
            add_free(size)
        left = usable - int(smaller.sum())
        if left >= 0:
            best = min(best, len(smaller) + int(fewest[max(0, left - size + 1) : left + 1].min()))
        add_free(size)  # the one left out is free for every smaller s
    return best


# The optimal cache and the gaps ----------------------------------------------------------------------------------


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
    beta = _checked_number("beta", beta, at_least=0)
    optimal = optimal_cache(instance)
    valid = valid_sets(instance.sizes, instance.capacity)
    of_set = ~valid @ instance.values - (1 + beta) * instance.values[~optimal].sum()
    of_set = _without_rounding(of_set, (1 + beta) * instance.values.sum(), instance.n)
    counted = (valid != optimal).any(axis=1)
    if harmful_only:
        counted &= of_set > 0
    of_query = np.where(~valid & counted[:, None], of_set[:, None], np.inf).min(axis=0)
    return Gaps(beta, optimal, valid, of_set, of_query, float(of_query.min()))


def cached_gaps(instance: BanditInstance) -> FloatArray:
    """Compute Δ_q of each q ∈ M*, in the order of the queries, without enumeration: O(N·log N·M). Its minimum is Δ_min.

    Δ_q = V* − max{value of A : q ∉ A, M − S(q) < Σ S ≤ M}. Each valid set without q is among these, and since
    every value is positive nothing more fits into the best of them: it is valid. Any valid A ≠ M* misses some q ∈ M*
    (it would hold M* and more otherwise, and more does not fit), so the minimum over M* is Δ_min.
    """
    return _cached_gaps(instance, optimal_cache(instance))


def _cached_gaps(instance: BanditInstance, optimal: BoolArray) -> FloatArray:
    usable = _table_capacity(instance.sizes, instance.capacity)
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


# The theorems ----------------------------------------------------------------------------------------------------


def log_factor(n: int, horizons: npt.ArrayLike) -> FloatArray:
    """Return ln(16TN/δ) with δ = 1/T: the logarithm that the bounds below use in place of the paper's Õ.

    The paper states its bounds with Õ, which hides constants, logarithms and even the unit of cost (c2 − c1, c2). Each
    bound below is the printed leading term × this factor × `constant`. They are shapes for comparison with a measured
    regret, not certified numbers: a run above such a curve refutes nothing, one below it proves nothing.
    """
    T = _checked_horizons(horizons)
    return np.asarray(np.log(16 * T * T * _checked_number("N", n, at_least=1)))


def problem_dependent_bound(instance: BanditInstance, horizons: npt.ArrayLike, *, constant: float = 1.0) -> FloatArray:
    """Exact Oracle: Σ_{q∈M*} P(q)·N·l(M,Q)/Δ_q. Infinite when two sets are equally good (Δ_min = 0)."""
    optimal = optimal_cache(instance)
    per_gap = _sum_over_gaps(instance.probabilities[optimal], _cached_gaps(instance, optimal))
    factor = instance.n * lengths(instance.sizes, instance.capacity).l_mq
    return _shape(instance, horizons, constant, per_gap * factor if factor else 0.0)


def problem_independent_bound(
    instance: BanditInstance, horizons: npt.ArrayLike, *, constant: float = 1.0
) -> FloatArray:
    """Exact Oracle: sqrt(N·l(M,Q)·T)."""
    l = lengths(instance.sizes, instance.capacity).l_mq
    return _shape(instance, horizons, constant, np.sqrt(instance.n * l * _checked_horizons(horizons)))


def approximate_problem_dependent_bound(
    instance: BanditInstance, beta: float, horizons: npt.ArrayLike, *, harmful_only: bool = False, constant: float = 1.0
) -> FloatArray:
    """β-approximate Oracle, β-regret: Σ_q P(q)·N·(N − l_min)/Δ^c_q, over all queries. N ≤ MAX_ENUMERATED.

    Infinite when some Δ^c_q ≤ 0: the theorem's premise fails. `harmful_only`: see `gaps`.
    """
    found = gaps(instance, beta, harmful_only=harmful_only)
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
    constant = _checked_number("constant", constant, above=0)
    return np.asarray(constant * leading * log_factor(instance.n, horizons))


def _sum_over_gaps(probabilities: FloatArray, of_query: FloatArray) -> float:
    return math.inf if (of_query <= 0).any() else float((probabilities / of_query).sum())


def oracle_call_bound(n: int, horizons: npt.ArrayLike, alpha: float) -> FloatArray:
    """N·(1 + log_{1+α} T) + log_{1+α} T: how often each query's miss count, and the time, can grow by a factor 1+α."""
    growths = np.log(_checked_horizons(horizons)) / math.log1p(_checked_number("alpha", alpha, above=0))
    return np.asarray(_checked_number("N", n, at_least=1) * (1 + growths) + growths)


# Measured regret -------------------------------------------------------------------------------------------------


def cumulative_regret(cache_values: npt.ArrayLike, best_value: npt.ArrayLike) -> FloatArray:
    """Σ_{s≤t} [V* − V_s] for each t, V_s = Σ_{q∈M_{s−1}} P·C*: the cache before request s.

    V* is one number, or one for each request where popularity changes.
    """
    values = _checked_floats("cache_values", cache_values)
    return np.cumsum(np.broadcast_to(_checked_floats("best_value", np.atleast_1d(best_value)), values.shape) - values)


def cumulative_beta_regret(
    cache_values: npt.ArrayLike, best_value: float, all_values: float, beta: float
) -> FloatArray:
    """Σ_{s≤t} [(V_all − V_s) − (1+β)·(V_all − V*)] for each t, V_all = Σ_q P·C*. Negative if better than required."""
    regret = cumulative_regret(cache_values, best_value)
    slack = 1e-9 * abs(best_value)  # if everything fits, both are the same sum in another order
    left_out = max(0.0, _checked_number("all_values", all_values, at_least=best_value - slack) - best_value)
    return regret - _checked_number("beta", beta, at_least=0) * left_out * np.arange(1, len(regret) + 1)


# Checks and small arithmetic -------------------------------------------------------------------------------------


def _without_rounding(differences: FloatArray, scale: float, n: int) -> FloatArray:
    return np.where(np.abs(differences) <= 4 * n * np.finfo(np.float64).eps * scale, 0.0, differences)


def _table_capacity(sizes: IntArray, capacity: int) -> int:
    usable = min(capacity, int(sizes.sum()))
    if usable > MAX_TABLE:
        raise InvalidInput(f"capacity is {usable}; at most {MAX_TABLE} is allowed for tables (use a coarser size unit)")
    return usable


def _shown(array: npt.NDArray[np.generic]) -> str:
    return reprlib.repr(array.tolist())  # one short line for any array


def _checked_sizes(sizes: npt.ArrayLike, capacity: int) -> tuple[IntArray, int]:
    array = np.asarray(sizes)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 1:
        raise InvalidInput(f"sizes are {_shown(array)}; they must be a flat array of integers, at least 1")
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 0:
        raise InvalidInput(f"capacity is {capacity!r}; it must be an integer, at least 0")
    return array.astype(np.int64), int(capacity)


def _checked_floats(name: str, numbers: npt.ArrayLike) -> FloatArray:
    array = np.array(numbers, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise InvalidInput(f"{name} are {_shown(array)}; they must be a flat array of finite numbers")
    return array


def _checked_horizons(horizons: npt.ArrayLike) -> FloatArray:
    T = np.asarray(horizons, dtype=np.float64)
    if not (np.isfinite(T) & (T >= 1)).all():
        raise InvalidInput(f"horizons are {_shown(T)}; they must be finite numbers, at least 1")
    return T


def _checked_number(name: str, number: float, *, at_least: float = -math.inf, above: float = -math.inf) -> float:
    if not (math.isfinite(number) and number >= at_least and number > above):
        bound = f" above {above:g}" if above > -math.inf else f", at least {at_least:g}" if at_least > -math.inf else ""
        raise InvalidInput(f"{name} is {number}; it must be a finite number{bound}")
    return float(number)
