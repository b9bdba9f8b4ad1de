"""The exact Oracle: 0-1 knapsack by break price, variable fixing and a search over the undecided core.

Theory of operation. Values w ≥ 0, sizes S ≥ 1, capacity M, any number of items. Only the core is ever sorted.

1. `price`: find the density λ at which the capacity is used up. Take all denser items, and items at λ while they fit:
   the break solution. It leaves r units of capacity free. For any multiplier, so also for λ,

       OPT ≤ λ·M + Σ max(0, w − λS) = (break solution) + U        U = λ·r               (Lagrange's bound, Dantzig's)

   If U is within the tolerance (see `approximate`), the break solution is the answer.
2. `groups`: fixing. Items with |w − λS| ≥ U − gain keep their decision, and so do the ends of chains of equal value.
   Equal items among the others are grouped.
3. `bounds`: the first core is deliberately small, some hundred items next to the price. Its search is quick and nearly
   always finds the optimum or comes close. With that `gain`, fixing leaves a small final core.
4. `core`: the search. The answer is proven when the search is complete and the threshold of fixing has covered
   U − gain. Otherwise the threshold is widened and steps 2–4 are repeated.

The search works on integers: values are scaled by a power of two so that the core sums to 2^61, and rounded; sizes and
values are divided by their greatest common divisors. (Rejected: floats. Solutions differ by much less than the rounding
error of their sums.) Integers, and most floats, are scaled without rounding; rounding errors are summed and included in
the certificate.

The certificate. OPT − value ≤ gap, where gap is the maximum of what the search left open and what fixing gave away.
Every float on the way is rounded towards a larger gap, so upper_bound = value + gap holds in real numbers, not only in
floats. The work limit counts search states, so results are reproducible on any machine.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from knapcache.kernel import kernel
from knapcache.oracle.approximate import meets_tolerance, tolerance
from knapcache.oracle.bounds import (
    best_exchange,
    cardinality_bound,
    expected_count,
    sample_costs,
    threshold_for,
    wider_threshold,
)
from knapcache.oracle.core import Core, search
from knapcache.oracle.groups import (
    ROUNDING,
    drop_chain_ends,
    group_equal,
    near_items,
    reduced_cost,
    split_classes,
)
from knapcache.oracle.price import break_items, choose_dense, choose_tied, compute_densities, value_near_price
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.sums import accurate_sum, all_integers, gcd, to_integers, two_sum

# Below 2^-1022 a float has an absolute precision of 2^-1074. UNDERFLOW covers the error of densities in that range,
# times all sizes, with a wide margin; it is negligible next to ordinary values.
LAST_BIT = -1073
UNDERFLOW = 2.0**-1000
# Relative error of a compensated sum of up to 2^21 values, apart from its last rounding: (n·2^-53)^2.
COMPENSATED = 2.0**-64
# Integers up to this value, and their sums, are exact as floats.
EXACT_INTEGERS = 2.0**53
CORE_LIMIT = 2.0**61
# Up to SMALL items there is one core with all items that fixing leaves undecided. Above, the first core has about
# FIRST_CORE items (FIRST_MAX at most), at least MIN_CLASSES classes, and FIRST_WORK states for its search.
SMALL, FIRST_CORE, MIN_CLASSES, FIRST_WORK = 256, 192, 64, 1 << 18
FIRST_MAX = 2048
# With more classes than this, the exchange and cardinality bounds are tried before the first search.
LARGE_CORE = 512


class Workspace(NamedTuple):
    """The arrays of one problem, one element per item."""

    values: Floats
    sizes: Ints
    chosen: Flags
    """Output."""
    density: Ints
    """Scratch: the density of each item as float bits; negative for items that are of no use."""
    items: Ints
    """Scratch: item numbers."""


class SearchOptions(NamedTuple):
    """The required proof, and the number of search states that it may take (negative: unlimited)."""

    beta: float
    tol: float
    work_limit: int


class FrozenItems(NamedTuple):
    """Totals of those items of the problem that are already decided and not in the workspace."""

    size: int
    """Of the items that are kept."""
    kept: float
    """Value of the items that are kept; `kept_error` is its rounding error."""
    kept_error: float
    left_out: float
    """Value of the items that are left out."""


class BreakSolution(NamedTuple):
    """The break solution: its price λ, its free capacity r, and the upper bound U on any gain over it."""

    price: float
    free: int
    bound: float


@kernel
def select(
    values: Floats, sizes: Ints, capacity: int, beta: float, tol: float, work_limit: int, chosen: Flags
) -> tuple[float, float, float, bool, int]:
    """Write the best set into `chosen`; returns (value, upper_bound, price, proven, work).

    The input is not checked (`problem.read_problem` does that). A negative work limit is none. `work` counts states.
    """
    density, items = np.empty(values.shape[0], np.int64), np.empty(values.shape[0], np.int64)
    space = Workspace(values=values, sizes=sizes, chosen=chosen, density=density, items=items)
    options, frozen = SearchOptions(beta, tol, work_limit), FrozenItems(0, 0.0, 0.0, 0.0)
    value, upper_bound, price, proven, work, _ = select_in(space, capacity, frozen, options, chosen[:0])
    return value, upper_bound, price, proven, work


@kernel
def select_in(
    space: Workspace, capacity: int, frozen: FrozenItems, options: SearchOptions, start: Flags
) -> tuple[float, float, float, bool, int, float]:
    """Solve a workspace next to some frozen items; returns what `select` returns, and U − gain.

    `capacity`, `value` and `upper_bound` include the frozen items. `start` is a set to start from, such as the solution
    before a few values changed, or empty. A good one shortens the search. One that does not fit is ignored.
    """
    gap, open_, price, least_left_out, work = improve_break(space, capacity, frozen, options, start)
    found, exact = accurate_sum(space.values, space.chosen, True)
    value, error = two_sum(frozen.kept, found)
    exact = exact and frozen.kept_error == 0.0 and error == 0.0
    value += frozen.kept_error + error
    upper_bound = value if gap == 0.0 and exact else (value + gap) * (1.0 + ROUNDING)
    beta, tol = options.beta, options.tol
    proven = gap <= tolerance(beta, tol, value, least_left_out)
    if not proven:
        left_out = frozen.left_out + accurate_sum(space.values, space.chosen, False)[0]
        proven = meets_tolerance(gap, beta, tol, value, left_out, least_left_out)
    return value, upper_bound, price, proven, work, open_


@kernel
def improve_break(
    space: Workspace, capacity: int, frozen: FrozenItems, options: SearchOptions, start: Flags
) -> tuple[float, float, float, float, int]:
    """Do steps 1–4; returns (gap, U − gain, λ, a lower bound on C*, work)."""
    values, sizes, chosen, density, items = space.values, space.sizes, space.chosen, space.density, space.items
    if compute_densities(values, sizes, capacity, density) <= capacity - frozen.size:
        for i in range(values.shape[0]):
            chosen[i] = density[i] >= 0
        return 0.0, 0.0, 0.0, 0.0, 0
    price_bits, ties, free = break_items(density, sizes, capacity - frozen.size, items)
    i = items[0]
    price = values[i] / sizes[i]
    kept, left_out = choose_dense(values, density, price_bits, chosen)
    free, taken, tied = choose_tied(values, sizes, items[:ties], free, chosen)
    kept, left_out = frozen.kept + kept + taken, max(0.0, frozen.left_out) + max(0.0, left_out - taken)
    integral = kept + left_out < EXACT_INTEGERS and all_integers(values)
    if capacity >= EXACT_INTEGERS:
        tied = value_near_price(values, sizes, price, ROUNDING)
    bound = price * free * (1.0 + ROUNDING) + tied * ROUNDING + UNDERFLOW
    accuracy = 1.0 - values.shape[0] * 2.0**-52  # worst relative error of a plain sum of that many values
    least_left_out = max(0.0, left_out * accuracy - bound)
    allowed = tolerance(options.beta, 0.0 if integral else options.tol, kept * accuracy, least_left_out)
    if integral and bound < 2.0**49:
        allowed = max(allowed, 0.5)  # integers that differ by less than 1 are equal
    gap, gain, work = bound, 0.0, 0
    if gap > allowed:
        gain, flips = gain_of_start(space, start, free)
        gap, gain, work = widen(space, BreakSolution(price, free, bound), gain, flips, allowed, options.work_limit)
    if integral:
        gap = np.floor(gap)
    return gap, bound - gain, price, least_left_out, work


@kernel
def gain_of_start(space: Workspace, start: Flags, free: int) -> tuple[float, Ints]:
    """Return what the set `start` is worth more than the break solution, rounded down, and the items to flip for it.

    (0, none) if it is not worth more, or does not fit.
    """
    values, sizes, chosen, density = space.values, space.sizes, space.chosen, space.density
    flips, count = np.empty(start.shape[0], np.int64), 0
    gain, lost, total = 0.0, 0.0, 0.0
    for i in range(start.shape[0]):
        if density[i] >= 0 and start[i] != chosen[i]:
            flips[count] = i
            count += 1
            gain, error = two_sum(gain, values[i] if start[i] else -values[i])
            lost += error
            total += values[i]
            free += -sizes[i] if start[i] else sizes[i]
    gain = (gain + lost) - (abs(gain) + abs(lost)) * ROUNDING - total * COMPENSATED
    if free < 0 or gain <= 0.0:
        return 0.0, flips[:0]
    return gain, flips[:count]


@kernel
def widen(
    space: Workspace, broken: BreakSolution, gain: float, flips: Ints, allowed: float, work_limit: int
) -> tuple[float, float, int]:
    """Search cores of growing width until the best is proven or the work limit is reached; returns (gap, gain,
    work).

    `gain` is that of a known solution, and `flips` are its differences from the break solution.
    """
    values, sizes, chosen, bound = space.values, space.sizes, space.chosen, broken.bound
    threshold, below = first_threshold(space, broken)
    gap, ceiling, work, rounds = max(0.0, bound - gain), bound, 0, 0
    last = False
    while gap > allowed and not last:
        needed = needed_threshold(bound, gain, allowed)
        last = threshold >= needed
        threshold = min(threshold, needed)
        # Among ties the first core could be large. Any part of it is enough for a first solution.
        limit = FIRST_MAX if rounds == 0 and not last else values.shape[0] + 1
        found, near, member, first, count = gather_core(space, broken.price, threshold, limit)
        if not last and found < FIRST_MAX and first.shape[0] < MIN_CLASSES:
            threshold = wider_threshold(below, bound, threshold)
            continue
        top = bound
        if rounds > 0 or first.shape[0] > LARGE_CORE:
            better, removed, added = best_exchange(values, sizes, chosen, first, broken.free)
            better *= 1.0 - ROUNDING
            if better > gain:
                gain, flips, gap = better, np.array([removed, added]), max(0.0, ceiling - better)
                needed = needed_threshold(bound, gain, allowed)
                if needed < 0.5 * threshold:  # far fewer items are undecided now: gather again
                    threshold, last, rounds = needed, False, rounds + 1
                    continue
            top = cardinality_bound(values, sizes, chosen, first, count, broken.free)
        states = work_of_round(last, work_limit)
        better, core_gap, states, flipped = search_core(space, broken, first, count, gain, top, allowed, states)
        work += states
        work_limit = work_limit - states if work_limit >= 0 else work_limit
        if better > gain:
            gain, flips = better, flipped_items(near, member, flipped)
        # The gap is what the search left open and what fixing gave away, and never more than an earlier round proved.
        gap = max(0.0, ceiling - gain)
        if found < limit:
            gap = min(gap, max(0.0, core_gap, bound - threshold - gain))
            ceiling = min(ceiling, (gain + gap) * (1.0 + ROUNDING))
        rounds += 1
        needed = needed_threshold(bound, gain, allowed)
        if found == limit:
            threshold = min(threshold, needed)
        elif not last:
            threshold = next_threshold(below, bound, threshold, needed, found)
    for i in flips:
        chosen[i] = not chosen[i]
    return gap, gain, work


@kernel
def first_threshold(space: Workspace, broken: BreakSolution) -> tuple[float, Ints]:
    """Return the reduced cost below which the first core takes items, and the sample that estimates such numbers."""
    if space.values.shape[0] <= SMALL:
        return math.inf, space.items  # no sample is needed: the first core has all undecided items
    below = sample_costs(space.values, space.sizes, space.density, broken.price, broken.bound)
    return threshold_for(below, broken.bound, FIRST_CORE), below


@kernel
def needed_threshold(bound: float, gain: float, allowed: float) -> float:
    """Return the reduced cost above which items are decided. A quarter of the tolerance is for rounding."""
    return bound - gain - 0.75 * allowed


@kernel
def next_threshold(below: Ints, bound: float, threshold: float, needed: float, found: int) -> float:
    """Return the needed threshold unless that core is much larger: a better gain may shrink it first."""
    many = expected_count(below, bound, needed) > 16 * max(found, FIRST_CORE)
    return threshold * 8.0 if many else needed


@kernel
def work_of_round(last: bool, work_limit: int) -> int:
    """Return how many states the search of a core may take. Only the last core may take all that are left."""
    if last:
        return work_limit
    return min(FIRST_WORK, work_limit) if work_limit >= 0 else FIRST_WORK


@kernel
def gather_core(space: Workspace, price: float, threshold: float, limit: int) -> tuple[int, Ints, Ints, Ints, Ints]:
    """Return how many items have a reduced cost below the threshold (at most `limit`), those that matter, and their
    classes as `group_equal` returns them.
    """
    values, sizes, chosen, items = space.values, space.sizes, space.chosen, space.items
    found = near_items(values, sizes, space.density, price, threshold, limit, items)
    near = items[: drop_chain_ends(values, sizes, chosen, price, threshold, items[:found])]
    member, first, count = group_equal(values, sizes, chosen, near)
    return found, near, member, first, count


@kernel
def search_core(
    space: Workspace,
    broken: BreakSolution,
    first: Ints,
    count: Ints,
    gain: float,
    top: float,
    allowed: float,
    work_limit: int,
) -> tuple[float, float, int, Ints]:
    """Search the classes for more than `gain`; returns (gain, gap, work, number of flipped items of each class).

    `top` is an upper bound from another argument. If nothing better is found, the returned gain is the given one.
    """
    values, sizes, chosen = space.values, space.sizes, space.chosen
    price, free, bound = broken.price, broken.free, broken.bound
    class_of, copies, limits = split_classes(values, sizes, chosen, first, count, price, bound - gain - allowed)
    integers, exponent, error = to_integers(values, first, limits)
    unit, step = integers[0], sizes[first[0]]
    for c in range(first.shape[0]):
        unit, step = gcd(integers[c], unit), gcd(sizes[first[c]], step)
    m = class_of.shape[0]
    core_values, core_sizes = np.empty(m, np.int64), np.empty(m, np.int64)
    densities, costs = np.empty(m, np.float64), np.empty(m, np.float64)
    taken, length, sum_ = 0, 0, 0
    for j in range(m):
        i = first[class_of[j]]
        taken += chosen[i]
        core_values[j], core_sizes[j] = integers[class_of[j]] // unit * copies[j], sizes[i] // step * copies[j]
        densities[j] = math.ldexp(values[i], exponent) / unit / (sizes[i] // step)
        costs[j] = math.ldexp(reduced_cost(values[i], sizes[i], price), exponent) / unit * copies[j] * (1.0 - ROUNDING)
        length += sizes[i] * copies[j]
        sum_ += core_values[j]
    # Errors of the order: in the last bits of every value, in the rounding to integers, and where densities underflow.
    slack = sum_ * 8.0 * ROUNDING + 2.0 * error / unit
    slack = min(slack + math.ldexp(float(length), exponent + LAST_BIT) / unit, CORE_LIMIT)
    # All sizes of the core are multiples of `step`, so a remainder of the free capacity below one step cannot be used.
    reduced = bound - price * (free % step) * (1.0 - ROUNDING)
    reduced = min(math.ldexp(reduced, exponent) + error, CORE_LIMIT) / unit * (1.0 + ROUNDING)
    if top < bound:
        top = min(reduced, (math.ldexp(top, exponent) + error) / unit * (1.0 + ROUNDING))
    else:
        top = reduced
    incumbent = int(math.ldexp(gain, exponent)) // unit
    leeway = int(min(max(0.0, math.ldexp(allowed, exponent) - error), CORE_LIMIT)) // unit
    core = Core(
        values=core_values,
        sizes=core_sizes,
        densities=densities,
        costs=costs,
        slack=slack,
        taken=taken,
        free=free // step,
        bound=reduced,
        ceiling=int(top),
    )
    flips = np.zeros(m, np.bool_)
    best, upper, work = search(core, incumbent, leeway, work_limit, flips)
    flipped = np.zeros(first.shape[0], np.int64)
    error = math.ldexp(error, -exponent)
    if best > incumbent:
        gain = max(gain, math.ldexp(float(best * unit), -exponent) * (1.0 - ROUNDING) - error)
        for j in range(m):
            flipped[class_of[j]] += copies[j] if flips[j] else 0
    return gain, math.ldexp(float((upper - best) * unit), -exponent) + error, work, flipped


@kernel
def flipped_items(near: Ints, member: Ints, flipped: Ints) -> Ints:
    """Return the items to flip: the first `flipped[c]` items of each class c."""
    flips = np.empty(near.shape[0], np.int64)
    count = 0
    for k in range(near.shape[0]):
        if flipped[member[k]] > 0:
            flipped[member[k]] -= 1
            flips[count] = near[k]
            count += 1
    return flips[:count].copy()
