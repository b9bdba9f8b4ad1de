"""The core of a knapsack, solved: dynamic programming over the states worth keeping (Nemhauser and Ullmann; Pisinger).

`exact` hands over the few items that are open, the *core*, in whole numbers and by falling density, and the *break
solution*: the first `taken` items are in, the rest are out, and `room` is left. From here on everything is a difference
from it.

    items by density   0 … left−1 | left … right−1 | right … m−1
                        still in       decided         still out

A *state* is one way of deciding the window [left, right): its size and value are those of the items it put in, less
those it took out. The window starts empty at the break item and grows by one item a step, to the right and to the left
in turn, since good solutions differ near the break. In a step every state either leaves the item as it is or flips it,
so the list doubles. Three things keep it short:

* Dominance. A state that is no smaller and no better than another can never overtake it. The list is kept by rising
  size and therefore by rising value; two such lists merge in one pass.
* Bound. The best a state can still become is at most its linear relaxation: walk on from the window's edge, filling the
  room that is left (or, if the state is too large, emptying the other side), whole item after whole item and then a
  fraction of item k. A state whose bound does not beat the best known solution by more than the tolerance is dropped.
* Incumbent. The same walk without the fraction is a solution. Every state offers one for free.

An item whose reduced cost has meanwhile grown too dear, because the best solution is better now, is not branched on.

History. What a state flipped is a mask of bits, one for each of the last steps. Every WORD steps the masks are written
to a history and begin anew; each state then remembers its place there. So a step copies one word for each state, and
the flips of the best solution are read off once, at the end. (A chain of flipped items was tried first: it writes, and
misses the cache, for every state of every step.)

Rounding. Sizes and values are int64 and exact. Densities are floats; they only say how much of item k's value its
fraction is worth. `slack` covers their error and that of the order itself (two densities may differ by less than a
float can tell), so that no bound is too low, and the fraction is rounded down, since a solution's value is whole. With
no slack, an optimum among near-ties would be lost now and then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# The columns of a list of states: MASK holds the flips since the history was last written, PAST the row it went to.
SIZE, VALUE, MASK, PAST = 0, 1, 2, 3
WORD = 60
# What is known so far. BEST: the value of the best solution; it flips what BEST_MASK and BEST_PAST say after STEPS
# steps, and the items FROM … TO−1 of its walk. DROPPED: the highest bound of what was dropped. OPEN: the highest bound
# of the present states.
BEST, BEST_MASK, BEST_PAST, STEPS, FROM, TO, DROPPED, OPEN = 0, 1, 2, 3, 4, 5, 6, 7
NONE = -1
SMALLEST, LARGEST = -(2**63), 2**63 - 1


class Core(NamedTuple):
    """What is searched. Items by falling density, chosen ones first; all numbers relative to the break solution."""

    values: Ints
    sizes: Ints
    densities: Floats
    costs: Floats
    """What deciding an item otherwise takes off `bound`, at least."""
    slack: float
    """What a relaxation can be off by, rounding included."""
    taken: int
    room: int
    bound: float
    """No solution gains more, by the price."""
    ceiling: int
    """No solution gains more, by any argument."""


@kernel
def search(core: Core, incumbent: int, tolerance: int, budget: int, flips: Flags) -> tuple[int, int, int]:
    """Find what to flip in the break solution; returns (best, upper, work), the first two as differences in value.

    `incumbent` is what the caller's own solution is worth. If best > incumbent, `flips` gets the better one; if not, it
    stays all False. No solution is worth more than upper; upper ≤ best + tolerance unless the budget ran out.
    """
    m, taken = core.values.shape[0], core.taken
    before = running_sums(core.sizes, core.values)
    known = np.zeros(8, np.int64)
    known[BEST] = known[DROPPED] = incumbent
    known[OPEN] = core.ceiling
    states, other = np.zeros((64, 4), np.int64), np.empty((64, 4), np.int64)
    past, written = np.empty((64, 2), np.int64), 0
    order, steps = np.empty(m, np.int64), 0
    states[0, PAST] = NONE
    left = right = taken
    count, work, stopped = 1, 0, False
    greedy(core, known, flips)
    while count > 0 and right - left < m and known[BEST] + tolerance < core.ceiling:
        if left == 0 or (right < m and right - taken <= taken - left):
            item, right = right, right + 1
            size, value = core.sizes[item], core.values[item]
        else:
            item = left = left - 1
            size, value = -core.sizes[item], -core.values[item]
        flipped = int(core.bound - core.costs[item])  # no solution that flips this item gains more
        if flipped <= known[BEST] + tolerance:
            known[DROPPED] = max(known[DROPPED], flipped)
            continue
        stopped = 0 <= budget < work + 2 * count
        if stopped:
            break
        work += 2 * count
        if other.shape[0] < 2 * count:
            other = np.empty((4 * count, 4), np.int64)
        if steps > 0 and steps % WORD == 0:
            past = write_history(states, count, past, written)
            written += count
        order[steps] = item
        steps += 1
        count = step(core, states, count, size, value, steps, left, right, before, tolerance, other, known)
        states, other = other, states
    if known[STEPS] > 0:
        unwind(past, known, order, flips)
    upper = max(known[BEST], known[DROPPED])
    # States that are left when the window is closed have all been offered as solutions: walking on only adds.
    if stopped or known[BEST] + tolerance >= core.ceiling:
        upper = max(upper, known[OPEN])
    return known[BEST], max(known[BEST], min(upper, core.ceiling)), work


@kernel
def greedy(core: Core, known: Ints, flips: Flags) -> None:
    """The first solution: put in whatever fits, by falling density."""
    room, gain = core.room, 0
    for item in range(core.taken, core.values.shape[0]):
        if core.sizes[item] <= room:
            room -= core.sizes[item]
            gain += core.values[item]
    if gain > known[BEST]:
        known[BEST] = gain
        room = core.room
        for item in range(core.taken, core.values.shape[0]):
            flips[item] = core.sizes[item] <= room
            room -= core.sizes[item] if flips[item] else 0


@kernel
def step(
    core: Core, states: Ints, count: int, size: int, value: int, steps: int, left: int, right: int, before: Ints,
    tolerance: int, kept: Ints, known: Ints,
) -> int:  # fmt: skip
    """Every state as it is, and with the item flipped, which adds `size` and `value`: by size, less the dominated and
    the hopeless. Returns how many are kept.

    Sizes rise along the list, so item k of the walks only ever moves to the left: one search, and then a few steps.
    """
    m, room, slack, densities = core.values.shape[0], core.room, core.slack, core.densities
    bit = 1 << ((steps - 1) % WORD)
    best, dropped, open_ = known[BEST], known[DROPPED], known[BEST]
    edge, k, too_large = right, -1, False
    stay = flip = length = 0
    highest = SMALLEST
    size_stay, size_flip = states[0, SIZE], states[0, SIZE] + size
    while stay < count or flip < count:
        # Of two states of one size the better comes first, so that it is seen to dominate the other.
        if size_stay < size_flip or (size_stay == size_flip and states[stay, VALUE] >= states[flip, VALUE] + value):
            s, v, mask, past = size_stay, states[stay, VALUE], states[stay, MASK], states[stay, PAST]
            stay += 1
            size_stay = states[stay, SIZE] if stay < count else LARGEST
        else:
            s, v, mask, past = size_flip, states[flip, VALUE] + value, states[flip, MASK] | bit, states[flip, PAST]
            flip += 1
            size_flip = states[flip, SIZE] + size if flip < count else LARGEST
        if v <= highest:
            continue
        highest = v
        if s > room and not too_large:  # from here on the states are too large: walk over what is still in
            edge, k, too_large = left, left, True
        limit = before[edge, SIZE] + room - s
        if limit < 0:
            break  # too large even with everything taken out, as are all that follow
        if k < 0:
            k = last_within(before, right, m, limit)
        while before[k, SIZE] > limit:
            k -= 1
        whole = v + before[k, VALUE] - before[edge, VALUE]
        bound = whole
        if k < m:
            bound += int((limit - before[k, SIZE]) * densities[k] + slack)
        if whole > best:
            best = whole
            known[BEST], known[BEST_MASK], known[BEST_PAST], known[STEPS] = whole, mask, past, steps
            known[FROM], known[TO] = min(edge, k), max(edge, k)
        if bound <= best + tolerance:
            dropped = max(dropped, bound)
            continue
        open_ = max(open_, bound)
        kept[length, SIZE], kept[length, VALUE], kept[length, MASK], kept[length, PAST] = s, v, mask, past
        length += 1
    known[DROPPED], known[OPEN] = dropped, open_
    return length


@kernel
def last_within(before: Ints, low: int, high: int, limit: int) -> int:
    """The last k in low … high whose running size is at most `limit`; that of `low` is."""
    while low < high:
        middle = (low + high + 1) // 2
        if before[middle, SIZE] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def write_history(states: Ints, count: int, past: Ints, written: int) -> Ints:
    """Append every state's mask and place to the history and begin new ones; returns the history, longer if need be."""
    if past.shape[0] < written + count:
        longer = np.empty((2 * (written + count), 2), np.int64)
        for i in range(written):  # by hand, since slices of two dimensions take seconds to compile
            longer[i, 0], longer[i, 1] = past[i, 0], past[i, 1]
        past = longer
    for i in range(count):
        past[written + i, 0], past[written + i, 1] = states[i, MASK], states[i, PAST]
        states[i, MASK], states[i, PAST] = 0, written + i
    return past


@kernel
def unwind(past: Ints, known: Ints, order: Ints, flips: Flags) -> None:
    """Write what the best solution flips: its walk, and its history mask by mask."""
    flips[:] = False
    for item in range(known[FROM], known[TO]):
        flips[item] = True
    steps, mask, row = known[STEPS], known[BEST_MASK], known[BEST_PAST]
    while True:
        start = (steps - 1) // WORD * WORD
        for k in range(steps - start):
            if (mask >> k) & 1:
                flips[order[start + k]] = True
        if row == NONE:
            break
        steps, mask, row = start, past[row, 0], past[row, 1]


@kernel
def running_sums(sizes: Ints, values: Ints) -> Ints:
    """Row k: size and value of the first k items together."""
    before = np.zeros((sizes.shape[0] + 1, 2), np.int64)
    for k in range(sizes.shape[0]):
        before[k + 1, SIZE] = before[k, SIZE] + sizes[k]
        before[k + 1, VALUE] = before[k, VALUE] + values[k]
    return before
