"""The paper's problem with known parameters, its valid sets, and how many queries they hold.

Notation: N queries; query q has arrival probability P(q), mean cost C*(q) and size S(q); the cache has capacity M.
The value of a set of queries is the sum of its P·C*; the best set that fits is M*. A set is *valid* if it fits and no
query left out would fit as well. 𝔙 is the set of all valid sets.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
        sizes, capacity = checked_sizes(self.sizes, self.capacity)
        probabilities = checked_floats("probabilities", self.probabilities)
        costs = checked_floats("costs", self.costs)
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


def valid_sets(sizes: IntArray, capacity: int) -> BoolArray:
    """𝔙 = {A : M − min_{q'∉A} S(q') < Σ_{q∈A} S(q) ≤ M}, one row per set, one column per query. N ≤ MAX_ENUMERATED.

    The set of all queries, if it fits, is valid: no q' remains. It is then the only valid set.
    """
    sizes, capacity = checked_sizes(sizes, capacity)
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


def lengths(sizes: IntArray, capacity: int) -> Lengths:
    """Compute l_min and l_max without enumeration, in O(N·M).

    l_max: take the smallest queries first. No feasible set holds more, and the next one does not fit, so it is valid.
    """
    sizes, capacity = checked_sizes(sizes, capacity)
    l_max = int(np.searchsorted(np.cumsum(np.sort(sizes)), capacity, side="right"))
    return Lengths(len(sizes), _l_min(sizes, capacity), l_max)


def _l_min(sizes: IntArray, capacity: int) -> int:
    """Compute l_min by a table over total sizes.

    For each size s that could be the smallest one left out, all smaller queries are in, one of size s is out, and the
    others are free to choose: find the fewest that bring the total into (M − s, M]. The table grows from the largest
    size down, so it always covers exactly the free queries.
    """
    usable = table_capacity(sizes, capacity)
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


def table_capacity(sizes: IntArray, capacity: int) -> int:
    usable = min(capacity, int(sizes.sum()))
    if usable > MAX_TABLE:
        raise InvalidInput(f"capacity is {usable}; at most {MAX_TABLE} is allowed for tables (use a coarser size unit)")
    return usable


def shown(array: npt.NDArray[np.generic]) -> str:
    return reprlib.repr(array.tolist())  # one short line for any array


def checked_sizes(sizes: npt.ArrayLike, capacity: int) -> tuple[IntArray, int]:
    array = np.asarray(sizes)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 1:
        raise InvalidInput(f"sizes are {shown(array)}; they must be a flat array of integers, at least 1")
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 0:
        raise InvalidInput(f"capacity is {capacity!r}; it must be an integer, at least 0")
    return array.astype(np.int64), int(capacity)


def checked_floats(name: str, numbers: npt.ArrayLike) -> FloatArray:
    array = np.array(numbers, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise InvalidInput(f"{name} are {shown(array)}; they must be a flat array of finite numbers")
    return array


def checked_number(name: str, number: float, *, at_least: float = -math.inf, above: float = -math.inf) -> float:
    if not (math.isfinite(number) and number >= at_least and number > above):
        bound = f" above {above:g}" if above > -math.inf else f", at least {at_least:g}" if at_least > -math.inf else ""
        raise InvalidInput(f"{name} is {number}; it must be a finite number{bound}")
    return float(number)
