"""What the Oracle accepts. Everything is refused here, in one line, before anything is computed.

The two limits on sums are what lets the kernels do without a single overflow check: sizes are added and subtracted from
one another in int64, and a density (value/size) is multiplied by another item's size in float64.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput

# Arrays as the Oracle's kernels take them.
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DEFAULT_TOLERANCE = 1e-13
UNLIMITED = -1
SIZES_LIMIT = 2**62
VALUES_LIMIT = 2.0**960


class Problem(NamedTuple):
    """Clean input: every number fits the type the kernels take it in, and so do their sums."""

    values: Floats
    sizes: Ints
    capacity: int
    beta: float
    tol: float
    budget: int


def read(values: Any, sizes: Any, capacity: Any, beta: Any = 0.0, budget: Any = None, tol: Any = None) -> Problem:
    """Check all arguments of `solve`; raises InvalidInput."""
    w = values if _plainly_good(values, np.float64, 0, _LARGEST_VALUE) else _values(values)
    s = sizes if _plainly_good(sizes, np.int64, 1, SIZES_LIMIT) else _sizes(sizes)
    if w.shape != s.shape:
        raise InvalidInput(f"values has {w.shape[0]} items and sizes has {s.shape[0]}; they must have the same length")
    return Problem(
        values=w,
        sizes=s,
        capacity=min(_integer("capacity", capacity, at_least=0), SIZES_LIMIT),  # everything fits long before that
        beta=_factor("beta", beta),
        tol=DEFAULT_TOLERANCE if tol is None else _factor("tol", tol),
        budget=UNLIMITED if budget is None else min(_integer("budget", budget, at_least=1), SIZES_LIMIT),
    )


# As bits, for which positive floats compare like integers.
_LARGEST_VALUE = int(np.float64(VALUES_LIMIT).view(np.int64))


def _plainly_good(given: Any, kind: type, least: int, limit: int) -> bool:
    """Whether an array is what the kernels take and so far from every limit that nothing needs a closer look.

    Only the least and the largest are looked at, so that a million items cost next to nothing. Floats are compared by
    their bits: negative numbers come before 0, infinity and NaN after everything else.
    """
    if not (isinstance(given, np.ndarray) and given.dtype == kind and given.ndim == 1 and given.flags.c_contiguous):
        return False
    if given.shape[0] == 0:
        return True
    numbers = given.view(np.int64)
    # All as large as the largest would still be below the limit: as float bits, log2 n exponents of 2^52 below.
    doublings = given.shape[0].bit_length()
    largest = limit - (doublings << 52) if kind is np.float64 else limit >> doublings
    return bool(numbers.min() >= least and numbers.max() < largest)


def _array(name: str, given: Any) -> npt.NDArray[Any]:
    """A one-dimensional array of integers or floats."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput(f"{name} is not an array of numbers; it must be a flat list or array of numbers") from None
    if array.ndim != 1:
        raise InvalidInput(f"{name} has {array.ndim} dimensions; it must have 1")
    if array.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} holds {array.dtype}; it must hold integers or floats that fit 64 bits")
    # Half precision cannot even hold the limits it is compared with below.
    return array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize < 8 else array


def _refuse_first(name: str, array: npt.NDArray[Any], bad: Flags, allowed: str) -> None:
    if bad.any():
        i = int(bad.argmax())
        raise InvalidInput(f"{name}[{i}] is {array[i]}; it must be {allowed}")


def _values(given: Any) -> Floats:
    array = _array("values", given)
    _refuse_first("values", array, ~(np.isfinite(array) & (array >= 0)), "finite and at least 0")
    with np.errstate(over="ignore"):  # an infinite sum, or a wider float beyond float64, is what is looked for
        values = np.ascontiguousarray(array, np.float64)
        total = values.sum()
    if not total < VALUES_LIMIT:
        raise InvalidInput(f"values sum to {total:g}; they must sum to less than 2**960 (about 9.7e288)")
    return values


def _sizes(given: Any) -> Ints:
    array = _array("sizes", given)
    whole = np.isfinite(array) & (array >= 1) & (np.floor(array) == array)
    _refuse_first("sizes", array, ~whole, "a whole number, at least 1")
    _refuse_first("sizes", array, array >= SIZES_LIMIT, "less than 2**62")
    sizes = np.ascontiguousarray(array, np.int64)
    if float(sizes.sum(dtype=np.float64)) > SIZES_LIMIT / 2:  # near the limit, count exactly
        total = sum(sizes.tolist())
        if total >= SIZES_LIMIT:
            raise InvalidInput(f"sizes sum to {total}; they must sum to less than 2**62")
    return sizes


def _integer(name: str, given: Any, *, at_least: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or isinstance(given, bool | np.bool_) or number < at_least:
        raise InvalidInput(f"{name} is {given!r}; it must be an integer, at least {at_least}")
    return number


def _factor(name: str, given: Any) -> float:
    try:
        number = math.nan if isinstance(given, bool | np.bool_ | str) else float(given)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise InvalidInput(f"{name} is {given!r}; it must be a finite number, at least 0")
    return number
