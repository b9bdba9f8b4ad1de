"""The exact Oracle: 0-1 knapsack by price, fixing, and a search over what is left open.

Theory of operation. Values w ≥ 0, sizes S ≥ 1, capacity M, any number of items; nothing is ever sorted but the core.

1. `price`: the density λ at which the room runs out. Take what is denser, and items at λ while they fit: the break
   solution. It has room r left, and for any multiplier, so also for λ,

       OPT ≤ λ·M + Σ max(0, w − λS) = (break solution) + U        U = λ·r               (Lagrange's bound, Dantzig's)

   If U is within the tolerance (see `approximate`), that is all.
2. `groups`: fixing. What costs |w − λS| ≥ U − gain stays where it is. Near items are taken together with their equals.
3. `bounds`: the first core is made small on purpose, some hundred items next to the price. Its search is quick and
   nearly always finds the optimum, or something close, and with that `gain` fixing leaves a small core for good.
4. `core`: the search. The answer is proven when the search has closed and the threshold of fixing has covered
   U − gain; otherwise the threshold is widened and it is done again.

The search works in whole numbers: values are multiplied by a power of two such that the core sums to 2^61 and rounded,
sizes and values are divided by what they all have in common. (Floats were rejected: a solution is told from another by
differences far below the rounding of their sums.) Integers, and most floats, pass without any rounding; what is rounded
off is added up and counted in the certificate.

The certificate. OPT − value ≤ gap, where gap is the largest of what the search left open and what fixing gave away.
Every float in between is rounded towards a larger gap, so upper_bound = value + gap holds in real numbers, not just in
floats. The budget counts states of searches, so an answer can be repeated on any machine.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.approximate import good_enough, tolerance
from knapcache.oracle.bounds import best_exchange, cardinality_bound, expected, first_threshold, sample_costs, wider
from knapcache.oracle.core import Core, search
from knapcache.oracle.groups import ROUNDING, classes, near_items, pieces, reduced_cost
from knapcache.oracle.price import break_items, measure, near_price, take_dense, take_tied
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import all_integers, common_divisor, total, whole_numbers

# Below 2^-1022 a float is precise to 2^-1074 and no better. UNDERFLOW covers what densities down there can be off by,
# times all sizes, with much to spare; it is nothing next to any ordinary value.
LAST_BIT = -1073
UNDERFLOW = 2.0**-1000
# Integers up to here, and their sums, are floats without rounding.
EXACT_INTEGERS = 2.0**53
CORE_LIMIT = 2.0**61
# Up to SMALL items there is one core, and everything is in it that fixing leaves open. Above, the first core has about
# FIRST_CORE items, at least FEWEST classes, and FIRST_BUDGET states for its search.
SMALL, FIRST_CORE, FEWEST, FIRST_BUDGET = 256, 192, 64, 1 << 18
FIRST_MOST = 2048
# Where a core is larger than this, exchanges and cardinality are looked at first.
LARGE_CORE = 512


@kernel
def select(
    values: Floats, sizes: Ints, capacity: int, beta: float, tol: float, budget: int, chosen: Flags
) -> tuple[float, float, float, bool, int]:
    """Write the best set into `chosen`; returns (value, upper_bound, price, proven, work).

    The input is trusted (`problem.read` checks it). A negative budget is none. `work` counts states looked at.
    """
    density, items = np.empty(values.shape[0], np.int64), np.empty(values.shape[0], np.int64)
    value, upper_bound, price, proven, work, _ = select_in(
        values, sizes, capacity, beta, tol, budget, chosen, density, items
    )
    return value, upper_bound, price, proven, work


@kernel
def select_in(
    values: Floats, sizes: Ints, capacity: int, beta: float, tol: float, budget: int, chosen: Flags,
    density: Ints, items: Ints,
) -> tuple[float, float, float, bool, int, float]:  # fmt: skip
    """`select` in a workspace: `density` and `items`, as long as `values`, are overwritten. Also returns U − gain."""
    gap, open_, price, least_left_out, work = improve_break(
        values, sizes, capacity, capacity, 0.0, 0.0, beta, tol, budget, chosen, density, items
    )
    value, exact = total(values, chosen, True)
    upper_bound = value if gap == 0.0 and exact else (value + gap) * (1.0 + ROUNDING)
    proven = gap <= tolerance(beta, tol, value, least_left_out)
    if not proven:
        proven = good_enough(gap, beta, tol, value, total(values, chosen, False)[0], least_left_out)
    return value, upper_bound, price, proven, work, open_


@kernel
def improve_break(
    values: Floats, sizes: Ints, limit: int, capacity: int, also_kept: float, also_left_out: float, beta: float,
    tol: float, budget: int, chosen: Flags, density: Ints, items: Ints,
) -> tuple[float, float, float, float, int]:  # fmt: skip
    """Steps 1–4; returns (gap, U − gain, λ, a lower bound on C*, work).

    The items may be part of a larger problem whose other items are decided: then `capacity` is what those leave, while
    `limit`, above which no item can be kept, is the capacity of the whole, and what those keep and leave out counts for
    the tolerance.
    """
    if measure(values, sizes, limit, density) <= capacity:
        for i in range(values.shape[0]):
            chosen[i] = density[i] >= 0
        return 0.0, 0.0, 0.0, 0.0, 0
    price_bits, ties, room = break_items(density, sizes, capacity, items)
    i = items[0]
    price = values[i] / sizes[i]
    kept, left_out = take_dense(values, density, price_bits, chosen)
    room, taken, tied = take_tied(values, sizes, items[:ties], room, chosen)
    kept, left_out = also_kept + kept + taken, also_left_out + max(0.0, left_out - taken)
    integral = kept + left_out < EXACT_INTEGERS and all_integers(values)
    if limit >= EXACT_INTEGERS:
        tied = near_price(values, sizes, price, ROUNDING)
    bound = price * room * (1.0 + ROUNDING) + tied * ROUNDING + UNDERFLOW
    lost = 1.0 - values.shape[0] * 2.0**-52  # as far as a plain sum of that many can be off
    least_left_out = max(0.0, left_out * lost - bound)
    allowed = tolerance(beta, 0.0 if integral else tol, kept * lost, least_left_out)
    if integral and bound < 2.0**49:
        allowed = max(allowed, 0.5)  # whole numbers that differ by less than 1 do not differ
    gap, gain, work = bound, 0.0, 0
    if gap > allowed:
        gap, gain, work = widen(values, sizes, density, room, price, bound, allowed, budget, chosen, items)
    if integral:
        gap = np.floor(gap)
    return gap, bound - gain, price, least_left_out, work


@kernel
def widen(
    values: Floats, sizes: Ints, density: Ints, room: int, price: float, bound: float, allowed: float, budget: int,
    chosen: Flags, items: Ints,
) -> tuple[float, float, int]:  # fmt: skip
    """Search cores of growing width until the best is proven or the budget is spent; returns (gap, gain, work)."""
    threshold = math.inf
    if values.shape[0] > SMALL:
        below = sample_costs(values, sizes, density, price, bound)
        threshold = first_threshold(below, bound, FIRST_CORE)
    else:
        below = items  # not used
    gain, gap, ceiling, work, rounds = 0.0, bound, bound, 0, 0
    flips = items[:0].copy()
    last = False
    while gap > allowed and not last:
        needed = bound - gain - 0.75 * allowed  # the rest of what is allowed is for rounding
        last = threshold >= needed
        threshold = min(threshold, needed)
        # Among ties the first core would be large after all. Any part of it will do for a first solution.
        most = FIRST_MOST if rounds == 0 and not last else values.shape[0] + 1
        near = items[: near_items(values, sizes, density, price, threshold, most, items)]
        member, first, count = classes(values, sizes, chosen, near)
        if not last and near.shape[0] < FIRST_MOST and first.shape[0] < FEWEST:
            threshold = wider(below, bound, threshold)
            continue
        top = bound
        if rounds > 0 or first.shape[0] > LARGE_CORE:
            better, goes, comes = best_exchange(values, sizes, chosen, first, room)
            if better * (1.0 - ROUNDING) > gain:
                gain = better * (1.0 - ROUNDING)
                flips = items[:2].copy()
                flips[0], flips[1] = goes, comes
                gap = max(0.0, ceiling - gain)
                if bound - gain - 0.75 * allowed < 0.5 * threshold:  # fixing leaves much less open now: gather again
                    threshold, last, rounds = bound - gain - 0.75 * allowed, False, rounds + 1
                    continue
            top = cardinality_bound(values, sizes, chosen, first, count, room)
        states = budget if last else min(FIRST_BUDGET, budget) if budget >= 0 else FIRST_BUDGET
        better, core_gap, states, times = search_core(
            values, sizes, chosen, first, count, room, price, bound, gain, top, allowed, states
        )
        work += states
        budget = budget - states if budget >= 0 else budget
        if better > gain:
            gain = better
            flips = flipped_items(near, member, times)
        # Open: what the search left, and what fixing gave away; and never more than any round has shown.
        gap = max(0.0, ceiling - gain)
        if near.shape[0] < most:
            gap = min(gap, max(0.0, core_gap, bound - threshold - gain))
            ceiling = min(ceiling, (gain + gap) * (1.0 + ROUNDING))
        rounds += 1
        # Straight to what is needed, unless that would be a much larger core: a better gain may make it smaller.
        needed = bound - gain - 0.75 * allowed
        if near.shape[0] == most:
            threshold = min(threshold, needed)
            continue
        many = not last and expected(below, bound, needed) > 16 * max(near.shape[0], FIRST_CORE)
        threshold = threshold * 8.0 if many else needed
    for i in flips:
        chosen[i] = not chosen[i]
    return gap, gain, work


@kernel
def search_core(
    values: Floats, sizes: Ints, chosen: Flags, first: Ints, count: Ints, room: int, price: float, bound: float,
    gain: float, top: float, allowed: float, budget: int,
) -> tuple[float, float, int, Ints]:  # fmt: skip
    """Search the classes for more than `gain`; returns (gain, gap, work, how often each class flips).

    `top` is an upper bound from elsewhere. If nothing better was found, the gain is the one given.
    """
    of, times, limits = pieces(values, sizes, chosen, first, count, price, bound - gain - allowed)
    whole, exponent, error = whole_numbers(values, first, limits)
    unit, step = whole[0], sizes[first[0]]
    for c in range(first.shape[0]):
        unit, step = common_divisor(whole[c], unit), common_divisor(sizes[first[c]], step)
    m = of.shape[0]
    core_values, core_sizes = np.empty(m, np.int64), np.empty(m, np.int64)
    densities, costs = np.empty(m, np.float64), np.empty(m, np.float64)
    taken, length, sum_ = 0, 0, 0
    for j in range(m):
        i = first[of[j]]
        taken += chosen[i]
        core_values[j], core_sizes[j] = whole[of[j]] // unit * times[j], sizes[i] // step * times[j]
        densities[j] = math.ldexp(values[i], exponent) / unit / (sizes[i] // step)
        costs[j] = math.ldexp(reduced_cost(values[i], sizes[i], price), exponent) / unit * times[j] * (1.0 - ROUNDING)
        length += sizes[i] * times[j]
        sum_ += core_values[j]
    # The order's own error: in the last bits of every value, in what was rounded off, and where densities underflow.
    slack = sum_ * 8.0 * ROUNDING + 2.0 * error / unit
    slack = min(slack + math.ldexp(float(length), exponent + LAST_BIT) / unit, CORE_LIMIT)
    # All of the core comes in steps, so a rest of the room below one step is lost to it.
    given = bound
    bound = bound - price * (room % step) * (1.0 - ROUNDING)
    bound = min(math.ldexp(bound, exponent) + error, CORE_LIMIT) / unit * (1.0 + ROUNDING)
    if top < given:
        top = min(bound, (math.ldexp(top, exponent) + error) / unit * (1.0 + ROUNDING))
    else:
        top = bound
    incumbent = int(math.ldexp(gain, exponent)) // unit
    leeway = int(min(max(0.0, math.ldexp(allowed, exponent) - error), CORE_LIMIT)) // unit
    core = Core(core_values, core_sizes, densities, costs, slack, taken, room // step, bound, int(top))
    flips = np.zeros(m, np.bool_)
    best, upper, work = search(core, incumbent, leeway, budget, flips)
    flipped = np.zeros(first.shape[0], np.int64)
    error = math.ldexp(error, -exponent)
    if best > incumbent:
        gain = max(gain, math.ldexp(float(best * unit), -exponent) * (1.0 - ROUNDING) - error)
        for j in range(m):
            flipped[of[j]] += times[j] if flips[j] else 0
    return gain, math.ldexp(float((upper - best) * unit), -exponent) + error, work, flipped


@kernel
def flipped_items(near: Ints, member: Ints, times: Ints) -> Ints:
    """The items to flip: of each class, the first so many."""
    flips = np.empty(near.shape[0], np.int64)
    count = 0
    for k in range(near.shape[0]):
        if times[member[k]] > 0:
            times[member[k]] -= 1
            flips[count] = near[k]
            count += 1
    return flips[:count].copy()
