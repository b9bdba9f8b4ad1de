"""Queries near the price: the few that an Oracle call has to look at.

M̂ depends on the queries whose density is near the price λ; all others would have to change a lot to matter. So they are
frozen, as in `oracle.warm`. A call solves the near queries alone, in the capacity that the queries frozen in leave,
and starts its search from M̂. The result is that of a call on all queries (the proof is in `oracle.warm`), because the
margins hold for every value that a frozen query can have until it is looked at again:

* A value changes if its query arrives or is paid for. `update_side` then tests the margins again, in O(1). A query that
  fails becomes near and stays so until the next call on all queries.
* With a cost radius, every value changes all the time: w = T_q·max(c1, mean − ρ/√T_c), where ρ = γ·2σ̂·√(L1/2) depends
  on the round and on all costs. But ρ is one number for all queries, it moves slowly, and w does not rise with it. So
  margins are tested with the values at both ends of an interval around ρ. The least cost c1 must not change.

When ρ, c1, the price or the gap leaves its margin, all queries are solved and frozen again. That takes milliseconds at
10^5 queries and happens every few hundred calls. Frequencies with a radius (γ_arrival > 0) are never frozen.

    Invariant, while head.frozen: a query frozen in is in M̂, one frozen out is not, and
    for all ρ of the interval: frozen in, w − price_high·S ≥ margin; frozen out, price_low·S − w ≥ margin.

Queries of value 0 are placed by empirical value if they fit into the space that is left (E7). `least_unproven` is a
lower bound on their sizes: if even that does not fit, none does. Otherwise all queries are solved.
"""

from __future__ import annotations

import math

import numpy as np

from knapcache.estimate.bounds import cost_bound
from knapcache.estimate.statistics import NO_RADIUS, cost_floor, unit_radius, values_of
from knapcache.kernel import Records, kernel
from knapcache.oracle.exact import FrozenItems
from knapcache.oracle.groups import ROUNDING
from knapcache.oracle.warm import MIN_NEAR, choose_margins
from knapcache.policy.vsocb.certificate import KEEP_TOLERANCE, Candidates

NEAR_HEAD = [
    ("warm", "?"),  # freeze queries; otherwise every call solves all of them
    ("frozen", "?"),  # sides, margins and totals below are valid
    ("all_solved", "i8"),  # calls that solved all queries
    ("near_count", "i8"),
    ("near_work", "i8"),  # near queries of all calls since the queries were frozen
    ("price_low", "f8"),
    ("price_high", "f8"),
    ("margin", "f8"),
    ("radius_width", "f8"),  # half the width of the interval around ρ, relative
    ("radius_low", "f8"),
    ("radius_high", "f8"),
    ("frozen_floor", "f8"),  # least cost estimate when the queries were frozen
    ("frozen_size", "i8"),  # Invariant: Σ S(q) over the queries frozen in
    ("frozen_kept", "f8"),  # lower bound on their value
    ("frozen_left_out", "f8"),  # lower bound on the value of the queries frozen out
    ("least_unproven", "i8"),  # no query that can have value 0 is smaller
]
NEAR_ROW = [
    ("near_id", "i8"),  # rows[k].near_id is the k-th near query: a list stored in a column
    ("side", "i8"),  # FROZEN_OUT, FROZEN_IN, or 1 + position among the near queries
    ("frozen_value", "f8"),  # what the query contributes to frozen_kept or frozen_left_out
]
FROZEN_OUT, FROZEN_IN = 0, -1
MIN_WIDTH, MAX_WIDTH = 0.0025, 0.16
"""Least and greatest half width of the interval around ρ, relative."""
REFREEZE = 16
"""When warm calls have looked at REFREEZE·N queries, all N are solved and frozen again: changed queries are near."""
NONE_UNPROVEN = 2**62
# Values are computed here by another formula than in `values_of`; this covers the rounding errors of both.
VALUE_ROUNDING = 64 * ROUNDING


@kernel
def value_between(head: Records, rows: Records, i: int) -> tuple[float, float]:
    """Return the least and the greatest relative value of i over the interval of radii."""
    h, q = head[0], rows[i]
    low = q.arrivals * cost_bound(q.paid, q.misses, h.radius_high, 2.0, 1.0, h.frozen_floor)
    high = q.arrivals * cost_bound(q.paid, q.misses, h.radius_low, 2.0, 1.0, h.frozen_floor)
    mean = q.arrivals * (q.paid / q.misses)
    return max(0.0, low - mean * VALUE_ROUNDING) if low > 0.0 else 0.0, high + mean * VALUE_ROUNDING


@kernel
def freeze_queries(head: Records, rows: Records, queries: Candidates, price: float, open_: float, value: float) -> None:
    """After a call on all queries that has updated M̂: choose the margins and freeze all queries they allow.

    `open_` is how far the solution is below Lagrange's bound at this price.
    """
    h = head[0]
    n = len(queries.ids)
    h.frozen = h.warm and h.gamma_arrival == 0.0 and price > 0.0 and n > MIN_NEAR
    if not h.frozen:
        return
    # A kept M̂ may be worth less than the optimum, by the tolerance.
    least_margin = 2.0 * open_ + 4.0 * KEEP_TOLERANCE * value
    h.price_low, h.price_high, h.margin = choose_margins(queries.values, queries.sizes, h.capacity, price, least_margin)
    h.frozen_floor = cost_floor(head)
    radius, least = unit_radius(head), NO_RADIUS * h.frozen_floor
    # A wide interval lasts long but keeps many queries near. Balance the work of warm calls and of calls like this one.
    if h.near_work < n and not h.radius_low <= radius <= h.radius_high:
        h.radius_width *= 2.0
    elif h.near_work > 4 * n:
        h.radius_width *= 0.5
    h.radius_width = min(MAX_WIDTH, max(MIN_WIDTH, h.radius_width))
    h.near_work = 0
    h.radius_low = radius * (1.0 - h.radius_width) if radius > least else 0.0
    h.radius_high = max(least, radius * (1.0 + h.radius_width))
    h.near_count, h.frozen_size, h.least_unproven = 0, 0, NONE_UNPROVEN
    h.frozen_kept = h.frozen_left_out = 0.0
    for k in range(n):
        i = queries.ids[k]
        rows[i].side = FROZEN_IN if rows[i].recommended else FROZEN_OUT
        rows[i].frozen_value = value_between(head, rows, i)[0]
        if rows[i].recommended:
            h.frozen_size += rows[i].entry_size
            h.frozen_kept += rows[i].frozen_value
        else:
            h.frozen_left_out += rows[i].frozen_value
        update_side(head, rows, i)


@kernel
def update_side(head: Records, rows: Records, i: int) -> None:
    """Make i near if its new value or size is no longer far enough from the price."""
    h, q = head[0], rows[i]
    if not h.frozen or q.side > 0 or q.misses == 0:
        return
    low, high = value_between(head, rows, i)
    if low == 0.0:
        h.least_unproven = min(h.least_unproven, q.entry_size)
    if q.side == FROZEN_IN:
        size_cost = h.price_high * q.entry_size
        stays = low - size_cost >= h.margin + (low + size_cost) * ROUNDING
    else:
        size_cost = h.price_low * q.entry_size
        stays = size_cost - high >= h.margin + (high + size_cost) * ROUNDING
    if not stays:
        make_near(head, rows, i)


@kernel
def make_near(head: Records, rows: Records, i: int) -> None:
    """Add i to the near queries, unless it is one. Call it before the size or the recommendation of i changes."""
    h, q = head[0], rows[i]
    if not h.frozen or q.side > 0:
        return
    if q.side == FROZEN_IN:
        h.frozen_size -= q.entry_size
        h.frozen_kept -= q.frozen_value
    else:
        h.frozen_left_out -= q.frozen_value
    rows[h.near_count].near_id = i
    h.near_count += 1
    q.side = h.near_count


@kernel
def drop_query(head: Records, rows: Records, i: int) -> None:
    """Remove i from the near and from the frozen queries: its id is going to be recycled."""
    h, q = head[0], rows[i]
    if h.frozen:
        make_near(head, rows, i)
        h.near_count -= 1
        last = rows[h.near_count].near_id
        rows[q.side - 1].near_id = last
        rows[last].side = q.side
    q.side, q.frozen_value = FROZEN_OUT, 0.0


@kernel
def margins_hold(head: Records) -> bool:
    """Return whether the queries are frozen, and radius, least cost and the work since then allow a warm call."""
    h = head[0]
    if not h.frozen or h.near_work > REFREEZE * h.seen or cost_floor(head) != h.frozen_floor:
        return False
    return bool(h.radius_low <= unit_radius(head) <= h.radius_high)


@kernel
def near_candidates(head: Records, rows: Records) -> Candidates:
    n = head[0].near_count
    head[0].near_work += n
    ids, sizes, previous = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.bool_)
    for k in range(n):
        i = rows[k].near_id
        ids[k], sizes[k], previous[k] = i, rows[i].entry_size, rows[i].recommended
    values = values_of(head, rows, ids, True)
    return Candidates(ids=ids, values=values, sizes=sizes, previous=previous, chosen=np.zeros(n, np.bool_))


@kernel
def frozen_totals(head: Records) -> FrozenItems:
    """Return the totals of the frozen queries, values rounded down: thousands of additions and subtractions."""
    h = head[0]
    kept, left_out = max(0.0, h.frozen_kept), max(0.0, h.frozen_left_out)
    return FrozenItems(h.frozen_size, kept * (1.0 - 1e-9), 0.0, left_out * (1.0 - 1e-9))


@kernel
def within_margins(head: Records, queries: Candidates, value: float, price: float, open_: float) -> bool:
    """Return whether the solution of the near queries is that of all queries."""
    h = head[0]
    if not (h.price_low <= price <= h.price_high and open_ + 4.0 * KEEP_TOLERANCE * value <= h.margin):
        return False
    free = h.capacity - h.frozen_size
    for k in range(len(queries.ids)):
        free -= queries.sizes[k] if queries.chosen[k] else 0
    return bool(free < h.least_unproven)


def check_near(head: Records, rows: Records) -> str:
    """Return what is wrong with the near and the frozen queries, or an empty text."""
    h = head[0]
    if not h["frozen"]:
        return ""
    near = rows["near_id"][: int(h["near_count"])]
    into = rows["side"] == FROZEN_IN
    if (rows["side"][near] != np.arange(1, len(near) + 1)).any() or (rows["side"] > 0).sum() != len(near):
        return "positions of near queries"
    if int(rows["entry_size"][into].sum()) != int(h["frozen_size"]):
        return "size of the queries frozen in"
    if (into & ~rows["recommended"]).any() or ((rows["side"] == FROZEN_OUT) & rows["recommended"]).any():
        return "sides of frozen queries"
    kept, tiny = float(rows["frozen_value"][into].sum()), 1e-9 * float(rows["frozen_value"].sum())
    return "" if math.isclose(kept, float(h["frozen_kept"]), rel_tol=1e-9, abs_tol=tiny) else "value frozen in"
