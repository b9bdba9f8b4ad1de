"""Bounds that cost next to nothing, tried before any search.

* How far a search must look. Reduced costs are sampled, so that the first core can be made small on purpose.
* The best exchange. One item out, one item in: often this is the optimum, and every search after it is shorter.
* Cardinality. Where all values are w = a + b·S (a cost per call and a cost per token, without noise), all items have
  nearly the same density and Dantzig's bound says nothing. But k items are worth a·k + b·(their size), and

      OPT ≤ max over k of  a·k + b·min(C, size of the k largest)      for k that fit at all: size of the k smallest ≤ C

  which is usually exact.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.groups import ROUNDING, reduced_cost
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import rising

SAMPLE = 4096
OCTAVES = 64
NEVER = -math.inf


@kernel
def sample_costs(values: Floats, sizes: Ints, density: Ints, price: float, bound: float) -> Ints:
    """About how many items have a reduced cost below bound·2^-k, for every k, from an even sample."""
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
def expected(below: Ints, bound: float, threshold: float) -> int:
    """About how many items have a reduced cost below the threshold."""
    k = 0 if threshold >= bound else min(OCTAVES, max(0, -math.frexp(threshold / bound)[1]))
    count: int = below[k]
    return count


@kernel
def first_threshold(below: Ints, bound: float, wanted: int) -> float:
    """A threshold that lets about `wanted` items through, and not fewer if there are as many."""
    k = OCTAVES
    while k > 0 and below[k] < wanted:
        k -= 1
    return math.ldexp(bound, -k)


@kernel
def wider(below: Ints, bound: float, threshold: float) -> float:
    """A threshold that lets about twice as many items through, or at least half of all where there are not so many."""
    wanted = 2 * max(1, expected(below, bound, threshold))
    return max(2.0 * threshold, first_threshold(below, bound, wanted))


@kernel
def best_exchange(values: Floats, sizes: Ints, chosen: Flags, first: Ints, room: int) -> tuple[float, int, int]:
    """The best gain of taking one chosen item out and another one in, and the two; NEVER if none fits.

    The outsiders by size, and for each size the most valuable that is no larger: what may replace an item of size S is
    then one search for room + S.
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
    gain, goes, comes = NEVER, -1, -1
    for i in first:
        if chosen[i]:
            low, high = 0, m  # of the outsiders by size, the first `low` are small enough
            while low < high:
                middle = (low + high) // 2
                if sizes[order[middle]] <= room + sizes[i]:
                    low = middle + 1
                else:
                    high = middle
            j = best[low - 1] if low > 0 else i
            if values[j] - values[i] > gain and low > 0 and sizes[j] <= room + sizes[i]:
                gain, goes, comes = values[j] - values[i], i, j
    return gain, goes, comes


@kernel
def by_size(sizes: Ints, items: Ints) -> Ints:
    """The places of the items by rising size, as far as floats can tell."""
    keys = np.empty(items.shape[0], np.float64)
    for k in range(items.shape[0]):
        keys[k] = sizes[items[k]]
    return rising(keys)


@kernel
def cardinality_bound(values: Floats, sizes: Ints, chosen: Flags, first: Ints, count: Ints, room: int) -> float:
    """What can be gained at most over what is chosen, if w = a + b·S for all classes; infinite if not.

    What is chosen is k0 items of size W0, so a set of k items gains a·(k − k0) + b·(size − W0), a difference of whole
    numbers: next to nothing is rounded off. Where classes are off the line, by a last bit or so of their values, the
    bound is wider by as much.
    """
    least = most = first[0]
    for i in first:
        least = i if sizes[i] < sizes[least] else least
        most = i if sizes[i] > sizes[most] else most
    if sizes[least] == sizes[most] or sizes[most] > 2**53:  # sorted as floats
        return math.inf
    b = (values[most] - values[least]) / (sizes[most] - sizes[least])
    a = values[least] - b * sizes[least]
    if b < 0.0:
        return math.inf
    size, kept, items, off = 0, 0, 0, 0.0
    for c in range(first.shape[0]):
        i = first[c]
        error = abs(values[i] - a - b * sizes[i])
        if error > 1e-12 * values[i]:
            return math.inf
        off += (error + (values[i] + abs(a) + b * sizes[i]) * 2.0**-51) * count[c]
        items += count[c]
        if chosen[i]:
            size += sizes[i] * count[c]
            kept += count[c]
    order = by_size(sizes, first)
    best = max(0.0, -a * kept - b * size)  # that of no item at all, and the gain of changing nothing
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
        if smallest > size + room:
            break
        best = max(best, a * (k - kept) + b * min(room, largest - size))
    bound: float = best * (1.0 + ROUNDING) + off * (1.0 + 2.0**-20)
    return bound
