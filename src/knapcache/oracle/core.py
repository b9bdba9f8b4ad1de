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

Rounding. Sizes and values are int64 and exact. Densities are floats; they only say how much of item k's value its
fraction is worth. `slack` covers their error and that of the order itself (two densities may differ by less than a
float can tell), so that no bound is too low, and the fraction is rounded down, since a solution's value is whole. With
no slack, an optimum among near-ties would be lost now and then.
"""

from __future__ import annotations

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# The columns of a list of states. LINK is the row of `links` where the state's history goes on, FLIPPED whether the
# item of the current step is to be added to it.
SIZE, VALUE, LINK, FLIPPED = 0, 1, 2, 3
# The columns of `links`: an item that was flipped, and the link of the state it was flipped in.
ITEM, PARENT = 0, 1
# What is known so far. BEST: the value of the best solution; it flips the history LINK_TO, the item FLIP and the items
# FROM … TO−1 of its walk. DROPPED: the highest bound of a state that was dropped. OPEN: the highest bound of the
# present states.
BEST, LINK_TO, FLIP, FROM, TO, DROPPED, OPEN = 0, 1, 2, 3, 4, 5, 6
NONE = -1


@kernel
def search(
    values: Ints, sizes: Ints, densities: Floats, slack: float, taken: int, room: int,
    incumbent: int, tolerance: int, budget: int, flips: Flags,
) -> tuple[int, int, int]:  # fmt: skip
    """Find what to flip in the break solution; returns (best, upper, work), the first two as differences in value.

    `incumbent` is what the caller's own solution is worth. If best > incumbent, `flips` gets the better one; if not, it
    stays all False. No solution is worth more than upper; upper ≤ best + tolerance unless the budget ran out.
    """
    m = values.shape[0]
    before = running_sums(sizes, values)
    known = np.zeros(7, np.int64)
    known[BEST] = known[DROPPED] = known[OPEN] = incumbent
    known[LINK_TO] = known[FLIP] = NONE
    states, other = np.zeros((64, 4), np.int64), np.empty((64, 4), np.int64)
    links, linked = np.empty((64, 2), np.int64), 0
    states[0, LINK] = NONE
    left = right = taken
    count, linked = prune(states, 1, links, linked, NONE, before, densities, slack, left, right, room, tolerance, known)
    work = 1
    while count > 0 and right - left < m and not 0 <= budget < work + 2 * count:
        work += 2 * count
        if other.shape[0] < 2 * count:
            other = np.empty((4 * count, 4), np.int64)
        if links.shape[0] < linked + count:
            links = grown(links, 2 * (linked + count))
        if left == 0 or (right < m and right - taken <= taken - left):
            item, right = right, right + 1
            count = merge(states, count, sizes[item], values[item], other)
        else:
            item = left = left - 1
            count = merge(states, count, -sizes[item], -values[item], other)
        states, other = other, states
        count, linked = prune(
            states, count, links, linked, item, before, densities, slack, left, right, room, tolerance, known
        )
    if known[BEST] > incumbent:
        unwind(links, known, flips)
    upper = max(known[BEST], known[DROPPED])
    if count > 0 and right - left < m:  # stopped by the budget
        upper = max(upper, known[OPEN])
    return known[BEST], upper, work


@kernel
def merge(states: Ints, count: int, size: int, value: int, merged: Ints) -> int:
    """Every state as it is, and with the item flipped, which adds `size` and `value`: by size, less the dominated."""
    stay = flip = length = 0
    while stay < count or flip < count:
        if stay < count and flip < count:
            ahead = states[stay, SIZE] - states[flip, SIZE] - size
            # Of two states of one size the better comes first, so that it is seen to dominate the other.
            turn = ahead > 0 or (ahead == 0 and states[stay, VALUE] < states[flip, VALUE] + value)
        else:
            turn = flip < count
        if turn:
            s, v, link = states[flip, SIZE] + size, states[flip, VALUE] + value, states[flip, LINK]
            flip += 1
        else:
            s, v, link = states[stay, SIZE], states[stay, VALUE], states[stay, LINK]
            stay += 1
        if length == 0 or v > merged[length - 1, VALUE]:
            merged[length, SIZE], merged[length, VALUE] = s, v
            merged[length, LINK], merged[length, FLIPPED] = link, turn
            length += 1
    return length


@kernel
def prune(
    states: Ints, count: int, links: Ints, linked: int, item: int, before: Ints, densities: Floats, slack: float,
    left: int, right: int, room: int, tolerance: int, known: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Bound every state, drop the hopeless, write down the survivors' histories; returns how many states and links.

    Sizes rise along the list, so item k only ever moves to the left: the search for it starts where the last one ended.
    """
    m = densities.shape[0]
    kept = 0
    known[OPEN] = known[BEST]
    edge, lowest, k = right, right, m
    for i in range(count):
        size, value, link, flipped = states[i, SIZE], states[i, VALUE], states[i, LINK], states[i, FLIPPED]
        if size > room and lowest > 0:  # from here on the states are too large: walk over what is still in
            edge, lowest, k = left, 0, left
        limit = before[edge, SIZE] + room - size
        if limit < 0:
            break  # too large even with everything taken out, as are all that follow
        k = last_within(before, lowest, k, limit)
        whole = value + before[k, VALUE] - before[edge, VALUE]
        bound = whole
        if k < m:
            bound += int((limit - before[k, SIZE]) * densities[k] + slack)
        if whole > known[BEST]:
            known[BEST], known[LINK_TO], known[FLIP] = whole, link, item if flipped else NONE
            known[FROM], known[TO] = min(edge, k), max(edge, k)
        if bound <= known[BEST] + tolerance:
            known[DROPPED] = max(known[DROPPED], bound)
            continue
        known[OPEN] = max(known[OPEN], bound)
        if flipped:
            links[linked, ITEM], links[linked, PARENT] = item, link
            link = linked
            linked += 1
        states[kept, SIZE], states[kept, VALUE], states[kept, LINK] = size, value, link
        kept += 1
    return kept, linked


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
def unwind(links: Ints, known: Ints, flips: Flags) -> None:
    """Write what the best solution flips: its walk, its last item, and its history link by link."""
    for item in range(known[FROM], known[TO]):
        flips[item] = True
    if known[FLIP] != NONE:
        flips[known[FLIP]] = True
    link = known[LINK_TO]
    while link != NONE:
        flips[links[link, ITEM]] = True
        link = links[link, PARENT]


@kernel
def running_sums(sizes: Ints, values: Ints) -> Ints:
    """Row k: size and value of the first k items together."""
    before = np.zeros((sizes.shape[0] + 1, 2), np.int64)
    for k in range(sizes.shape[0]):
        before[k + 1, SIZE] = before[k, SIZE] + sizes[k]
        before[k + 1, VALUE] = before[k, VALUE] + values[k]
    return before


@kernel
def grown(rows: Ints, length: int) -> Ints:
    """A longer copy. By hand, since slices of two dimensions take seconds to compile."""
    longer = np.empty((length, rows.shape[1]), np.int64)
    for i in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            longer[i, column] = rows[i, column]
    return longer
