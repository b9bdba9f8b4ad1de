"""What the next miss of a query will cost, when few misses were seen.

Costs scatter: of two calls with the same prompt one may take twice as long. A mean over one or two misses is mostly
that scatter, and ranking by it keeps the lucky and evicts the unlucky. So a query's mean is drawn towards what an
answer of its size costs on average, as far as experience says that this is the better guess (empirical Bayes):

    Ĉ(q) = (paid + κ · typical(S)) / (misses + κ)          typical(S) = a + b·S, least squares over all misses
    κ    = scatter within queries / scatter of queries about typical(S)            both relative to the cost

Where every miss of a query costs the same, κ is 0 and the mean stands; where queries differ by nothing but size, κ is
large and their sizes say it all.
"""

from __future__ import annotations

from knapcache.kernel import Records, kernel

COSTS_HEAD = [
    ("cost_count", "f8"),  # sums for the least squares, over all misses
    ("sum_s", "f8"),
    ("sum_c", "f8"),
    ("sum_ss", "f8"),
    ("sum_sc", "f8"),
    ("slope", "f8"),  # b
    ("offset", "f8"),  # a
    ("repeat_squares", "f8"),  # squared relative deviations from the mean of the query
    ("repeats", "f8"),  # their degrees of freedom: misses beyond the first of a query
    ("first_squares", "f8"),  # squared relative deviations of first misses from typical(S)
    ("firsts", "f8"),
    ("shrinkage", "f8"),  # κ
]
COSTS_ROW = [
    ("misses", "i8"),
    ("paid", "f8"),
]
MAX_SHRINKAGE = 100.0
MAX_COST = 1e150
"""Beyond it squares and sums of costs are no numbers any more; no price comes near."""
MAX_DEVIATION = 1e3
"""Deviations are counted as at most so many times the cost: one absurd value must not decide for ever."""


@kernel
def relative(cost: float, guess: float) -> float:
    """How far a cost lies from a guess above 0, in guesses."""
    return min(MAX_DEVIATION, max(-MAX_DEVIATION, cost / guess - 1.0))


@kernel
def typical_cost(head: Records, size: int) -> float:
    """What an answer of this size costs: a + b·S, never below 0."""
    return max(0.0, head[0].offset + head[0].slope * size)  # type: ignore[no-any-return]


@kernel
def cost_of(head: Records, rows: Records, i: int) -> float:
    """Ĉ(q)."""
    q = rows[i]
    shrinkage = head[0].shrinkage
    if shrinkage == 0.0:
        return q.paid / q.misses  # type: ignore[no-any-return]
    return (q.paid + shrinkage * typical_cost(head, q.entry_size)) / (q.misses + shrinkage)  # type: ignore[no-any-return]


@kernel
def count_cost(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    """A miss of i cost `cost`, and its answer takes `room`."""
    h, q = head[0], rows[i]
    if q.misses > 0:
        mean = q.paid / q.misses
        if mean > 0.0:
            # (cost − mean)·(cost − mean with it), as sums of squares grow (Welford), relative to the mean before.
            h.repeat_squares += relative(cost, mean) ** 2 * q.misses / (q.misses + 1)
            h.repeats += 1.0
    else:
        guess = typical_cost(head, size)
        if guess > 0.0:
            h.first_squares += relative(cost, guess) ** 2
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
