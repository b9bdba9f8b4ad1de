"""Cheap bounds that are computed before the search.

* Core size. Reduced costs are sampled, so that the first core can be kept small.
* Best exchange. One item out, one item in: often this is the optimum, and it shortens every later search.
* Cardinality. If all values are w = a + b·S (a cost per call plus a cost per token, without noise), all items have
  nearly the same density and Dantzig's bound is useless. But k items are worth a·k + b·(their size), so

      OPT ≤ max over k of  a·k + b·min(C, size of the k largest)      over k that fit: size of the k smallest ≤ C

  which is usually exact.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.groups import ROUNDING, reduced_cost
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import argsort

SAMPLE = 4096
OCTAVES = 64
NO_EXCHANGE = -math.inf


@kernel
def sample_costs(values: Floats, sizes: Ints, density: Ints, price: float, bound: float) -> Ints:
    """Estimate how many items have a reduced cost below bound·2^-k, for every k, from an even sample."""
    below = np.zeros(OCTAVES + 1, np.int64)
    stride = max(1, values.shape[0] // SAMPLE)
    for i in range(0, values.shape[0], stride):
        if density[i] >= 0:
            cost = max(reduced_cost(values[i], sizes[i], price), 0.0)
            if cost < bound:
                below[min(OCTAVES, -math.frexp(cost / bound)[1]) if cost > 0.0 else OCTAVES] += stride
    for k in range(OCTAVES - 1, -1, -1):
        below[k] += below[k + 1]
    return below


@kernel
def expected_count(below: Ints, bound: float, threshold: float) -> int:
    """Estimate how many items have a reduced cost below the threshold."""
    k = 0 if threshold >= bound else min(OCTAVES, max(0, -math.frexp(threshold / bound)[1]))
    count: int = below[k]
    return count


@kernel
def threshold_for(below: Ints, bound: float, wanted: int) -> float:
    """Return a threshold below which about `wanted` items lie, and not fewer if there are that many."""
    k = OCTAVES
    while k > 0 and below[k] < wanted:
        k -= 1
    return math.ldexp(bound, -k)


@kernel
def wider_threshold(below: Ints, bound: float, threshold: float) -> float:
    """Return a threshold below which about twice as many items lie."""
    wanted = 2 * max(1, expected_count(below, bound, threshold))
    return max(2.0 * threshold, threshold_for(below, bound, wanted))


@kernel
def best_exchange(values: Floats, sizes: Ints, chosen: Flags, first: Ints, free: int) -> tuple[float, int, int]:
    """Return the best gain of replacing one chosen item by another, and the two items; NO_EXCHANGE if none fits.

    The items outside are sorted by size, with the most valuable item up to each size. The best replacement for an item
    of size S is then found by one binary search for free + S.
    """
    outside, m = np.empty(first.shape[0], np.int64), 0
    for i in first:
        if not chosen[i]:
            outside[m] = i
            m += 1
    order = by_size(sizes, outside[:m])
    for k in range(m):
        order[k] = outside[order[k]]
    best = order.copy()
    for k in range(1, m):
        if values[best[k - 1]] >= values[best[k]]:
            best[k] = best[k - 1]
    gain, removed, added = NO_EXCHANGE, -1, -1
    for i in first:
        if chosen[i]:
            low, high = 0, m  # the first `low` items of `order` are small enough
            while low < high:
                middle = (low + high) // 2
                if sizes[order[middle]] <= free + sizes[i]:
                    low = middle + 1
                else:
                    high = middle
            j = best[low - 1] if low > 0 else i
            if values[j] - values[i] > gain and low > 0 and sizes[j] <= free + sizes[i]:
                gain, removed, added = values[j] - values[i], i, j
    return gain, removed, added


@kernel
def by_size(sizes: Ints, items: Ints) -> Ints:
    """Return the order of the items by increasing size. Sizes are compared as floats."""
    keys = np.empty(items.shape[0], np.float64)
    for k in range(items.shape[0]):
        keys[k] = sizes[items[k]]
    return argsort(keys)


@kernel
def cardinality_bound(values: Floats, sizes: Ints, chosen: Flags, first: Ints, count: Ints, free: int) -> float:
    """Return an upper bound on the gain over the chosen set if w = a + b·S for all classes; infinite if not.

    The chosen set has k0 items of total size W0, so a set of k items gains a·(k − k0) + b·(size − W0). These are
    differences of integers, so almost nothing is rounded. Where classes deviate from the line, by the last bits of
    their values, the bound is widened by as much.
    """
    smallest_item = largest_item = first[0]
    for i in first:
        smallest_item = i if sizes[i] < sizes[smallest_item] else smallest_item
        largest_item = i if sizes[i] > sizes[largest_item] else largest_item
    if sizes[smallest_item] == sizes[largest_item] or sizes[largest_item] > 2**53:  # `by_size` compares floats
        return math.inf
    b = (values[largest_item] - values[smallest_item]) / (sizes[largest_item] - sizes[smallest_item])
    a = values[smallest_item] - b * sizes[smallest_item]
    if b < 0.0:
        return math.inf
    size, kept, items, deviation = 0, 0, 0, 0.0
    for c in range(first.shape[0]):
        i = first[c]
        error = abs(values[i] - a - b * sizes[i])
        if error > 1e-12 * values[i]:
            return math.inf
        deviation += (error + (values[i] + abs(a) + b * sizes[i]) * 2.0**-51) * count[c]
        items += count[c]
        if chosen[i]:
            size += sizes[i] * count[c]
            kept += count[c]
    order = by_size(sizes, first)
    best = max(0.0, -a * kept - b * size)  # the gain of the empty set, and of changing nothing
    smallest = largest = 0
    low, high, low_used, high_used = 0, order.shape[0] - 1, 0, 0
    for k in range(1, items + 1):
        if low_used == count[order[low]]:
            low, low_used = low + 1, 0
        if high_used == count[order[high]]:
            high, high_used = high - 1, 0
        smallest += sizes[first[order[low]]]
        largest += sizes[first[order[high]]]
        low_used += 1
        high_used += 1
        if smallest > size + free:
            break
        best = max(best, a * (k - kept) + b * min(free, largest - size))
    bound: float = best * (1.0 + ROUNDING) + deviation * (1.0 + 2.0**-20)
    return bound
