"""Certificates that an Oracle call would change nothing, so that VSOCB can skip it.

VSOCB calls the Oracle when enough has accumulated, and most of these calls return the current set M̂. Whether one
would can be decided beforehand, in O(1) per request (`oracle.skip` has the proof). At a call, store the price λ and the
slack G of M̂. After it, look at each query whose value changes: one that arrived or was paid for. While every change is
harmless, M̂ stays optimal from one change to the next, and a due call is skipped. Harmless changes do not increase G, so
the stored G is enough. When all queries that were paid for are in M̂, a call changes nothing either.

Two conditions make this exact, so that the cache decides as if every call had been made:

* Values change only when their query is seen. With γ_arrival = 0 the value of a query is T_q·Ĉ/t; the common factor 1/t
  changes no optimum and is left out. If a radius drifts with t or with other queries' costs, all values change all the
  time, and no call is skipped (`values_are_static`). A radius of zero does not drift, as while every query costs the
  same each time: then the certificate ends when a first cost differs. No call is skipped with the approximate Oracle,
  which guarantees less than an optimum, nor when queries of value 0 have to be placed.
* Ties keep M̂. An optimum need not be unique, and a call might find another one. So a call that finds nothing better
  keeps M̂ as it is. Both tolerances below are far above rounding errors and the Oracle's own tolerance (1e-13), so a
  skipped call is always one that would have kept M̂. Values of kept queries do not fall while a certificate holds, so
  relative tolerances only grow.
"""

from __future__ import annotations

from typing import NamedTuple

from knapcache.estimate.statistics import relative_value, values_are_static
from knapcache.kernel import Records, kernel
from knapcache.oracle.exact import FrozenItems
from knapcache.oracle.problem import Flags, Floats, Ints
from knapcache.oracle.skip import harmless, slack
from knapcache.oracle.sums import accurate_sum

CERTIFICATE_HEAD = [
    ("skip", "?"),  # skip calls that provably change nothing
    ("calls_skipped", "i8"),
    ("certified", "?"),  # the last call found or kept M̂, and all changes since were harmless
    ("values_known", "?"),  # last_value is the value of every query now
    ("price", "f8"),  # λ and G of that call
    ("slack", "f8"),
]
CERTIFICATE_ROW = [
    ("last_value", "f8"),  # value after the query's last change, if values are static; 0 if it was not paid for
]

# A call keeps M̂ if nothing is better by more than this (relative). It certifies M̂ if the gap is at most half of it.
KEEP_TOLERANCE = 1e-12


class Candidates(NamedTuple):
    """The queries of one Oracle call, one array element each."""

    ids: Ints
    values: Floats
    sizes: Ints
    previous: Flags
    """In M̂_{t−1}."""
    chosen: Flags
    """In M̂_t."""


@kernel
def certify(
    head: Records,
    queries: Candidates,
    frozen: FrozenItems,
    value: float,
    upper_bound: float,
    price: float,
    exact: bool,
) -> None:
    """After a call that found `value`: keep M̂_{t−1} if it is as good, and store the certificate of the result.

    `frozen` are the totals of the other queries, which are on their side of the price and stay there.
    """
    h = head[0]
    size = frozen.size
    for k in range(len(queries.ids)):
        size += queries.sizes[k] if queries.previous[k] else 0
    best = frozen.kept + accurate_sum(queries.values, queries.previous, True)[0]
    if exact and size <= h.capacity and best >= value * (1.0 - KEEP_TOLERANCE):
        queries.chosen[:] = queries.previous
    else:
        best = value
    h.certified = exact and h.values_known and best >= upper_bound * (1.0 - 0.5 * KEEP_TOLERANCE)
    if h.certified:
        h.price = price
        h.slack = slack(queries.values, queries.sizes, h.capacity - frozen.size, queries.chosen, price)


@kernel
def record_values(head: Records, rows: Records, queries: Candidates) -> None:
    """At a call on all queries: store their values, if these are static."""
    head[0].values_known = values_are_static(head)
    if head[0].values_known:
        for k in range(len(queries.ids)):
            rows[queries.ids[k]].last_value = queries.values[k]


@kernel
def update_certificate(head: Records, rows: Records, i: int) -> None:
    """End the certificate if the new value of i may change the optimum."""
    h, q = head[0], rows[i]
    if not h.values_known or q.misses == 0:
        return
    h.values_known = values_are_static(head)
    value = relative_value(head, rows, i)
    h.certified = (
        h.certified and h.values_known and harmless(q.recommended, q.last_value, value, q.entry_size, h.price, h.slack)
    )
    q.last_value = value
