"""The undecided items near the price, with equal ones grouped.

Fixing. Let U = λ·r bound the gain of any solution over the break solution. Deciding item j differently from the break
solution reduces that bound by its *reduced cost* |w − λS|. If U − |w − λS| does not exceed the gain already known, j
keeps its decision. This form tolerates an error in the last bit; an order by density does not.

Grouping. A cache counts requests, so many of its items have equal value and equal size. Such items form one *class*. It
does not matter which of them are flipped, only how many, and flipping more than (U − known)/|w − λS| of a class cannot
pay. Any number up to c is a sum of 1, 2, 4, … and a remainder: log c pieces instead of c items. Without grouping, a
search among ties is fifty times slower.

Chains. Of two items of equal value the smaller one is at least as good: a solution that holds the larger one alone can
exchange them. So there is an optimum that holds the smallest items of each value, as the break solution does. It adds
an item only if it also adds all smaller ones of that value that are out, and removes one only if it also removes all
larger ones that are in. The bound is then reduced by the *sum* of their reduced costs. If that is too much, the item
keeps its decision. So of thousands of items of equal value, about a hundred remain.
"""

from __future__ import annotations

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import argsort

# Relative rounding error. One operation errs by at most 2^-53; this covers the few operations used here.
ROUNDING = 2.0**-50
# Odd numbers of 31 bits, for hashing: their products with 31 bits fit into int64.
MIX_VALUE, MIX_SIZE, LOW_BITS = 1540483477, 668265263, 2**31 - 1
BLOCK = 4096
# Relative rounding error of a sum of up to 2^31 numbers.
SUM_ROUNDING = 2.0**-20


@kernel
def reduced_cost(value: float, size: float, price: float) -> float:
    """Return |w − λS| minus its rounding error: how much of the bound it costs to decide an item differently."""
    size_cost = price * size
    return abs(value - size_cost) - (value + size_cost) * ROUNDING


@kernel
def near_items(
    values: Floats, sizes: Ints, density: Ints, price: float, threshold: float, limit: int, items: Ints
) -> int:
    """Write the useful items whose reduced cost is below the threshold, at most `limit`; returns how many."""
    count, n = 0, values.shape[0]
    for start in range(0, n, BLOCK):
        for i in range(start, min(n, start + BLOCK)):
            size_cost = price * sizes[i]
            cost = abs(values[i] - size_cost) - (values[i] + size_cost) * ROUNDING  # `reduced_cost`, inlined
            items[count] = i
            count += (cost < threshold) & (density[i] >= 0)  # no branch: among ties it would be mispredicted
        if count >= limit:
            return limit
    return count


@kernel
def drop_chain_ends(values: Floats, sizes: Ints, chosen: Flags, price: float, threshold: float, items: Ints) -> int:
    """Keep those of the items whose chain up to them costs less than the threshold, in order; returns how many."""
    m = items.shape[0]
    costs = np.empty(m, np.float64)
    for k in range(m):
        costs[k] = max(0.0, reduced_cost(values[items[k]], sizes[items[k]], price))
    slots = 16
    while slots < 2 * m:
        slots *= 2
    table, sums = np.full(slots, -1, np.int64), np.zeros(slots, np.float64)
    bits, keep = values.view(np.int64), np.empty(m, np.bool_)
    for k in argsort(costs):  # of equal value: outside by increasing size, inside by decreasing size
        i = items[k]
        slot = hash_slot(bits[i], int(chosen[i]), slots)
        while table[slot] >= 0 and not (values[table[slot]] == values[i] and chosen[table[slot]] == chosen[i]):
            slot = (slot + 1) & (slots - 1)
        table[slot] = i
        sums[slot] += costs[k]
        keep[k] = sums[slot] * (1.0 - SUM_ROUNDING) < threshold
    count = 0
    for k in range(m):
        items[count] = items[k]
        count += keep[k]
    return count


@kernel
def group_equal(values: Floats, sizes: Ints, chosen: Flags, items: Ints) -> tuple[Ints, Ints, Ints]:
    """Group items of equal value, size and flag; returns each item's class, and each class's first item and count."""
    m = items.shape[0]
    slots, found = 16, 0
    while slots < 2 * min(m, BLOCK):
        slots *= 2
    table = np.full(slots, -1, np.int64)
    bits = values.view(np.int64)
    member, first, count = np.empty(m, np.int64), np.empty(m, np.int64), np.zeros(m, np.int64)
    for k in range(m):
        i = items[k]
        slot = hash_slot(bits[i], sizes[i], slots)
        while True:
            c = table[slot]
            if c < 0:
                c = found
                table[slot] = c
                first[c] = i
                found += 1
                break
            j = first[c]
            if values[j] == values[i] and sizes[j] == sizes[i] and chosen[j] == chosen[i]:
                break
            slot = (slot + 1) & (slots - 1)
        member[k] = c
        count[c] += 1
        if 2 * found > slots:
            slots *= 4
            table = np.full(slots, -1, np.int64)
            for c in range(found):
                slot = hash_slot(bits[first[c]], sizes[first[c]], slots)
                while table[slot] >= 0:
                    slot = (slot + 1) & (slots - 1)
                table[slot] = c
    return member, first[:found], count[:found]


@kernel
def hash_slot(bits: int, size: int, slots: int) -> int:
    """Return the first slot to probe in a table of 2^k slots."""
    mixed = ((bits ^ (bits >> 17) ^ (bits >> 34)) & LOW_BITS) * MIX_VALUE ^ (size & LOW_BITS) * MIX_SIZE
    return (mixed >> 20) & (slots - 1)


@kernel
def split_classes(
    values: Floats, sizes: Ints, chosen: Flags, first: Ints, count: Ints, price: float, threshold: float
) -> tuple[Ints, Ints, Ints]:
    """Split the classes into pieces of 1, 2, 4, … items, by decreasing density, chosen classes first among equals.

    Returns each piece's class, each piece's number of items, and how many items of each class can be flipped at most.
    """
    limits = np.empty(first.shape[0], np.int64)
    order, total = chosen_first(chosen, first), 0
    keys = np.empty(first.shape[0], np.float64)
    for c in range(first.shape[0]):
        i = first[c]
        cost = reduced_cost(values[i], sizes[i], price)
        limits[c] = count[c]
        if cost > 0.0 and threshold < cost * count[c]:
            limits[c] = min(count[c], int(threshold / cost) + 1)
        left = limits[c]
        while left > 0:
            left >>= 1
            total += 1
    for k in range(order.shape[0]):
        keys[k] = -values[first[order[k]]] / sizes[first[order[k]]]
    class_of, copies = np.empty(total, np.int64), np.empty(total, np.int64)
    m = 0
    for k in argsort(keys):
        c = order[k]
        left, power = limits[c], 1
        while left > 0:
            class_of[m], copies[m] = c, min(left, power)
            left -= copies[m]
            power *= 2
            m += 1
    return class_of[:m], copies[:m], limits


@kernel
def chosen_first(chosen: Flags, first: Ints) -> Ints:
    """Return the classes, the chosen ones before the others."""
    order = np.empty(first.shape[0], np.int64)
    m = 0
    for wanted in (True, False):
        for c in range(first.shape[0]):
            if chosen[first[c]] == wanted:
                order[m] = c
                m += 1
    return order
