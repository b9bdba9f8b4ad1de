"""Validation of the Oracle's input.

Because of the two limits on sums the kernels need no overflow checks: sizes are added and subtracted in int64, and a
density (value/size) is multiplied by another item's size in float64.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput

# Array types of the Oracle's kernels.
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DEFAULT_TOLERANCE = 1e-13
UNLIMITED = -1
SIZES_LIMIT = 2**62
VALUES_LIMIT = 2.0**960


class Problem(NamedTuple):
    """Valid input: every number, and every sum, fits the type that the kernels use."""

    values: Floats
    sizes: Ints
    capacity: int
    beta: float
    tol: float
    work_limit: int


def read_problem(
    values: Any, sizes: Any, capacity: Any, beta: Any = 0.0, work_limit: Any = None, tol: Any = None
) -> Problem:
    """Validate and convert all arguments of `solve`; raises InvalidInput."""
    w = values if _clearly_valid(values, np.float64, 0, _MAX_VALUE) else _values(values)
    s = sizes if _clearly_valid(sizes, np.int64, 1, SIZES_LIMIT) else _sizes(sizes)
    if w.shape != s.shape:
        raise InvalidInput(f"values has {w.shape[0]} items and sizes has {s.shape[0]}; they must have the same length")
    return Problem(
        values=_writable(w),
        sizes=_writable(s),
        capacity=min(_integer("capacity", capacity, at_least=0), SIZES_LIMIT),  # sizes sum to less, so all items fit
        beta=_factor("beta", beta),
        tol=DEFAULT_TOLERANCE if tol is None else _factor("tol", tol),
        work_limit=UNLIMITED
        if work_limit is None
        else min(_integer("work_limit", work_limit, at_least=1), SIZES_LIMIT),
    )


# As bits: positive floats compare like integers.
_MAX_VALUE = int(np.float64(VALUES_LIMIT).view(np.int64))


def _clearly_valid(array: Any, kind: type, minimum: int, limit: int) -> bool:
    """Return whether an array has the right type and is so far from every limit that no closer check is needed.

    Only the minimum and the maximum are examined, which is fast for a million items. Floats are compared by their bits:
    negative numbers sort before 0, infinity and NaN after all other values.
    """
    if not (isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == 1 and array.flags.c_contiguous):
        return False
    if array.shape[0] == 0:
        return True
    numbers = array.view(np.int64)
    # n times the maximum must stay below the limit. For float bits that is log2 n exponents of 2^52 each.
    doublings = array.shape[0].bit_length()
    largest = limit - (doublings << 52) if kind is np.float64 else limit >> doublings
    return bool(numbers.min() >= minimum and numbers.max() < largest)


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array, or a copy of a read-only one: it has another type for Numba, and the kernels another build."""
    return array if array.flags.writeable else array.copy()


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a one-dimensional array of integers or floats."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput(
            f"{name} is not an array of numbers; it must be a one-dimensional list or array of numbers"
        ) from None
    if array.ndim != 1:
        raise InvalidInput(f"{name} has {array.ndim} dimensions; it must have 1")
    if array.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} holds {array.dtype}; it must hold integers or floats that fit 64 bits")
    # Half precision cannot represent the limits below.
    return array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize < 8 else array


def _reject_first(name: str, array: npt.NDArray[Any], bad: Flags, allowed: str) -> None:
    if bad.any():
        i = int(bad.argmax())
        raise InvalidInput(f"{name}[{i}] is {array[i]}; it must be {allowed}")


def _values(value: Any) -> Floats:
    array = _array("values", value)
    _reject_first("values", array, ~(np.isfinite(array) & (array >= 0)), "finite and at least 0")
    with np.errstate(over="ignore"):  # an infinite sum, or a wider float beyond float64, is rejected below
        values = np.ascontiguousarray(array, np.float64)
        total = values.sum()
    if not total < VALUES_LIMIT:
        raise InvalidInput(f"values sum to {total:g}; they must sum to less than 2**960 (about 9.7e288)")
    return values


def _sizes(value: Any) -> Ints:
    array = _array("sizes", value)
    whole = np.isfinite(array) & (array >= 1) & (np.floor(array) == array)
    _reject_first("sizes", array, ~whole, "an integer, at least 1")
    _reject_first("sizes", array, array >= SIZES_LIMIT, "less than 2**62")
    sizes = np.ascontiguousarray(array, np.int64)
    if float(sizes.sum(dtype=np.float64)) > SIZES_LIMIT / 2:  # near the limit, sum exactly
        total = sum(sizes.tolist())
        if total >= SIZES_LIMIT:
            raise InvalidInput(f"sizes sum to {total}; they must sum to less than 2**62")
    return sizes


def _integer(name: str, value: Any, *, at_least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or number < at_least:
        raise InvalidInput(f"{name} is {value!r}; it must be an integer, at least {at_least}")
    return number


def _factor(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool | np.bool_ | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise InvalidInput(f"{name} is {value!r}; it must be a finite number, at least 0")
    return number
