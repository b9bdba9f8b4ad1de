"""The probability that a query requested once is requested again, by the size of its answer.

Most queries never return, and returning depends on size: the last turn of a conversation is short and unique,
boilerplate has one length, small files are shared. So queries are counted by the size of their answers, one class per
power of two: those seen, and those of them that returned. A query that has been requested once is weighted by

    return_probability(b) = (returned(b) + κ·r) / (seen(b) + κ) / again

r is the share of all queries that returned. `again` is the share of those that returned a second time: the reference
is a query with two requests. κ is the weight of the prior r in every class. Counts decay, because traffic changes.

Rejected: classes for the second, third and later requests as well. The number of requests distinguishes returning
queries well enough, and the finer table was worse in as many cases as it was better.
"""

from __future__ import annotations

import math

from knapcache.kernel import Records, inlined

CLASSES = 64
PRIOR = 20.0
WINDOW = 20_000.0
"""Queries after which a count has decayed to 1/e."""
RESCALE_ABOVE = 1e100
MAX_REQUESTS = 8
"""Larger numbers of requests are not distinguished."""

RETURN_HEAD = [
    ("seen", f"({CLASSES},)f8"),
    ("returned", f"({CLASSES},)f8"),
    ("seen_all", "f8"),
    ("returned_all", "f8"),
    ("returned_twice", "f8"),
    ("query_weight", "f8"),  # weight of a query now: it grows, instead of all old counts decaying
]
RETURN_ROW = [
    ("requests", "i1"),  # at most MAX_REQUESTS
    ("size_class", "i1"),  # below CLASSES
]


@inlined
def count_return(head: Records, rows: Records, i: int) -> None:
    """Count a request for i, if it is the first or second return of i."""
    h, q = head[0], rows[i]
    q.requests = min(q.requests + 1, MAX_REQUESTS)
    if q.misses > 0 and q.requests == 2:
        h.returned[q.size_class] += h.query_weight
        h.returned_all += h.query_weight
    elif q.misses > 0 and q.requests == 3:
        h.returned_twice += h.query_weight


@inlined
def count_seen(head: Records, rows: Records, i: int, size: int) -> None:
    """Count i in the class of its size, at its first miss. Must be called before `count_cost`."""
    h, q = head[0], rows[i]
    q.size_class = int(math.log2(size))
    if q.misses > 0:
        return
    h.query_weight = max(1.0, h.query_weight) * (1.0 + 1.0 / WINDOW)
    if h.query_weight > RESCALE_ABOVE:
        for b in range(CLASSES):
            h.seen[b] /= h.query_weight
            h.returned[b] /= h.query_weight
        h.seen_all /= h.query_weight
        h.returned_all /= h.query_weight
        h.returned_twice /= h.query_weight
        h.query_weight = 1.0
    h.seen[q.size_class] += h.query_weight
    h.seen_all += h.query_weight


@inlined
def return_probability_of(head: Records, rows: Records, i: int) -> float:
    """Return return_probability(b) of a query requested once; 1 for others, and while no query has returned."""
    h, q = head[0], rows[i]
    if q.requests != 1 or h.returned_all <= 0.0:
        return 1.0
    r = h.returned_all / h.seen_all
    again = max(r, h.returned_twice / h.returned_all)
    prior = PRIOR * h.query_weight
    return (h.returned[q.size_class] + prior * r) / (h.seen[q.size_class] + prior) / again  # type: ignore[no-any-return]
