"""Algorithm 1 exactly as the paper prints it, with each repair as a switch. For the `errata` experiment only.

It is not among the policies because it violates their contract: it exceeds its capacity. Line numbers are the paper's.
knapcache/policy/vsocb/policy.py explains the repairs and has all of them without switches.

The state has the fields of `vsocb`, because kernels are compiled for the types of the state: with fields of its own,
the Oracle would be compiled again, in 40 seconds. Three fields have another meaning here:

    hand        the repairs that are switched on: the sum of their bits
    forgotten   Oracle calls that emptied a cache that was not empty
    seen_size   rounds that ended over capacity
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence, count_arrival, count_miss
from knapcache.kernel import Records, kernel
from knapcache.policy.base import Policy, insert, remove
from knapcache.policy.vsocb.policy import VSOCB_HEAD, VSOCB_ROW
from knapcache.policy.vsocb.recommendation import add_recommendation, recommend

REPAIRS = ("E1", "E7", "E2", "E4", "E6")
"""The repairs that change decisions, in the order in which `errata` adds them."""
E1, E2, E4, E7 = 1, 2, 4, 8


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    """Lines 2–6, and lines 18–28 on a hit."""
    count_arrival(head, rows, i)
    hit = bool(rows[i].resident)
    if hit:
        finish_round(head, rows, i, rows[i].entry_size)
    return hit


@kernel
def settle(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    """Lines 8–11 and 18–28."""
    count_miss(head, rows, i, cost)
    rows[i].entry_size = size
    finish_round(head, rows, i, size)


@kernel
def finish_round(head: Records, rows: Records, i: int, size: int) -> None:
    """Lines 18–28."""
    h, q = head[0], rows[i]
    was_resident, was_recommended = q.resident, q.recommended
    if q.recommended or size <= h.capacity - h.recommended_size:  # line 18
        if not q.resident:
            insert(head, rows, i, size)  # line 19
        add_recommendation(head, rows, i)
    misses_grown = q.misses >= (1.0 + h.alpha) * q.misses_at_call and (not h.hand & E4 or q.misses >= 2)
    if misses_grown or h.t >= (1.0 + h.alpha) * h.last_call:  # line 23
        q.misses_at_call = q.misses  # line 24
        h.last_call = h.t
        before = h.used
        recommend(head, rows, h.hand & E7 != 0)  # line 25
        if q.resident and not was_resident:
            remove(head, rows, i)  # line 26 intersects with M_{t−1}, not with M_t
        for j in range(len(rows) - 1):
            if rows[j].resident and not rows[j].recommended:
                remove(head, rows, j)
        if h.hand & E2 and q.recommended and not q.resident:
            insert(head, rows, i, size)
        h.forgotten += before > 0 and h.used == 0
    elif not h.hand & E1 and q.recommended and not was_recommended:
        q.recommended = False  # line 28: M̂_t = M̂_{t−1} undoes line 19, but M_t keeps q_t; this causes the overflow
        h.recommended_size -= q.entry_size
    h.seen_size += h.used > h.capacity


class AsPrinted(Policy):
    """VSOCB as printed, with optional repairs."""

    head_fields: ClassVar = VSOCB_HEAD
    row_fields: ClassVar = VSOCB_ROW
    arrive_kernel = arrive
    settle_kernel = settle
    release_kernel = remove

    def __init__(
        self, capacity: int, ids: int, *, alpha: float, confidence: Confidence, repairs: Collection[str] = ()
    ) -> None:
        super().__init__(capacity, ids)
        if unknown := set(repairs) - set(REPAIRS):
            raise InvalidInput(f"unknown repairs {sorted(unknown)}; allowed are {', '.join(REPAIRS)}")
        if not alpha > 0.0:
            raise InvalidInput(f"alpha must be above 0, not {alpha}")
        self.head["alpha"] = alpha
        confidence.write(self.head)
        bits = {"E1": E1, "E2": E2, "E4": E4, "E7": E7, "E6": 0}
        self.head["hand"] = sum(bits[repair] for repair in repairs)
        self.head["floored"] = "E6" in repairs
        if "E7" in repairs:
            self.head["gamma_cost"] = self.head["gamma_arrival"] = 0.0

    @property
    def counters(self) -> dict[str, float]:
        """Oracle calls that emptied a non-empty cache, and rounds that ended over capacity."""
        fields = {"wipes": "forgotten", "rounds_over": "seen_size"}
        return {name: float(np.asarray(self.head[field])[0]) for name, field in fields.items()}
