"""Exponents of power laws, with confidence intervals over repeats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLES = 2_000
LEVEL = 0.95
"""Confidence level of the intervals."""


class Exponent(NamedTuple):
    """An estimate with its interval."""

    estimate: float
    low: float
    high: float


def fit_exponent(x: npt.ArrayLike, y: npt.ArrayLike) -> Exponent | None:
    """Return p of y ∝ x^p by least squares of log mean y on log x; `y` has one row per repeat.

    The interval is a percentile bootstrap over repeats: it holds the queries and requests to be random. Return None
    with fewer than two values of x or two repeats, or if a mean is not positive.
    """
    log_x, rows = np.log(np.asarray(x, np.float64)), np.asarray(y, np.float64)
    if len(log_x) < 2 or len(rows) < 2 or (rows.mean(axis=0) <= 0).any():
        return None
    rng = np.random.default_rng(0)
    drawn = rows[rng.integers(0, len(rows), (RESAMPLES, len(rows)))].mean(axis=1)
    means = np.vstack([rows.mean(axis=0), drawn[(drawn > 0).all(axis=1)]])
    centred = log_x - log_x.mean()
    slopes = np.log(means) @ centred / (centred @ centred)
    low, high = np.quantile(slopes[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Exponent(float(slopes[0]), float(low), float(high))


def exponent_columns(x: npt.ArrayLike, regret: npt.ArrayLike, bound: npt.ArrayLike) -> dict[str, float | None]:
    """Return the columns of a table with the exponent of the regret, its interval, and the exponent of the bound."""
    fit, of_bound = fit_exponent(x, regret), fit_exponent(x, bound)
    return {
        "exponent": fit.estimate if fit else None,
        "exponent_low": fit.low if fit else None,
        "exponent_high": fit.high if fit else None,
        "exponent_of_bound": of_bound.estimate if of_bound else None,
    }
