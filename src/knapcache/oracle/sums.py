"""Sums that can be trusted, and whole numbers in place of floats."""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# The core's values sum to about 2^CORE_BITS: differences, bounds and tolerances stay inside int64.
CORE_BITS = 61
LANES = 16
# `rising` deals out from MANY keys on, DIGIT bits at a time: as many as keep its table in the processor's first cache.
MANY, DIGIT = 512, 11
ALL_BUT_SIGN = 2**63 - 1


@kernel
def total(values: Floats, chosen: Flags, wanted: bool) -> tuple[float, bool]:
    """Sum of the values whose flag is `wanted`, to the last bit or two however many there are, and whether it is exact.

    What an addition rounds off is itself a float (Knuth's TwoSum), and is added up on the side. LANES sums at a time,
    since one would wait for its own last addition.
    """
    n = values.shape[0]
    sums, lost = np.zeros(LANES, np.float64), np.zeros(LANES, np.float64)
    for start in range(0, n - LANES + 1, LANES):
        v, c = values[start : start + LANES], chosen[start : start + LANES]
        for k in range(LANES):
            # `two_sum`, written out; a call would not become a vector instruction.
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
    """The sum as a float, and what rounding took off it, exactly (Knuth)."""
    after = a + b
    part = after - a
    return after, (a - (after - part)) + (b - part)


@kernel
def all_integers(values: Floats) -> bool:
    """Whether every value is an integer."""
    for value in values:  # noqa: SIM110 - a kernel knows no generators
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
def common_divisor(a: int, b: int) -> int:
    """The greatest number that divides both (Euclid)."""
    while b != 0:
        a, b = b, a % b
    return a


@kernel
def rising(keys: Floats) -> Ints:
    """The order that sorts the keys; equal ones keep theirs. Few are merged, many are dealt out by their bits.

    NumPy's own takes seconds to compile for each type of key, and this one is faster on the thousands at hand.
    """
    return merged(keys) if keys.shape[0] < MANY else dealt(keys)


@kernel
def merged(keys: Floats) -> Ints:
    """`rising` by merging runs of 1, 2, 4, …"""
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
def dealt(keys: Floats) -> Ints:
    """`rising` by radix, DIGIT bits at a time from the lowest; digits in which all keys agree are passed over.

    Floats are ordered like the integers their bits spell, negative ones the other way round.
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
        flip = (mask + 1) >> 1 if shift + DIGIT >= 64 else 0  # the sign comes last, and less is more
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
