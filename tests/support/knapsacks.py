"""Generators of knapsack instances: the classes of the literature, and instances like those of a cache.

R is the range of the data. Capacities are random, from 2 % to 98 % of the total size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Rng = np.random.Generator
Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class KnapsackInstance(NamedTuple):
    values: npt.NDArray[Any]
    sizes: npt.NDArray[Any]
    capacity: int


def _integers(rng: Rng, low: int, high: int, n: int) -> npt.NDArray[np.int64]:
    return rng.integers(low, high + 1, n)


def uncorrelated(rng: Rng, n: int, R: int) -> Pair:
    return _integers(rng, 1, R, n), _integers(rng, 1, R, n)


def weakly(rng: Rng, n: int, R: int) -> Pair:
    sizes = _integers(rng, 1, R, n)
    spread = max(1, R // 10)
    return np.maximum(1, sizes + _integers(rng, -spread, spread, n)), sizes


def strongly(rng: Rng, n: int, R: int) -> Pair:
    sizes = _integers(rng, 1, R, n)
    return sizes + max(1, R // 10), sizes


def inverse_strongly(rng: Rng, n: int, R: int) -> Pair:
    values = _integers(rng, 1, R, n)
    return values, values + max(1, R // 10)


def almost_strongly(rng: Rng, n: int, R: int) -> Pair:
    values, sizes = strongly(rng, n, R)
    spread = max(1, R // 500)
    return np.maximum(1, values + _integers(rng, -spread, spread, n)), sizes


def subset_sum(rng: Rng, n: int, R: int) -> Pair:
    sizes = _integers(rng, 1, R, n)
    return sizes, sizes


def even_odd(rng: Rng, n: int, R: int) -> Pair:
    """All sizes are even: with an odd capacity the last unit cannot be used, which no bound accounts for."""
    sizes = 2 * _integers(rng, 1, max(1, R // 2), n)
    return sizes, sizes


def spanner(rng: Rng, n: int, R: int) -> Pair:
    """All items are multiples of two items, so there are very few densities."""
    values, sizes = strongly(rng, 2, R)
    kind, times = rng.integers(0, 2, n), _integers(rng, 1, 10, n)
    return times * (values[kind] // 5 + 1), times * (sizes[kind] // 5 + 1)


def multiple_strongly(rng: Rng, n: int, R: int) -> Pair:
    sizes = _integers(rng, 1, R, n)
    return sizes + np.where(sizes % 6 == 0, 3 * R // 10, 2 * R // 10), sizes


def profit_ceiling(rng: Rng, n: int, R: int) -> Pair:
    sizes = _integers(rng, 1, R, n)
    return 3 * (-(-sizes // 3)), sizes


def circle(rng: Rng, n: int, R: int) -> Pair:
    sizes = _integers(rng, 1, R, n)
    return np.floor(2 / 3 * np.sqrt(4.0 * R * R - (sizes - 2.0 * R) ** 2)), sizes


def similar_sizes(rng: Rng, n: int, R: int) -> Pair:
    return _integers(rng, 1, R, n), _integers(rng, 100 * R, 100 * R + max(1, R // 10), n)


CLASSIC: dict[str, Callable[[Rng, int, int], Pair]] = {
    generate.__name__: generate
    for generate in (
        uncorrelated, weakly, strongly, inverse_strongly, almost_strongly, subset_sum, even_odd, spanner,
        multiple_strongly, profit_ceiling, circle, similar_sizes,
    )
}  # fmt: skip


def classic(kind: str, rng: Rng, n: int, R: int) -> KnapsackInstance:
    values, sizes = CLASSIC[kind](rng, n, R)
    return _with_capacity(rng, values.astype(np.float64), sizes)


CACHE_MODES = ("independent", "noisy cost", "counts", "cost is size", "tokens")


def cache_like(mode: str, rng: Rng, n: int, median_size: int = 60) -> KnapsackInstance:
    """Generate Zipf popularity with costs a + b·size, or independent costs. Items that were never requested have value
    0.
    """
    sizes = np.maximum(1, rng.lognormal(np.log(median_size), 1.0, n)).astype(np.int64)
    popularity = 1.0 / rng.permutation(np.arange(1.0, n + 1)) ** rng.uniform(0.6, 1.2)
    popularity /= popularity.sum()
    counts = rng.multinomial(4 * n, popularity)
    if mode == "independent":
        values = np.where(rng.random(n) < 0.2, 0.0, popularity * rng.uniform(0.1, 1.0, n))
    elif mode == "noisy cost":
        values = popularity * (0.2 + 1e-3 * sizes * rng.uniform(0.8, 1.2, n))
    elif mode == "counts":
        values = counts * (0.2 + 1e-3 * sizes)
    elif mode == "cost is size":
        values = counts / (4 * n) * (1e-3 * sizes)
    else:
        sizes = _integers(rng, 1, 40, n)
        values = counts / (4 * n) * (0.2 + 2e-3 * sizes)
    return _with_capacity(rng, values, sizes)


def _with_capacity(rng: Rng, values: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> KnapsackInstance:
    return KnapsackInstance(values, sizes.astype(np.int64), int(rng.uniform(0.02, 0.98) * int(sizes.sum())))
