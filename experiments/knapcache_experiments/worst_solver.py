"""VSOCB with the worst approximate Oracle that Theorem 2 allows. For the `gaps` experiment only.

Theorem 2 holds for every solver whose set leaves out at most 1 + β times the value that the best set leaves out. The
approximate Oracle of this project nearly always returns the best set, which tests little. Here the Oracle lists all
valid sets of the queries seen so far and returns the worst one within 1 + β, by estimated value.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence, count_arrival, count_miss, values_of
from knapcache.kernel import Records, kernel
from knapcache.policy.base import Policy, insert, remove
from knapcache.policy.vsocb.policy import VSOCB_HEAD, VSOCB_ROW, oracle_is_due, record_size
from knapcache.policy.vsocb.recommendation import add_recommendation
from knapcache_experiments.valid_sets import MAX_ENUMERATED

ROUNDING = 1e-12
"""Relative error of a sum of values."""


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    count_arrival(head, rows, i)
    return bool(rows[i].resident)


@kernel
def settle(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    """Decide as VSOCB does (policy/vsocb/policy.py, `admit`), with another Oracle."""
    q = rows[i]
    count_miss(head, rows, i, cost)
    record_size(head, rows, i, size)
    if oracle_is_due(head, rows, i):
        q.misses_at_call = q.misses
        head[0].last_call = head[0].t
        recommend_worst(head, rows)
        for j in range(len(rows) - 1):
            if rows[j].resident and not rows[j].recommended:
                remove(head, rows, j)
        if q.recommended:
            insert(head, rows, i, size)
    elif q.recommended or size <= head[0].capacity - head[0].recommended_size:
        add_recommendation(head, rows, i)
        insert(head, rows, i, size)


@kernel
def recommend_worst(head: Records, rows: Records) -> None:
    """Set M̂ to the valid set that leaves out the most, among those within 1 + β of the least."""
    h = head[0]
    h.oracle_calls += 1
    ids, sizes = np.empty(h.seen, np.int64), np.empty(h.seen, np.int64)
    n = 0
    for i in range(len(rows) - 1):
        if rows[i].misses > 0:
            ids[n], sizes[n] = i, rows[i].entry_size
            n += 1
    order = np.argsort(sizes, kind="mergesort")
    ids, sizes = ids[order], sizes[order]
    values = values_of(head, rows, ids, True)
    chosen = worst_within(values, sizes, h.capacity, h.beta)
    h.recommended_size = 0
    for k in range(n):
        rows[ids[k]].recommended = (chosen >> k) & 1 == 1
        if rows[ids[k]].recommended:
            h.recommended_size += sizes[k]


@kernel
def worst_within(values: np.ndarray, sizes: np.ndarray, capacity: int, beta: float) -> int:
    """Return the worst valid set within 1 + β, as a bit mask. Sizes are in increasing order."""
    n = len(sizes)
    used, held = np.zeros(1 << n, np.int64), np.zeros(1 << n, np.float64)
    is_valid = np.zeros(1 << n, np.bool_)
    best = 0.0
    for mask in range(1 << n):
        smallest_out = 0  # sizes increase, so the smallest query left out is the first one
        while (mask >> smallest_out) & 1:
            smallest_out += 1
        if mask:
            top = n - 1
            while not (mask >> top) & 1:
                top -= 1
            used[mask] = used[mask - (1 << top)] + sizes[top]
            held[mask] = held[mask - (1 << top)] + values[top]
        fits = used[mask] <= capacity
        is_valid[mask] = fits and (smallest_out == n or used[mask] + sizes[smallest_out] > capacity)
        if is_valid[mask]:
            best = max(best, held[mask])
    everything = held[(1 << n) - 1]
    limit = (1.0 + beta) * (everything - best) + ROUNDING * everything
    worst, least = 0, np.inf
    for mask in range(1 << n):
        if is_valid[mask] and everything - held[mask] <= limit and held[mask] < least:
            worst, least = mask, held[mask]
    return worst


class WorstSolverVSOCB(Policy):
    """VSOCB whose Oracle is as bad as a β-approximation may be."""

    head_fields: ClassVar = VSOCB_HEAD
    row_fields: ClassVar = VSOCB_ROW
    arrive_kernel = arrive
    settle_kernel = settle
    release_kernel = remove

    def __init__(self, capacity: int, ids: int, *, alpha: float, beta: float, confidence: Confidence) -> None:
        super().__init__(capacity, ids)
        if ids > MAX_ENUMERATED:
            raise InvalidInput(f"{ids} queries are too many to enumerate; at most {MAX_ENUMERATED} are allowed")
        if not 0.0 < alpha < math.inf:
            raise InvalidInput(f"alpha must be above 0 and finite, not {alpha}")
        if not 0.0 <= beta < math.inf:
            raise InvalidInput(f"beta must not be negative and must be finite, not {beta}")
        self.head["alpha"], self.head["beta"] = alpha, beta
        confidence.write(self.head)
