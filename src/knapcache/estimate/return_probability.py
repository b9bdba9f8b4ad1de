"""Will a query that was asked for once be asked for again? What the size of its answer says about it.

Most queries never return, and which do is not independent of their size: the last piece of a conversation is short and
unique, boilerplate has one length, small files are shared. So queries are counted by the size of their answer, a class
a power of two: those seen, and those of them that came back. One that has been asked for once is valued by

    promise(b) = (returned(b) + κ·r) / (seen(b) + κ) / again

r is the share of all that came back; `again` the share that came back once more, of those that came back: what a query
with two requests may hope for, against which one with a single request is measured. κ of average luck are added to
every class, so that a promise needs evidence. Counts fade, as traffic changes.

Rejected: cells for the second, third and later requests as well. Queries that have come back are told apart well
enough by how often they did, and the finer table cost more than this one in as many cases as less.
"""

from __future__ import annotations

import math

from knapcache.kernel import Records, inlined

CLASSES = 64
PRIOR = 20.0
WINDOW = 20_000.0
"""Queries after which one that was seen counts 1/e."""
RESCALE_ABOVE = 1e100

RETURN_HEAD = [
    ("seen", f"({CLASSES},)f8"),
    ("returned", f"({CLASSES},)f8"),
    ("seen_all", "f8"),
    ("returned_all", "f8"),
    ("returned_twice", "f8"),
    ("query_weight", "f8"),  # what a query counts now: it grows, instead of old ones fading
]
RETURN_ROW = [
    ("requests", "i4"),
    ("size_class", "i4"),
]


@inlined
def count_return(head: Records, rows: Records, i: int) -> None:
    """A request for i: perhaps its first return, or its second."""
    h, q = head[0], rows[i]
    q.requests = min(q.requests + 1, 4)  # more than three are as good as four
    if q.misses > 0 and q.requests == 2:
        h.returned[q.size_class] += h.query_weight
        h.returned_all += h.query_weight
    elif q.misses > 0 and q.requests == 3:
        h.returned_twice += h.query_weight


@inlined
def count_seen(head: Records, rows: Records, i: int, size: int) -> None:
    """The answer of i takes `room`; called before its cost is counted."""
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
    """promise(b) of a query that has been asked for once; 1 for all others, and while nothing has come back."""
    h, q = head[0], rows[i]
    if q.requests != 1 or h.returned_all <= 0.0:
        return 1.0
    r = h.returned_all / h.seen_all
    again = max(r, h.returned_twice / h.returned_all)
    prior = PRIOR * h.query_weight
    return (h.returned[q.size_class] + prior * r) / (h.seen[q.size_class] + prior) / again  # type: ignore[no-any-return]
