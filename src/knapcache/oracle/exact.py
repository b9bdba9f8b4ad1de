"""The exact Oracle: 0-1 knapsack by linear relaxation, fixing, and a search over what is left open.

Theory of operation. Values w ≥ 0, sizes S ≥ 1, capacity M.

1. An item of no value, or larger than M, is never kept. If the others fit together, they are the answer.
2. By falling density w/S, take items until one does not fit: the *break item*. Its density λ is the price of room. What
   was taken is the break solution; it has room r left. If the break item could be cut, filling r with it would be
   optimal, so

       OPT ≤ (break solution) + U        U = λ·r                                    (Dantzig's bound)

3. Going on greedily past the break item gives a solution that is better by some `gain`. If U − gain is within the
   tolerance (see `approximate`), that is all.
4. Fixing. Deciding item j against the break solution costs |w − λS| of the bound: no solution that does is better than
   U − |w − λS|. If that is not above gain + tolerance, j stays where it is. What remains is the *core*, a few dozen
   items out of any number, since most densities are far from λ.
5. `core.search` solves the core. It works in whole numbers: values are multiplied by a power of two such that the core
   sums to 2^61 and rounded, sizes and values are divided by what they all have in common. (Floats were rejected: a
   solution is told from another by differences far below the rounding of their sums.) Integers, and most floats, pass
   without any rounding; what is rounded off is added up and counted in the certificate.

The certificate. OPT − value ≤ gap, where gap is the largest of what the search left open and what fixing gave away.
Every float in between is rounded towards a larger gap, so upper_bound = value + gap holds in real numbers, not just in
floats.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.approximate import good_enough, tolerance
from knapcache.oracle.core import search
from knapcache.oracle.problem import Flags, Floats, Ints

# Rounding, in units of what is rounded: one operation errs by at most 2^-53. These are generous for the few at hand.
ROUNDING = 2.0**-50
# Below 2^-1022 a float is precise to 2^-1074 and no better. UNDERFLOW covers what densities down there can be off by,
# times all sizes, with much to spare; it is nothing next to any ordinary value.
LAST_BIT = -1073
UNDERFLOW = 2.0**-1000
# Integers up to here, and their sums, are floats without rounding.
EXACT_INTEGERS = 2.0**53
# The core's values sum to about 2^CORE_BITS: differences, bounds and tolerances stay inside int64.
CORE_BITS = 61
CORE_LIMIT = 2.0**CORE_BITS


@kernel
def select(
    values: Floats, sizes: Ints, capacity: int, beta: float, tol: float, budget: int, chosen: Flags
) -> tuple[float, float, float, bool, int]:
    """Write the best set into `chosen`; returns (value, upper_bound, price, proven, work).

    The input is trusted (`problem.read` checks it). A negative budget is none. `work` counts states looked at.
    """
    chosen[:] = False
    items, size = useful(values, sizes, capacity)
    if size <= capacity:
        for i in items:
            chosen[i] = True
        value, upper_bound = certify(values, chosen, 0.0)
        return value, upper_bound, 0.0, True, 0

    order = by_density(values, sizes, items)
    taken, room = break_solution(sizes, order, capacity, chosen)
    price = values[order[taken]] / sizes[order[taken]]
    kept, left_out = total(values, chosen, True)[0], total(values, chosen, False)[0]
    integral = kept + left_out < EXACT_INTEGERS and all_integers(values)

    gain = fill(values, sizes, order[taken:], room, chosen)
    if not integral:
        gain *= 1.0 - order.shape[0] * 2.0**-52  # as far as a plain sum of that many can be off
    bound = price * room * (1.0 + ROUNDING) + at_price(values, sizes, order, price) * ROUNDING + UNDERFLOW
    if integral:
        bound = np.floor(bound)
    least_left_out = max(0.0, left_out * (1.0 - ROUNDING) - bound)
    allowed = tolerance(beta, 0.0 if integral else tol, kept, least_left_out)

    gap, work = bound - gain, 0
    if gap > allowed:
        gap, work = improve(values, sizes, order, taken, room, price, bound, gain, allowed, budget, chosen)
    gap = max(gap, 0.0)
    value, upper_bound = certify(values, chosen, gap)
    left_out = total(values, chosen, False)[0]
    proven = gap == 0.0 or good_enough(gap, beta, tol, value, left_out, least_left_out)
    return value, upper_bound, price, proven, work


@kernel
def useful(values: Floats, sizes: Ints, capacity: int) -> tuple[Ints, int]:
    """The items that can be worth their room, and their size together."""
    items = np.empty(values.shape[0], np.int64)
    count = size = 0
    for i in range(values.shape[0]):
        if values[i] > 0.0 and sizes[i] <= capacity:
            items[count] = i
            count += 1
            size += sizes[i]
    return items[:count], size


@kernel
def by_density(values: Floats, sizes: Ints, items: Ints) -> Ints:
    """The items by falling density; equal ones in the order given, so that the answer is the same everywhere."""
    rising = np.empty(items.shape[0], np.float64)
    for j in range(items.shape[0]):
        rising[j] = -values[items[j]] / sizes[items[j]]
    return items[np.argsort(rising, kind="mergesort")]


@kernel
def break_solution(sizes: Ints, order: Ints, capacity: int, chosen: Flags) -> tuple[int, int]:
    """Take items in order up to the first that does not fit; returns how many, and the room left."""
    taken, room = 0, capacity
    while sizes[order[taken]] <= room:
        room -= sizes[order[taken]]
        chosen[order[taken]] = True
        taken += 1
    return taken, room


@kernel
def at_price(values: Floats, sizes: Ints, order: Ints, price: float) -> float:
    """Sum of the values whose density a float cannot tell from the price.

    These may be on the wrong side of the break item, each by a last bit of its value. The others cannot, and must not
    count: next to one huge value that is out of question, the rounding of the sum of all would hide what is open.
    """
    sum_ = 0.0
    for i in order:
        worth = price * sizes[i]
        if abs(values[i] - worth) <= (values[i] + worth) * ROUNDING:
            sum_ += values[i]
    return sum_


@kernel
def fill(values: Floats, sizes: Ints, items: Ints, room: int, chosen: Flags) -> float:
    """Take whatever still fits, in the order given; returns what it is worth."""
    gain = 0.0
    for i in items:
        if sizes[i] <= room:
            room -= sizes[i]
            chosen[i] = True
            gain += values[i]
    return gain


@kernel
def improve(
    values: Floats, sizes: Ints, order: Ints, taken: int, room: int, price: float, bound: float, gain: float,
    allowed: float, budget: int, chosen: Flags,
) -> tuple[float, int]:  # fmt: skip
    """Search the core, rewrite `chosen` if it has something better than `gain`; returns (gap, work)."""
    places, fixed = open_places(values, sizes, order, price, bound, bound - gain - allowed)
    core = order[places]
    inside = 0
    while inside < places.shape[0] and places[inside] < taken:
        inside += 1
    whole, exponent, error = whole_numbers(values, core)
    unit, step = common_divisor(whole), common_divisor(sizes[core])
    lengths = sizes[core] // step
    whole //= unit
    densities = np.empty(core.shape[0], np.float64)
    for j in range(core.shape[0]):
        densities[j] = math.ldexp(values[core[j]], exponent) / unit / lengths[j]
    # The order's own error: in the last bits of every value, in what was rounded off, and where densities underflow.
    slack = whole.sum() * 8.0 * ROUNDING + 2.0 * error / unit
    slack = min(slack + math.ldexp(float(sizes[core].sum()), exponent + LAST_BIT) / unit, CORE_LIMIT)

    incumbent = int(math.ldexp(gain, exponent)) // unit
    leeway = int(min(max(0.0, math.ldexp(allowed, exponent) - error), CORE_LIMIT)) // unit
    flips = np.zeros(core.shape[0], np.bool_)
    best, upper, work = search(whole, lengths, densities, slack, inside, room // step, incumbent, leeway, budget, flips)
    error = math.ldexp(error, -exponent)
    if best > incumbent:
        gain = math.ldexp(float(best * unit), -exponent) * (1.0 - ROUNDING) - error
        for j in range(order.shape[0]):
            chosen[order[j]] = j < taken
        for j in range(core.shape[0]):
            chosen[core[j]] ^= flips[j]
    return max(math.ldexp(float((upper - best) * unit), -exponent) + error, fixed - gain), work


@kernel
def open_places(
    values: Floats, sizes: Ints, order: Ints, price: float, bound: float, threshold: float
) -> tuple[Ints, float]:
    """The places in `order` of the core, and the highest bound among the solutions that fixing the others gave away.

    The break item itself is always open: it costs nothing, and the threshold is positive.
    """
    places = np.empty(order.shape[0], np.int64)
    count, fixed = 0, 0.0
    for j in range(order.shape[0]):
        value, worth = values[order[j]], price * sizes[order[j]]
        cost = abs(value - worth) - (value + worth) * ROUNDING
        if cost < threshold:
            places[count] = j
            count += 1
        else:
            fixed = max(fixed, bound - cost)
    return places[:count], fixed


@kernel
def whole_numbers(values: Floats, items: Ints) -> tuple[Ints, int, float]:
    """The items' values times 2^exponent, rounded; the exponent; and the sum of all that was rounded off."""
    sum_ = 0.0
    for i in items:
        sum_ += values[i]
    exponent = CORE_BITS - math.frexp(sum_)[1]
    whole = np.empty(items.shape[0], np.int64)
    error = 0.0
    for j in range(items.shape[0]):
        scaled = math.ldexp(values[items[j]], exponent)
        nearest = np.floor(scaled + 0.5)
        whole[j] = int(nearest)
        error += abs(scaled - nearest)
    return whole, exponent, error * (1.0 + 2.0**-20)


@kernel
def common_divisor(numbers: Ints) -> int:
    """The greatest number that divides them all (Euclid)."""
    divisor: int = numbers[0]
    for number in numbers:
        a, b = number, divisor
        while b != 0:
            a, b = b, a % b
        divisor = a
        if divisor == 1:
            break
    return divisor


@kernel
def all_integers(values: Floats) -> bool:
    """Whether every value is an integer."""
    fractions = 0
    for value in values:
        fractions += value != np.floor(value)
    return fractions == 0


@kernel
def total(values: Floats, chosen: Flags, wanted: bool) -> tuple[float, bool]:
    """Sum of the values whose flag is `wanted`, to the last bit or two however many there are, and whether it is exact.

    Neumaier's sum: what an addition rounds off is itself a float, and is added up on the side.
    """
    sum_, lost = 0.0, 0.0
    for i in range(values.shape[0]):
        if chosen[i] == wanted:
            a = values[i]
            after = sum_ + a
            if sum_ >= a:
                lost += (sum_ - after) + a
            else:
                lost += (a - after) + sum_
            sum_ = after
    return sum_ + lost, lost == 0.0


@kernel
def certify(values: Floats, chosen: Flags, gap: float) -> tuple[float, float]:
    """The value of what is chosen, and a float that no solution is worth more than, given that OPT − value ≤ gap."""
    value, exact = total(values, chosen, True)
    if gap == 0.0 and exact:
        return value, value
    return value, (value + gap) * (1.0 + ROUNDING)
