"""The expected cost of a query's next miss, from few observed misses.

Costs scatter: of two calls with the same prompt one may take twice as long. A mean over one or two misses is mostly
scatter, and ranking by it keeps queries that were expensive by chance. So a query's mean is shrunk towards the average
cost of answers of its size, by an amount learned from all misses (empirical Bayes):

    Ĉ(q) = (paid + κ · typical(S)) / (misses + κ)          typical(S) = a + b·S, least squares over all misses
    κ    = variance within queries / variance of queries around typical(S)         both relative to the cost

If every miss of a query costs the same, κ is 0 and Ĉ is the mean. If queries differ only by size, κ is large and Ĉ
depends on size alone.
"""

from __future__ import annotations

from knapcache.kernel import Records, kernel

COSTS_HEAD = [
    ("cost_count", "f8"),  # number of misses; sums for the least squares follow
    ("sum_s", "f8"),
    ("sum_c", "f8"),
    ("sum_ss", "f8"),
    ("sum_sc", "f8"),
    ("slope", "f8"),  # b
    ("offset", "f8"),  # a
    ("repeat_squares", "f8"),  # squared relative deviations from the mean of the query (variance within queries)
    ("repeats", "f8"),  # their degrees of freedom: misses after the first of a query
    ("first_squares", "f8"),  # squared relative deviations of first misses from typical(S) (variance of queries)
    ("firsts", "f8"),  # number of first misses
    ("shrinkage", "f8"),  # κ
]
COSTS_ROW = [
    ("paid", "f8"),
    ("misses", "i4"),
]
MAX_SHRINKAGE = 100.0
MAX_COST = 1e150
"""Larger costs are counted as this one: their squares and sums would overflow."""
MAX_DEVIATION = 1e3
"""Larger relative deviations are counted as this one: a single outlier must not dominate the sums forever."""


@kernel
def relative_deviation(cost: float, expected: float) -> float:
    """Return the deviation of a cost from a positive estimate, relative to the estimate."""
    return min(MAX_DEVIATION, max(-MAX_DEVIATION, cost / expected - 1.0))


@kernel
def typical_cost(head: Records, size: int) -> float:
    """Return typical(S) = a + b·S, at least 0."""
    return max(0.0, head[0].offset + head[0].slope * size)  # type: ignore[no-any-return]


@kernel
def cost_of(head: Records, rows: Records, i: int) -> float:
    """Return Ĉ(q)."""
    q = rows[i]
    shrinkage = head[0].shrinkage
    if shrinkage == 0.0:
        return q.paid / q.misses  # type: ignore[no-any-return]
    return (q.paid + shrinkage * typical_cost(head, q.entry_size)) / (q.misses + shrinkage)  # type: ignore[no-any-return]


@kernel
def count_cost(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    """Count a miss of i with its cost and the size of its answer."""
    h, q = head[0], rows[i]
    if q.misses > 0:
        mean = q.paid / q.misses
        if mean > 0.0:
            # Welford's update of a sum of squares, relative to the mean so far.
            h.repeat_squares += relative_deviation(cost, mean) ** 2 * q.misses / (q.misses + 1)
            h.repeats += 1.0
    else:
        expected = typical_cost(head, size)
        if expected > 0.0:
            h.first_squares += relative_deviation(cost, expected) ** 2
            h.firsts += 1.0
    cost = min(cost, MAX_COST)
    q.paid += cost
    q.misses += 1
    q.entry_size = size
    h.cost_count += 1.0
    h.sum_s += size
    h.sum_c += cost
    h.sum_ss += float(size) * size
    h.sum_sc += size * cost
    spread = h.sum_ss - h.sum_s * h.sum_s / h.cost_count
    h.slope = max(0.0, (h.sum_sc - h.sum_s * h.sum_c / h.cost_count) / spread) if spread > 1e-9 * h.sum_ss else 0.0
    h.offset = (h.sum_c - h.slope * h.sum_s) / h.cost_count
    if h.repeats >= 2.0 and h.firsts >= 2.0:
        scatter = h.repeat_squares / h.repeats
        between = h.first_squares / h.firsts - scatter
        h.shrinkage = min(MAX_SHRINKAGE, scatter / between) if between > scatter / MAX_SHRINKAGE else MAX_SHRINKAGE
        if scatter < 1e-12:
            h.shrinkage = 0.0
