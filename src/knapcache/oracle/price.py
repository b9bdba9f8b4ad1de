"""The price of room: the density at which a knapsack is full, found without sorting.

By falling density w/S, take items until one does not fit. The density λ of that *break item* is what one more unit of
room is worth, and everything else in this package is measured against it. Sorting to find it is a waste: all that
matters is the one place where the sizes add up to the capacity.

Positive floats are ordered like the integers their bits spell. So read the density as an integer, add up the sizes of
all items by its first few bits, and walk down from the densest bucket until the next one does not fit: the break item
is in there. Look at the next few bits of that bucket's items only, and so on until they are all alike (a radix sort
that follows one branch). Each step looks at what the last one left, so it is two passes in all, and equal densities,
which slow a quickselect to a crawl, end it early.

A density is rounded, but rounding keeps order: fl(w/S) > λ says that w/S > λ, for sizes that are floats themselves (up
to 2^53). Hence only items *at* λ can be on the wrong side of it, and those by a last bit.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# Bits looked at in one step: as many as keep the table of sums in the processor's cache, and few for few items.
WIDE, NARROW, FEW = 16, 7, 1024
BLOCK = 4096


@kernel
def measure(values: Floats, sizes: Ints, limit: int, density: Ints) -> int:
    """Write every item's density, as bits; returns the size of all useful items together.

    An item of no value, or larger than `limit`, is of no use: its bits are negative.
    """
    as_float = density.view(np.float64)
    n, size = values.shape[0], 0
    for start in range(0, n, BLOCK):
        w, s, d = values[start : start + BLOCK], sizes[start : start + BLOCK], as_float[start : start + BLOCK]
        np.divide(w, s, d)  # unlike a loop, not slowed down by a check for zero; and a block stays in the cache
        for i in range(w.shape[0]):
            useful = (w[i] > 0.0) & (s[i] <= limit)
            d[i] = d[i] if useful else -1.0
            size += s[i] * useful
    return size


@kernel
def break_items(density: Ints, sizes: Ints, capacity: int, items: Ints) -> tuple[int, int, int]:
    """The bits of λ; how many items lie exactly there, written into `items` in their order; and the room they have.

    The useful items together must be larger than the capacity.
    """
    width = NARROW if density.shape[0] < FEW else WIDE
    shift = 63 - width
    room = capacity
    sums = np.zeros(1 << width, np.int64)
    lowest, highest = len(sums), -1
    for i in range(density.shape[0]):
        bucket = density[i] >> shift
        if bucket >= 0:
            sums[bucket] += sizes[i]
            lowest, highest = min(lowest, bucket), max(highest, bucket)
    broken, room = first_too_large(sums, lowest, highest, room)
    count = 0
    for i in range(density.shape[0]):
        items[count] = i
        count += (density[i] >> shift) == broken
    while shift > 0:
        # Bits in which they all agree say nothing: start at the first in which some differ.
        top = min(shift, math.frexp(float(differences(density, items, count)))[1])
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
        broken, room = first_too_large(sums, lowest, highest, room)
        kept = 0
        for k in range(count):
            items[kept] = items[k]
            kept += ((density[items[k]] >> shift) & mask) == broken
        count = kept
    return density[items[0]], count, room


@kernel
def first_too_large(sums: Ints, lowest: int, highest: int, room: int) -> tuple[int, int]:
    """The densest bucket that does not fit, and the room left for it; clears the sums."""
    bucket = highest
    while sums[bucket] <= room:
        room -= sums[bucket]
        bucket -= 1
    for k in range(lowest, highest + 1):
        sums[k] = 0
    return bucket, room


@kernel
def differences(density: Ints, items: Ints, count: int) -> int:
    """The bits in which some of the first `count` densities differ."""
    bits = 0
    for k in range(count):
        bits |= density[items[k]] ^ density[items[0]]
    return bits


@kernel
def take_dense(values: Floats, density: Ints, price_bits: int, chosen: Flags) -> tuple[float, float]:
    """Choose what is denser than the price; returns the value chosen and the value that is not.

    Four sums at a time, since one would wait for its own last addition, and no branches, since every third would be
    guessed wrong. Good to n·2^-53, enough for a tolerance.
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
def take_tied(values: Floats, sizes: Ints, tied: Ints, room: int, chosen: Flags) -> tuple[int, float, float]:
    """Choose items at the price, in their order, up to the first that does not fit; returns the room left, the value
    taken, and the value of all of them.
    """
    k, taken, worth = 0, 0.0, 0.0
    while sizes[tied[k]] <= room:
        room -= sizes[tied[k]]
        taken += values[tied[k]]
        chosen[tied[k]] = True
        k += 1
    for i in tied:
        worth += values[i]
    return room, taken, worth


@kernel
def near_price(values: Floats, sizes: Ints, price: float, precision: float) -> float:
    """Sum of the values whose density cannot be told from the price, where sizes are too large to be floats."""
    worth = 0.0
    for i in range(values.shape[0]):
        at_price = price * sizes[i]
        if abs(values[i] - at_price) <= (values[i] + at_price) * precision:
            worth += values[i]
    return worth
