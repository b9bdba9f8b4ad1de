"""The core search: dynamic programming over undominated states (Nemhauser and Ullmann; Pisinger).

`exact` passes in the few undecided items, the *core*, as integers by decreasing density, and the *break solution*: the
first `taken` items are in, the others are out, and `free` units of capacity remain. All numbers below are differences
from the break solution.

    items by density   0 … left−1 | left … right−1 | right … m−1
                        still in       decided         still out

A *state* is one way to decide the window [left, right). Its size and value are those of the items it put in, minus
those it took out. The window starts empty at the break item and grows by one item per step, to the right and to the
left in turn, because good solutions differ near the break. In each step every state either leaves the item as it is or
flips it, so the list doubles. Three rules keep it short:

* Dominance. A state that is no smaller and no more valuable than another can never overtake it. The list is sorted by
  size and therefore by value; two such lists merge in one pass.
* Bound. A state can at most reach its linear relaxation: from the window's edge, add whole items to fill the free
  capacity (or, if the state is too large, remove items on the other side), then a fraction of item k. A state whose
  bound does not beat the best known solution by more than the tolerance is dropped.
* Incumbent. The same walk without the fraction is a solution, so every state yields one for free.

An item whose reduced cost is too high, given the best solution known by then, is not branched on.

History. What a state flipped is a bit mask, one bit for each of the last steps. Every WORD steps the masks are appended
to a history and reset; each state then remembers its row there. So a step copies one word per state, and the flips of
the best solution are read back once, at the end. Rejected: a linked chain of flipped items. It writes, and misses the
cache, for every state in every step.

Rounding. Sizes and values are int64 and exact. Densities are floats; they only determine the value of the fraction of
item k. `slack` covers their error and the error of the order itself (two densities may differ by less than one float
step), so no bound is too low. The fraction is rounded down because a solution's value is an integer. Without slack an
optimum among near-ties would sometimes be lost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# Columns of a state list. MASK: flips since the history was last written. PAST: the state's row in the history.
SIZE, VALUE, MASK, PAST = 0, 1, 2, 3
WORD = 60
# Elements of `progress`. BEST: value of the best solution; its flips are BEST_MASK and BEST_PAST after STEPS steps, and
# the items FROM … TO−1 of its walk. DROPPED: highest bound of the dropped states. OPEN: highest bound of the live
# states.
BEST, BEST_MASK, BEST_PAST, STEPS, FROM, TO, DROPPED, OPEN = 0, 1, 2, 3, 4, 5, 6, 7
NONE = -1
SMALLEST, LARGEST = -(2**63), 2**63 - 1


class Core(NamedTuple):
    """The items to search, by decreasing density, chosen ones first. Numbers are relative to the break solution."""

    values: Ints
    sizes: Ints
    densities: Floats
    costs: Floats
    """Lower bounds on the reduction of `bound` if an item is flipped."""
    slack: float
    """Upper bound on the error of a relaxation, rounding included."""
    taken: int
    """The break solution holds the first `taken` items."""
    free: int
    """Capacity that the break solution leaves free."""
    bound: float
    """Upper bound on the gain of any solution, from the price."""
    ceiling: int
    """The best known upper bound on the gain, from any argument."""


class Flip(NamedTuple):
    """One step: the item that is branched on, and the window after it."""

    size: int
    """Change of a state's size if the item is flipped."""
    value: int
    left: int
    right: int
    number: int
    """How many steps there are with this one."""


@kernel
def search(core: Core, incumbent: int, tolerance: int, work_limit: int, flips: Flags) -> tuple[int, int, int]:
    """Find the items to flip in the break solution; returns (best, upper, work), the first two as gains.

    `incumbent` is the gain of the caller's own solution. If best > incumbent, `flips` receives the better solution;
    otherwise it stays all False. No solution gains more than upper. upper ≤ best + tolerance unless the search stopped
    at `work_limit` states; a negative limit is none.
    """
    m, taken = core.values.shape[0], core.taken
    prefix = prefix_sums(core.sizes, core.values)
    progress = np.zeros(8, np.int64)
    progress[BEST] = progress[DROPPED] = incumbent
    progress[OPEN] = core.ceiling
    states, other = np.zeros((64, 4), np.int64), np.empty((64, 4), np.int64)
    past, written = np.empty((64, 2), np.int64), 0
    order, steps = np.empty(m, np.int64), 0
    states[0, PAST] = NONE
    left = right = taken
    count, work, stopped = 1, 0, False
    greedy(core, progress, flips)
    while count > 0 and right - left < m and progress[BEST] + tolerance < core.ceiling:
        if left == 0 or (right < m and right - taken <= taken - left):
            item, right = right, right + 1
            sign = 1
        else:
            item = left = left - 1
            sign = -1
        flip_bound = int(core.bound - core.costs[item])  # upper bound on the gain of solutions that flip this item
        if flip_bound <= progress[BEST] + tolerance:
            progress[DROPPED] = max(progress[DROPPED], flip_bound)
            continue
        stopped = 0 <= work_limit < work + 2 * count
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
        flip = Flip(size=sign * core.sizes[item], value=sign * core.values[item], left=left, right=right, number=steps)
        count = step(core, prefix, flip, states, count, tolerance, other, progress)
        states, other = other, states
    if progress[STEPS] > 0:
        reconstruct(past, progress, order, flips)
    upper = max(progress[BEST], progress[DROPPED])
    # When the window covers all items, every remaining state has already been counted as a solution.
    if stopped or progress[BEST] + tolerance >= core.ceiling:
        upper = max(upper, progress[OPEN])
    return progress[BEST], max(progress[BEST], min(upper, core.ceiling)), work


@kernel
def greedy(core: Core, progress: Ints, flips: Flags) -> None:
    """Find the first solution: add every item that fits, by decreasing density."""
    free, gain = core.free, 0
    for item in range(core.taken, core.values.shape[0]):
        if core.sizes[item] <= free:
            free -= core.sizes[item]
            gain += core.values[item]
    if gain > progress[BEST]:
        progress[BEST] = gain
        free = core.free
        for item in range(core.taken, core.values.shape[0]):
            flips[item] = core.sizes[item] <= free
            free -= core.sizes[item] if flips[item] else 0


@kernel
def step(
    core: Core, prefix: Ints, flip: Flip, states: Ints, count: int, tolerance: int, kept: Ints, progress: Ints
) -> int:
    """Write every state, unflipped and flipped, to `kept` by size, without dominated and pruned ones; returns how many.

    Sizes increase along the list, so item k of the walks only moves left: one binary search, then a few steps.
    """
    m, free, slack, densities = core.values.shape[0], core.free, core.slack, core.densities
    size, value, left, right = flip.size, flip.value, flip.left, flip.right
    bit = 1 << ((flip.number - 1) % WORD)
    best, dropped, open_ = progress[BEST], progress[DROPPED], progress[BEST]
    edge, k, too_large = right, -1, False
    stay = moved = length = 0
    highest = SMALLEST
    size_stay, size_flip = states[0, SIZE], states[0, SIZE] + size
    while stay < count or moved < count:
        # Of two states of equal size the more valuable one comes first, so that it dominates the other.
        if size_stay < size_flip or (size_stay == size_flip and states[stay, VALUE] >= states[moved, VALUE] + value):
            s, v, mask, past = size_stay, states[stay, VALUE], states[stay, MASK], states[stay, PAST]
            stay += 1
            size_stay = states[stay, SIZE] if stay < count else LARGEST
        else:
            s, v, mask, past = size_flip, states[moved, VALUE] + value, states[moved, MASK] | bit, states[moved, PAST]
            moved += 1
            size_flip = states[moved, SIZE] + size if moved < count else LARGEST
        if v <= highest:
            continue
        highest = v
        if s > free and not too_large:  # this and all later states are too large: walk over the items still in
            edge, k, too_large = left, left, True
        limit = prefix[edge, SIZE] + free - s
        if limit < 0:
            break  # too large even with every item removed; so are all later states
        if k < 0:
            k = last_within(prefix, right, m, limit)
        while prefix[k, SIZE] > limit:
            k -= 1
        whole = v + prefix[k, VALUE] - prefix[edge, VALUE]
        bound = whole
        if k < m:
            bound += int((limit - prefix[k, SIZE]) * densities[k] + slack)
        if whole > best:
            best = whole
            progress[BEST], progress[BEST_MASK], progress[BEST_PAST], progress[STEPS] = whole, mask, past, flip.number
            progress[FROM], progress[TO] = min(edge, k), max(edge, k)
        if bound <= best + tolerance:
            dropped = max(dropped, bound)
            continue
        open_ = max(open_, bound)
        kept[length, SIZE], kept[length, VALUE], kept[length, MASK], kept[length, PAST] = s, v, mask, past
        length += 1
    progress[DROPPED], progress[OPEN] = dropped, open_
    return length


@kernel
def last_within(prefix: Ints, low: int, high: int, limit: int) -> int:
    """Return the last k in low … high whose prefix size is at most `limit`. That of `low` always is."""
    while low < high:
        middle = (low + high + 1) // 2
        if prefix[middle, SIZE] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def write_history(states: Ints, count: int, past: Ints, written: int) -> Ints:
    """Append every state's mask and row to the history and reset them; returns the history, reallocated if too
    short.
    """
    if past.shape[0] < written + count:
        longer = np.empty((2 * (written + count), 2), np.int64)
        for i in range(written):  # a loop, because two-dimensional slices take seconds to compile
            longer[i, 0], longer[i, 1] = past[i, 0], past[i, 1]
        past = longer
    for i in range(count):
        past[written + i, 0], past[written + i, 1] = states[i, MASK], states[i, PAST]
        states[i, MASK], states[i, PAST] = 0, written + i
    return past


@kernel
def reconstruct(past: Ints, progress: Ints, order: Ints, flips: Flags) -> None:
    """Write the flips of the best solution: its walk, and its history mask by mask."""
    flips[:] = False
    for item in range(progress[FROM], progress[TO]):
        flips[item] = True
    steps, mask, row = progress[STEPS], progress[BEST_MASK], progress[BEST_PAST]
    while True:
        start = (steps - 1) // WORD * WORD
        for k in range(steps - start):
            if (mask >> k) & 1:
                flips[order[start + k]] = True
        if row == NONE:
            break
        steps, mask, row = start, past[row, 0], past[row, 1]


@kernel
def prefix_sums(sizes: Ints, values: Ints) -> Ints:
    """Return the total size and value of the first k items in row k."""
    prefix = np.zeros((sizes.shape[0] + 1, 2), np.int64)
    for k in range(sizes.shape[0]):
        prefix[k + 1, SIZE] = prefix[k, SIZE] + sizes[k]
        prefix[k + 1, VALUE] = prefix[k, VALUE] + values[k]
    return prefix
