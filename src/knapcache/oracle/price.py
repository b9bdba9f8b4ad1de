"""The break price: the density at which the capacity is used up, found without sorting.

Take items by decreasing density w/S until one does not fit. The density λ of that *break item* is the value of one more
unit of capacity, and the other modules compare items with it. A full sort is not needed: only the place matters where
the sizes sum to the capacity.

Positive floats have the same order as the integers with the same bits. So interpret the density as an integer, sum the
sizes of all items by its first bits, and go down from the densest bucket to the first that does not fit. It contains
the break item. Repeat with the next bits of that bucket's items until all of these are equal (a radix sort that follows
one branch). Each step reads only what the previous one left, about two passes in all. Equal densities, which make a
quickselect very slow, end it early.

A density is rounded, but rounding is monotonic: fl(w/S) > λ implies w/S > λ if the size is exact as a float (up to
2^53). So only items *at* λ can be on the wrong side of it, and only by the last bit.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# Bits per step. WIDE keeps the table of sums in the processor's cache; NARROW is for fewer than FEW items.
WIDE, NARROW, FEW = 16, 7, 1024
BLOCK = 4096


@kernel
def compute_densities(values: Floats, sizes: Ints, limit: int, density: Ints) -> int:
    """Write every item's density as float bits; returns the total size of the useful items.

    Items of value 0, or larger than `limit`, are not useful: their bits are negative.
    """
    as_float = density.view(np.float64)
    n, size = values.shape[0], 0
    for start in range(0, n, BLOCK):
        w, s, d = values[start : start + BLOCK], sizes[start : start + BLOCK], as_float[start : start + BLOCK]
        np.divide(w, s, d)  # unlike a loop it does not check for zero; a block stays in the cache
        for i in range(w.shape[0]):
            useful = (w[i] > 0.0) & (s[i] <= limit)
            d[i] = d[i] if useful else -1.0
            size += s[i] * useful
    return size


@kernel
def break_items(density: Ints, sizes: Ints, capacity: int, items: Ints) -> tuple[int, int, int]:
    """Return the bits of λ, the number of items with exactly this density, and the capacity left for them.

    These items are written to `items` in their original order. The useful items must not all fit.
    """
    width = NARROW if density.shape[0] < FEW else WIDE
    shift = 63 - width
    free = capacity
    sums = np.zeros(1 << width, np.int64)
    lowest, highest = len(sums), -1
    for i in range(density.shape[0]):
        bucket = density[i] >> shift
        if bucket >= 0:
            sums[bucket] += sizes[i]
            lowest, highest = min(lowest, bucket), max(highest, bucket)
    broken, free = break_bucket(sums, lowest, highest, free)
    count = 0
    for i in range(density.shape[0]):
        items[count] = i
        count += (density[i] >> shift) == broken
    while shift > 0:
        # Skip leading bits that are equal in all of them.
        top = min(shift, math.frexp(float(differing_bits(density, items, count)))[1])
        if top == 0:
            break
        width = min(top, NARROW if count < FEW else WIDE)
        shift = top - width
        mask = (1 << width) - 1
        lowest, highest = mask, 0
        for k in range(count):
            bucket = (density[items[k]] >> shift) & mask
            sums[bucket] += sizes[items[k]]
            lowest, highest = min(lowest, bucket), max(highest, bucket)
        broken, free = break_bucket(sums, lowest, highest, free)
        kept = 0
        for k in range(count):
            items[kept] = items[k]
            kept += ((density[items[k]] >> shift) & mask) == broken
        count = kept
    return density[items[0]], count, free


@kernel
def break_bucket(sums: Ints, lowest: int, highest: int, free: int) -> tuple[int, int]:
    """Return the densest bucket that does not fit, and the capacity left for it; clears the sums."""
    bucket = highest
    while sums[bucket] <= free:
        free -= sums[bucket]
        bucket -= 1
    for k in range(lowest, highest + 1):
        sums[k] = 0
    return bucket, free


@kernel
def differing_bits(density: Ints, items: Ints, count: int) -> int:
    """Return the bits that differ among the densities of the first `count` items."""
    bits = 0
    for k in range(count):
        bits |= density[items[k]] ^ density[items[0]]
    return bits


@kernel
def choose_dense(values: Floats, density: Ints, price_bits: int, chosen: Flags) -> tuple[float, float]:
    """Choose all items denser than the price; returns the value chosen and the value left out.

    Four sums at a time, because one sum would wait for its own last addition. No branches, because every third would be
    mispredicted. The relative error is at most n·2^-53, enough for a tolerance.
    """
    n = values.shape[0]
    for i in range(n):
        chosen[i] = density[i] > price_bits
    in0 = in1 = in2 = in3 = out0 = out1 = out2 = out3 = 0.0
    for i in range(0, n - 3, 4):
        v0, v1, v2, v3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        c0, c1, c2, c3 = v0 * chosen[i], v1 * chosen[i + 1], v2 * chosen[i + 2], v3 * chosen[i + 3]
        in0, in1, in2, in3 = in0 + c0, in1 + c1, in2 + c2, in3 + c3
        out0, out1, out2, out3 = out0 + (v0 - c0), out1 + (v1 - c1), out2 + (v2 - c2), out3 + (v3 - c3)
    for i in range(n - n % 4, n):
        in0 += values[i] * chosen[i]
        out0 += values[i] * (not chosen[i])
    return (in0 + in1) + (in2 + in3), (out0 + out1) + (out2 + out3)


@kernel
def choose_tied(values: Floats, sizes: Ints, tied: Ints, free: int, chosen: Flags) -> tuple[int, float, float]:
    """Choose items at the price, in order, up to the first that does not fit.

    Returns the capacity left, the value chosen, and the value of all tied items.
    """
    k, taken, tied_value = 0, 0.0, 0.0
    while sizes[tied[k]] <= free:
        free -= sizes[tied[k]]
        taken += values[tied[k]]
        chosen[tied[k]] = True
        k += 1
    for i in tied:
        tied_value += values[i]
    return free, taken, tied_value


@kernel
def value_near_price(values: Floats, sizes: Ints, price: float, precision: float) -> float:
    """Return the sum of the values whose density equals the price within `precision`, for sizes inexact as floats."""
    total = 0.0
    for i in range(values.shape[0]):
        at_price = price * sizes[i]
        if abs(values[i] - at_price) <= (values[i] + at_price) * precision:
            total += values[i]
    return total
