"""Accurate sums, conversion to integers, and sorting."""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# The core's values sum to about 2^CORE_BITS, so differences, bounds and tolerances fit into int64.
CORE_BITS = 61
LANES = 16
# `argsort` uses radix sort from MANY keys on, DIGIT bits at a time, so that its table fits into the L1 cache.
MANY, DIGIT = 512, 11
ALL_BUT_SIGN = 2**63 - 1


@kernel
def accurate_sum(values: Floats, chosen: Flags, wanted: bool) -> tuple[float, bool]:
    """Return the sum of the values whose flag is `wanted`, accurate to one or two bits, and whether it is exact.

    The rounding error of an addition is itself a float (Knuth's TwoSum); these errors are summed separately. LANES sums
    at a time, because one sum would wait for its own last addition.
    """
    n = values.shape[0]
    sums, lost = np.zeros(LANES, np.float64), np.zeros(LANES, np.float64)
    for start in range(0, n - LANES + 1, LANES):
        v, c = values[start : start + LANES], chosen[start : start + LANES]
        for k in range(LANES):
            # `two_sum`, inlined by hand: a call would not be vectorised.
            a, b = sums[k], v[k] * (c[k] == wanted)
            after = a + b
            part = after - a
            sums[k] = after
            lost[k] += (a - (after - part)) + (b - part)
    sum_, rest, exact = 0.0, 0.0, True
    for i in range(n - n % LANES, n):
        sum_, off = two_sum(sum_, values[i] * (chosen[i] == wanted))
        rest, exact = rest + off, exact and off == 0.0
    for k in range(LANES):
        sum_, off = two_sum(sum_, sums[k])
        rest, exact = rest + off + lost[k], exact and off == 0.0 and lost[k] == 0.0
    return sum_ + rest, exact


@kernel
def two_sum(a: float, b: float) -> tuple[float, float]:
    """Return the rounded sum and its exact rounding error (Knuth)."""
    after = a + b
    part = after - a
    return after, (a - (after - part)) + (b - part)


@kernel
def all_integers(values: Floats) -> bool:
    for value in values:  # noqa: SIM110 - Numba does not compile generator expressions
        if value != np.floor(value):
            return False
    return True


@kernel
def to_integers(values: Floats, items: Ints, copies: Ints) -> tuple[Ints, int, float]:
    """Return the items' values times 2^exponent, rounded; the exponent; and the sum of the rounding errors.

    Item j counts copies[j] times in the sums.
    """
    sum_ = 0.0
    for j in range(items.shape[0]):
        sum_ += values[items[j]] * copies[j]
    exponent = CORE_BITS - math.frexp(sum_)[1]
    whole = np.empty(items.shape[0], np.int64)
    error = 0.0
    for j in range(items.shape[0]):
        scaled = math.ldexp(values[items[j]], exponent)
        nearest = np.floor(scaled + 0.5)
        whole[j] = int(nearest)
        error += abs(scaled - nearest) * copies[j]
    return whole, exponent, error * (1.0 + 2.0**-20)


@kernel
def gcd(a: int, b: int) -> int:
    """Return the greatest common divisor (Euclid)."""
    while b != 0:
        a, b = b, a % b
    return a


@kernel
def argsort(keys: Floats) -> Ints:
    """Return the stable sort order of the keys: by merge sort for few keys, by radix sort for many.

    `np.argsort` takes seconds to compile for each key type, and is slower on the thousands of keys used here.
    """
    return merge_argsort(keys) if keys.shape[0] < MANY else radix_argsort(keys)


@kernel
def merge_argsort(keys: Floats) -> Ints:
    """Sort by merging runs of 1, 2, 4, …"""
    n = keys.shape[0]
    order, other = np.arange(n), np.empty(n, np.int64)
    run = 1
    while run < n:
        for start in range(0, n, 2 * run):
            left, middle, end = start, min(start + run, n), min(start + 2 * run, n)
            right = middle
            for k in range(start, end):
                if left < middle and (right == end or keys[order[left]] <= keys[order[right]]):
                    other[k] = order[left]
                    left += 1
                else:
                    other[k] = order[right]
                    right += 1
        order, other = other, order
        run *= 2
    return order


@kernel
def radix_argsort(keys: Floats) -> Ints:
    """Sort by radix, DIGIT bits at a time from the lowest; digits that are equal in all keys are skipped.

    Floats have the same order as the integers with the same bits, negative ones in reverse.
    """
    n = keys.shape[0]
    bits = (keys + 0.0).view(np.int64)  # −0.0 is 0.0
    differ = 0
    for k in range(n):
        bits[k] ^= (bits[k] >> 63) & ALL_BUT_SIGN
        differ |= bits[k] ^ bits[0]
    order, other = np.arange(n), np.empty(n, np.int64)
    places = np.empty((1 << DIGIT) + 1, np.int64)
    for shift in range(0, 64, DIGIT):
        mask = (1 << min(DIGIT, 64 - shift)) - 1
        if (differ >> shift) & mask == 0:
            continue
        flip = (mask + 1) >> 1 if shift + DIGIT >= 64 else 0  # the last digit holds the sign: negative sorts first
        places[:] = 0
        for k in range(n):
            places[(((bits[k] >> shift) & mask) ^ flip) + 1] += 1
        for digit in range(mask):
            places[digit + 1] += places[digit]
        for k in range(n):
            i = order[k]
            digit = ((bits[i] >> shift) & mask) ^ flip
            other[places[digit]] = i
            places[digit] += 1
        order, other = other, order
    return order
