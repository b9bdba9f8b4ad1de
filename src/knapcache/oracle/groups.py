"""What is open: the few items near the price, and equal ones taken together.

Fixing. Let U = λ·room bound what any solution can gain over the break solution. Deciding item j otherwise than the
break solution does costs its *reduced cost* |w − λS| of that bound. If U − |w − λS| is no better than what is known
already, j stays where it is. In this form a misplaced last bit does no harm; an order by density would not forgive it.

Grouping. A cache counts, so many of its items have the same value and the same size. Such items are one *class*; which
of them are flipped does not matter, only how many, and more than (U − known)/|w − λS| of one class cannot pay. Up to c
of them are any sum of 1, 2, 4, … and a rest: log c pieces instead of c items. Without this a search among ties is fifty
times slower.
"""

from __future__ import annotations

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import rising

# Rounding, in units of what is rounded: one operation errs by at most 2^-53. This is generous for the few at hand.
ROUNDING = 2.0**-50
# Odd numbers of 31 bits, for hashing: their products with 31 bits stay inside int64.
MIX_VALUE, MIX_SIZE, LOW_BITS = 1540483477, 668265263, 2**31 - 1
BLOCK = 4096


@kernel
def reduced_cost(value: float, size: float, price: float) -> float:
    """|w − λS|, less what it can be off by: how much of the bound it costs to decide an item otherwise."""
    worth = price * size
    return abs(value - worth) - (value + worth) * ROUNDING


@kernel
def near_items(
    values: Floats, sizes: Ints, density: Ints, price: float, threshold: float, most: int, items: Ints
) -> int:
    """Write the useful items whose reduced cost is below the threshold, the first `most` of them; returns how many."""
    count, n = 0, values.shape[0]
    for start in range(0, n, BLOCK):
        for i in range(start, min(n, start + BLOCK)):
            worth = price * sizes[i]
            cost = abs(values[i] - worth) - (values[i] + worth) * ROUNDING  # `reduced_cost`, inline
            items[count] = i
            count += (cost < threshold) & (density[i] >= 0)  # no branch: among ties it would be guessed wrong
        if count >= most:
            return most
    return count


@kernel
def classes(values: Floats, sizes: Ints, chosen: Flags, items: Ints) -> tuple[Ints, Ints, Ints]:
    """Group the items that agree in value, size and flag; returns each item's class, and each class's first item and
    number of items.
    """
    m = items.shape[0]
    slots, found = 16, 0
    while slots < 2 * min(m, BLOCK):
        slots *= 2
    table = np.full(slots, -1, np.int64)
    bits = values.view(np.int64)
    member, first, count = np.empty(m, np.int64), np.empty(m, np.int64), np.zeros(m, np.int64)
    for k in range(m):
        i = items[k]
        slot = place(bits[i], sizes[i], slots)
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
                slot = place(bits[first[c]], sizes[first[c]], slots)
                while table[slot] >= 0:
                    slot = (slot + 1) & (slots - 1)
                table[slot] = c
    return member, first[:found], count[:found]


@kernel
def place(bits: int, size: int, slots: int) -> int:
    """Where in a table of 2^k slots to look first."""
    mixed = ((bits ^ (bits >> 17) ^ (bits >> 34)) & LOW_BITS) * MIX_VALUE ^ (size & LOW_BITS) * MIX_SIZE
    return (mixed >> 20) & (slots - 1)


@kernel
def pieces(
    values: Floats, sizes: Ints, chosen: Flags, first: Ints, count: Ints, price: float, threshold: float
) -> tuple[Ints, Ints, Ints]:
    """The classes cut into powers of two, by falling density, chosen classes first where densities are equal.

    Returns each piece's class and its number of items, and how often each class can be flipped at all.
    """
    limits = np.empty(first.shape[0], np.int64)
    order, total = chosen_first(chosen, first), 0
    falling = np.empty(first.shape[0], np.float64)
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
        falling[k] = -values[first[order[k]]] / sizes[first[order[k]]]
    of, times = np.empty(total, np.int64), np.empty(total, np.int64)
    m = 0
    for k in rising(falling):
        c = order[k]
        left, power = limits[c], 1
        while left > 0:
            of[m], times[m] = c, min(left, power)
            left -= times[m]
            power *= 2
            m += 1
    return of[:m], times[:m], limits


@kernel
def chosen_first(chosen: Flags, first: Ints) -> Ints:
    """The classes, those that are chosen before the others."""
    order = np.empty(first.shape[0], np.int64)
    m = 0
    for wanted in (True, False):
        for c in range(first.shape[0]):
            if chosen[first[c]] == wanted:
                order[m] = c
                m += 1
    return order
