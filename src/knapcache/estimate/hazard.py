"""The rate at which queries return, by their history and their age: hazards and the Gittins index.

The *age* of a query is the number of requests since its last one. Its *hazard* at an age is the probability that the
next request is for it, given that it did not return before. A query of a finished session and a rare one may have equal
counts and equal ages; but the gaps between the requests of the first were short. So a query is classified by its
history:

    one request       by the size of its answer, one class per power of two
    more requests     by (count, gap), one class per power of two of each

count is the discounted number of requests at the half-life COUNT_HALF_LIFE. gap is the geometric mean of the gaps
between its requests; the last eight of them have most of the weight. Two totals are kept for every class and
age, with two age buckets per power of two:

    returns     requests for queries of that class at that age
    exposure    number of requests during which queries of that class were at that age, summed over these queries

The exposure of a query begins at age 0 and ends at some age. So the ends are counted, which takes the same time for
all ages, and exposures are computed from them. Starts are subtracted, so an exposure may be a rounding error below 0;
it then counts as 0.

The hazard is returns / exposure. A class with few returns falls back to all classes of equal count, at an equal age
*relative to the gap*, and these to all counts: sessions of any speed end after some multiple of their gap. Without any
returns the hazard falls with 1/age. The totals are halved after every MEMORY returns, because traffic changes.

What an answer is worth depends on how long it would have to be kept. The best rate of returns that an answer at age a
can achieve, over all times to give it up, is

    index(a) = max over s > a of  P(it returns before age s) / E[requests until it returns or reaches age s]

This is the Gittins index. It is high in a session, falls when the session has paused for longer than sessions do, and
is constant for a query that returns at random. In a cycle it rises towards the end of the cycle. It is computed for all
ages of a class in one pass from the oldest: a bucket is merged with the block of older ones behind it while that raises
its rate. It is computed again when about a sixteenth of the returns of the class are new.

The totals are counted for queries in the sample of the tournament only (tournament.py), from a request to the next one,
or until no shadow holds the query. So ages beyond the time for which any shadow keeps an answer are never needed.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from knapcache.kernel import Records, inlined, kernel

Floats = npt.NDArray[np.float64]
COUNT_HALF_LIFE = 2
"""Index of the half-life of counts: 65,536 requests."""
COUNT_CLASSES, GAP_CLASSES = 12, 20
ALL_COUNTS = COUNT_CLASSES
"""Row of the totals over all counts above 1."""
AGES = 40
CLASS_COUNT = COUNT_CLASSES * GAP_CLASSES
AGE_EDGE = (0.0, 1.0, 2.0, 3.0, *(float(math.ceil(2.0 ** (b / 2))) for b in range(4, AGES)), 2.0**60)
"""The least age of every bucket, and the end of the last. Ages are whole numbers, so edges are, too."""
RELATIVE_AGES = 2 * AGES
RELATIVE_EDGE = (0.0, *(2.0 ** ((r - AGES) / 2) for r in range(1, RELATIVE_AGES)), 2.0**60)
"""The same for ages in gaps."""
RELATIVE_BUCKET = (-2, 0, 2, 3, *range(4, AGES))
"""floor(2·log2 of the age) of every bucket. Age 0 counts as 1/2."""
PRIOR_RETURNS = 2.0
"""Weight of each fallback, in returns."""
FIRST_RETURN = (0.1, 10.0)
"""Hazard of queries with one request before anything is known: 0.1 / (age + 10)."""
LATER_RETURN = (0.1, 0.2)
"""Returns and exposure in gaps at relative age 0 before anything is known, for queries with more requests."""
MEMORY = 50_000.0
UPDATES, SHARE_OF_RETURNS = 16.0, 1 / 16
"""An index is computed again after this number of updates and this share of the returns of its class."""

HAZARD_HEAD = [
    ("returns", f"({CLASS_COUNT},{AGES})f8"),
    ("ends", f"({CLASS_COUNT},{AGES})f8"),  # of exposures in the bucket, minus their starts
    ("end_ages", f"({CLASS_COUNT},{AGES})f8"),  # sum of their ages above the edge
    ("returns_by_count", f"({COUNT_CLASSES + 1},{RELATIVE_AGES})f8"),  # the same at relative ages
    ("ends_by_count", f"({COUNT_CLASSES + 1},{RELATIVE_AGES})f8"),
    ("end_ages_by_count", f"({COUNT_CLASSES + 1},{RELATIVE_AGES})f8"),
    ("index", f"({CLASS_COUNT},{AGES})f8"),
    ("index_updates", f"({CLASS_COUNT},)f8"),  # since the index was computed,
    ("index_due", f"({CLASS_COUNT},)f8"),  # and their number at which it is computed again; 0: never computed
    ("returns_counted", "f8"),  # since the totals were halved
]
HAZARD_ROW = [("gap", "f8")]  # mean of log2


@inlined
def count_gap(rows: Records, i: int, now: int) -> None:
    """Count the gap that a request for i ends. Must be called before the request is counted anywhere else."""
    q = rows[i]
    if q.requests > 0:
        q.gap += (math.log2(now - q.last) - q.gap) / q.requests


@inlined
def count_of(rows: Records, i: int) -> float:
    """Return the discounted number of requests for i, in 64 bits: compiled, log2 of a 32-bit float has 32 bits."""
    return np.float64(rows[i].recent[COUNT_HALF_LIFE])


@inlined
def class_of(rows: Records, i: int) -> int:
    """Return the class of i, whose last request was counted."""
    q = rows[i]
    if q.requests <= 1:
        return min(int(q.size_class), GAP_CLASSES - 1)
    count = min(max(int(math.log2(count_of(rows, i)) + 0.5), 1), COUNT_CLASSES - 1)
    return count * GAP_CLASSES + min(int(q.gap), GAP_CLASSES - 1)


@inlined
def age_bucket(age: int) -> int:
    """Return the bucket of an age: floor(2·log2 age) from 4 on."""
    if age < 4:
        return int(age)
    mantissa, exponent = math.frexp(age)  # age = mantissa · 2^exponent with 1/2 ≤ mantissa < 1; faster than log2
    return min(2 * exponent - 2 + int(mantissa * mantissa >= 0.5), AGES - 1)


@inlined
def expose(head: Records, c: int, start: int, end: int) -> None:
    """Count that a query of class c passed the ages from start to end without a return."""
    add_end(head, c, end, 1.0)
    if start > 0:
        add_end(head, c, start, -1.0)
    head[0].index_updates[c] += 1.0


@kernel
def add_end(head: Records, c: int, age: int, weight: float) -> None:
    """Count that an exposure of class c, which began at age 0, ended at an age of at least 1."""
    h = head[0]
    count, gap = c // GAP_CLASSES, c % GAP_CLASSES if c >= GAP_CLASSES else 0
    b = age_bucket(age)
    h.ends[c, b] += weight
    h.end_ages[c, b] += weight * (age - AGE_EDGE[b])
    r = RELATIVE_BUCKET[b] + AGES - 2 * gap
    rest = weight * (math.ldexp(age, int(-gap)) - RELATIVE_EDGE[r])
    h.ends_by_count[count, r] += weight
    h.end_ages_by_count[count, r] += rest
    if count > 0:
        h.ends_by_count[ALL_COUNTS, r] += weight
        h.end_ages_by_count[ALL_COUNTS, r] += rest


@kernel
def count_return_at(head: Records, c: int, age: int) -> None:
    """Count a return of a query of class c by the last request before it reached an age, at least 1."""
    h = head[0]
    count, gap = c // GAP_CLASSES, c % GAP_CLASSES if c >= GAP_CLASSES else 0
    b = age_bucket(age - 1)
    r = RELATIVE_BUCKET[b] + AGES - 2 * gap
    h.returns[c, b] += 1.0
    h.returns_by_count[count, r] += 1.0
    if count > 0:
        h.returns_by_count[ALL_COUNTS, r] += 1.0
    h.returns_counted += 1.0
    if h.returns_counted >= MEMORY:
        halve_totals(head)


@kernel
def halve_totals(head: Records) -> None:
    """Halve all totals."""
    h = head[0]
    h.returns_counted = 0.0
    for c in range(CLASS_COUNT):
        for b in range(AGES):
            h.returns[c, b] *= 0.5
            h.ends[c, b] *= 0.5
            h.end_ages[c, b] *= 0.5
    for count in range(COUNT_CLASSES + 1):
        for r in range(RELATIVE_AGES):
            h.returns_by_count[count, r] *= 0.5
            h.ends_by_count[count, r] *= 0.5
            h.end_ages_by_count[count, r] *= 0.5


@kernel
def fallback_hazards(head: Records, count: int, hazards: Floats) -> None:
    """Compute the hazards of all classes of equal count at relative ages, in returns per gap."""
    h = head[0]
    later = later_all = 0.0  # exposures that end in later buckets
    for r in range(RELATIVE_AGES - 1, -1, -1):
        edge = RELATIVE_EDGE[r]
        width = RELATIVE_EDGE[r + 1] - edge
        if count == 0:
            prior = FIRST_RETURN[0] / (edge + FIRST_RETURN[1])
        else:
            exposure = max(0.0, later_all * width + h.end_ages_by_count[ALL_COUNTS, r])
            prior = (h.returns_by_count[ALL_COUNTS, r] + LATER_RETURN[0]) / (exposure + LATER_RETURN[1] * (1.0 + edge))
            later_all += h.ends_by_count[ALL_COUNTS, r]
        exposure = max(0.0, later * width + h.end_ages_by_count[count, r])
        later += h.ends_by_count[count, r]
        hazards[r] = (h.returns_by_count[count, r] + PRIOR_RETURNS) / (exposure + PRIOR_RETURNS / prior)


@kernel
def hazards_of(head: Records, c: int, hazards: Floats) -> float:
    """Compute the hazards of class c at all ages. Return its number of returns."""
    h = head[0]
    count, gap = c // GAP_CLASSES, c % GAP_CLASSES if c >= GAP_CLASSES else 0
    fallback = np.empty(RELATIVE_AGES)
    fallback_hazards(head, count, fallback)
    unit = math.ldexp(1.0, int(-gap))
    total = later = 0.0
    for b in range(AGES - 1, -1, -1):
        exposure = max(0.0, later * (AGE_EDGE[b + 1] - AGE_EDGE[b]) + h.end_ages[c, b])
        later += h.ends[c, b]
        prior = fallback[RELATIVE_BUCKET[b] + AGES - 2 * gap] * unit
        hazards[b] = (h.returns[c, b] + PRIOR_RETURNS) / (exposure + PRIOR_RETURNS / prior)
        total += h.returns[c, b]
    return total


@kernel
def compute_index(head: Records, c: int) -> None:
    """Compute the index of class c at all ages."""
    h = head[0]
    hazards = np.empty(AGES)
    total = hazards_of(head, c, hazards)
    # A stack of blocks of buckets, the youngest on top. For a query that enters a block: the probability that it
    # returns there, the expected number of requests that it stays, and the probability that it leaves without a return.
    block_returns, block_time, block_leaves = np.empty(AGES), np.empty(AGES), np.empty(AGES)
    blocks = 0
    for b in range(AGES - 1, -1, -1):
        returns = -math.expm1(-hazards[b] * (AGE_EDGE[b + 1] - AGE_EDGE[b]))
        leaves = 1.0 - returns
        time = returns / hazards[b]
        while blocks > 0 and block_returns[blocks - 1] * time > returns * block_time[blocks - 1]:
            blocks -= 1
            returns += leaves * block_returns[blocks]
            time += leaves * block_time[blocks]
            leaves *= block_leaves[blocks]
        block_returns[blocks], block_time[blocks], block_leaves[blocks] = returns, time, leaves
        blocks += 1
        h.index[c, b] = returns / time
    h.index_updates[c] = 0.0
    h.index_due[c] = UPDATES + SHARE_OF_RETURNS * total


@inlined
def index_at(head: Records, c: int, b: int) -> float:
    """Return the index of class c in age bucket b."""
    h = head[0]
    if h.index_updates[c] >= h.index_due[c]:
        compute_index(head, c)
    return h.index[c, b]  # type: ignore[no-any-return]


@inlined
def return_rate_of(head: Records, rows: Records, i: int, now: int) -> float:
    """Return the index of i at t = now, interpolated between two classes of count."""
    q = rows[i]
    b = age_bucket(now - q.last)
    if q.requests <= 1:
        return index_at(head, min(int(q.size_class), GAP_CLASSES - 1), b)
    gap = min(int(q.gap), GAP_CLASSES - 1)
    x = min(max(math.log2(count_of(rows, i)), 1.0), COUNT_CLASSES - 1.0)
    count = min(int(x), COUNT_CLASSES - 2)
    low, high = index_at(head, count * GAP_CLASSES + gap, b), index_at(head, (count + 1) * GAP_CLASSES + gap, b)
    return low + (high - low) * (x - count)
