"""VSOCB calls the Oracle when enough has accumulated, and most of these calls find the set M̂ that stands already.

Whether one would can be told beforehand, in O(1) a request (`oracle.skip` has the argument). At a call, note the price
λ, the slack G of M̂ and every value. From then on look at each query whose value changes: one that came, or was paid
for. While all these changes are harmless, M̂ is still optimal, and a call that is due need not be made.

Two things make this exact, so that the cache decides as if every call had been made:

* Values must stand still unless their query is seen. With γ_arrival = 0 the value of a query is T_q·Ĉ/t; the factor
  1/t, common to all, moves no optimum and is left out. Where a radius drifts with t or with the costs of others
  (`values_stand_still`), all values change all the time, and every call that is due is made. A radius of nothing, as
  while every query costs the same each time, does not drift: then the certificate ends when a first cost differs. Every
  call is made with the approximate Oracle, which promises less than an optimum, and when there are queries of no value
  to place.
* Ties. An optimum need not be the only one, and a call might find another. So a call that finds nothing better keeps M̂
  as it is: an answer is never thrown out for one of the same worth. Both tolerances below are far above what rounding
  and the Oracle's own tolerance (1e-13) come to, so that a skipped call is always one that would have kept M̂. Values of
  kept queries do not fall while a certificate lasts, so relative tolerances only grow.
"""

from __future__ import annotations

import numpy as np

from knapcache.estimate.statistics import relative_value, values_are_static
from knapcache.kernel import Records, kernel
from knapcache.oracle.skip import harmless, slack
from knapcache.oracle.sums import total

CERTIFICATE_HEAD = [
    ("skip", "?"),  # calls that provably change nothing are not made
    ("calls_skipped", "i8"),
    ("certified", "?"),  # M̂ is what the last call found or kept, and all changes since were harmless
    ("price", "f8"),  # λ and G of that call
    ("slack", "f8"),
]
CERTIFICATE_ROW = [
    ("certified_value", "f8"),  # value at the last call that certified M̂; 0 if the query was not seen then
]

# A call keeps M̂ if nothing is better by more than this, relative; it certifies M̂ if it is sure of half of that.
KEEP_TOLERANCE = 1e-12


@kernel
def certify(
    head: Records, rows: Records, ids: np.ndarray, values: np.ndarray, sizes: np.ndarray, value: float,
    upper_bound: float, price: float, exact: bool, old: np.ndarray, chosen: np.ndarray,
) -> None:  # fmt: skip
    """After a call: keep M̂, the `old` one, if nothing better was found, and note what it takes to skip the next."""
    h = head[0]
    size = 0
    for k in range(len(ids)):
        size += sizes[k] if old[k] else 0
    worth = total(values, old, True)[0]
    if exact and size <= h.capacity and worth >= value * (1.0 - KEEP_TOLERANCE):
        chosen[:] = old
    else:
        worth = value
    h.certified = exact and values_are_static(head) and worth >= upper_bound * (1.0 - 0.5 * KEEP_TOLERANCE)
    if h.certified:
        h.price = price
        h.slack = slack(values, sizes, h.capacity, chosen, price)
        for k in range(len(ids)):
            rows[ids[k]].certified_value = values[k]


@kernel
def update_certificate(head: Records, rows: Records, i: int) -> None:
    """What is known of i has changed: does the certificate of the last call survive?"""
    h, q = head[0], rows[i]
    if h.certified and q.misses > 0:
        value = relative_value(head, rows, i)
        h.certified = values_are_static(head) and harmless(
            q.recommended, q.certified_value, value, q.entry_size, h.price, h.slack
        )
