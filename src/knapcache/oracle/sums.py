"""Sums that can be trusted, and whole numbers in place of floats."""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# The core's values sum to about 2^CORE_BITS: differences, bounds and tolerances stay inside int64.
CORE_BITS = 61


@kernel
def total(values: Floats, chosen: Flags, wanted: bool) -> tuple[float, bool]:
    """Sum of the values whose flag is `wanted`, to the last bit or two however many there are, and whether it is exact.

    What an addition rounds off is itself a float (Knuth's TwoSum), and is added up on the side. Four sums at a time,
    since one would wait for its own last addition.
    """
    n = values.shape[0]
    sums, lost = np.zeros(4, np.float64), np.zeros(4, np.float64)
    a0 = a1 = a2 = a3 = l0 = l1 = l2 = l3 = 0.0
    for i in range(0, n - 3, 4):
        v0 = values[i] if chosen[i] == wanted else 0.0
        v1 = values[i + 1] if chosen[i + 1] == wanted else 0.0
        v2 = values[i + 2] if chosen[i + 2] == wanted else 0.0
        v3 = values[i + 3] if chosen[i + 3] == wanted else 0.0
        b0, b1, b2, b3 = a0 + v0, a1 + v1, a2 + v2, a3 + v3
        c0, c1, c2, c3 = b0 - a0, b1 - a1, b2 - a2, b3 - a3
        l0 += (a0 - (b0 - c0)) + (v0 - c0)
        l1 += (a1 - (b1 - c1)) + (v1 - c1)
        l2 += (a2 - (b2 - c2)) + (v2 - c2)
        l3 += (a3 - (b3 - c3)) + (v3 - c3)
        a0, a1, a2, a3 = b0, b1, b2, b3
    sums[0], sums[1], sums[2], sums[3] = a0, a1, a2, a3
    lost[0], lost[1], lost[2], lost[3] = l0, l1, l2, l3
    sum_, rest, exact = 0.0, 0.0, True
    for i in range(n - n % 4, n):
        if chosen[i] == wanted:
            after, off = two_sum(sum_, values[i])
            sum_, rest, exact = after, rest + off, exact and off == 0.0
    for k in range(4):
        after, off = two_sum(sum_, sums[k])
        sum_, rest, exact = after, rest + off + lost[k], exact and off == 0.0 and lost[k] == 0.0
    return sum_ + rest, exact


@kernel
def two_sum(a: float, b: float) -> tuple[float, float]:
    """a + b as a float, and what rounding took off it, exactly (Knuth)."""
    after = a + b
    part = after - a
    return after, (a - (after - part)) + (b - part)


@kernel
def all_integers(values: Floats) -> bool:
    """Whether every value is an integer."""
    for value in values:
        if value != np.floor(value):
            return False
    return True


@kernel
def whole_numbers(values: Floats, items: Ints, times: Ints) -> tuple[Ints, int, float]:
    """The items' values times 2^exponent, rounded; the exponent; and the sum of all that was rounded off.

    Item j counts times[j] times: so often its value, and what is rounded off it, is in the sums.
    """
    sum_ = 0.0
    for j in range(items.shape[0]):
        sum_ += values[items[j]] * times[j]
    exponent = CORE_BITS - math.frexp(sum_)[1]
    whole = np.empty(items.shape[0], np.int64)
    error = 0.0
    for j in range(items.shape[0]):
        scaled = math.ldexp(values[items[j]], exponent)
        nearest = np.floor(scaled + 0.5)
        whole[j] = int(nearest)
        error += abs(scaled - nearest) * times[j]
    return whole, exponent, error * (1.0 + 2.0**-20)


@kernel
def common_divisor(numbers: Ints) -> int:
    """The greatest number that divides them all (Euclid)."""
    divisor: int = numbers[0]
    for number in numbers:
        a, b = number, divisor
        while b != 0:
            a, b = b, a % b
        divisor = a
        if divisor == 1:
            break
    return divisor
