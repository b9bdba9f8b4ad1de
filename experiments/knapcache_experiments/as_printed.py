"""Algorithm 1 exactly as the paper prints it, with each repair as a switch. An exhibit, not a policy to use.

It lives here and not among the policies because it breaks their contract: it exceeds its capacity. Line numbers
are the paper's. The repairs are explained in knapcache/policy/vsocb.py, which has all of them and no switches.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence, count_arrival, count_miss
from knapcache.kernel import Records, kernel
from knapcache.policy.base import Policy, insert, remove
from knapcache.policy.vsocb.policy import VSOCB_HEAD, VSOCB_ROW, add_recommendation, recommend

REPAIRS = ("E1", "E7", "E2", "E4", "E6")
"""The repairs that change what happens, in the order in which `errata` adds them up."""


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    """Lines 2–6, and on a hit the rest of the round."""
    count_arrival(head, rows, i)
    hit = bool(rows[i].resident)
    if hit:
        rest_of_round(head, rows, i, rows[i].entry_size)
    return hit


@kernel
def settle(head: Records, rows: Records, i: int, room: int, cost: float) -> None:
    """Lines 8–11, and the rest of the round."""
    count_miss(head, rows, i, cost)
    rows[i].entry_size = room
    rest_of_round(head, rows, i, room)


@kernel
def rest_of_round(head: Records, rows: Records, i: int, room: int) -> None:
    """Lines 18–28."""
    h, q = head[0], rows[i]
    was_resident, was_recommended = q.resident, q.recommended
    if q.recommended or room <= h.capacity - h.recommended_size:  # line 18
        if not q.resident:
            insert(head, rows, i, room)  # line 19
        add_recommendation(head, rows, i)
    misses_grown = q.misses >= (1.0 + h.alpha) * q.misses_at_call and (not h.e4 or q.misses >= 2)
    if misses_grown or h.t >= (1.0 + h.alpha) * h.last_call:  # line 23
        q.misses_at_call = q.misses  # line 24
        h.last_call = h.t
        before = h.used
        recommend(head, rows, h.e7)  # line 25
        if q.resident and not was_resident:
            remove(head, rows, i)  # line 26 intersects with M_{t−1}, not with M_t
        for j in range(len(rows) - 1):
            if rows[j].resident and not rows[j].recommended:
                remove(head, rows, j)
        if h.e2 and q.recommended and not q.resident:
            insert(head, rows, i, room)
        h.wipes += before > 0 and h.used == 0
    elif not h.e1 and q.recommended and not was_recommended:
        q.recommended = False  # line 28: M̂_t = M̂_{t−1} undoes line 19, but M_t keeps q_t: the overflow
        h.recommended_size -= q.entry_size
    h.rounds_over += h.used > h.capacity


class AsPrinted(Policy):
    """VSOCB as printed, and its repairs one by one."""

    head_fields: ClassVar = [
        *VSOCB_HEAD,
        ("e1", "?"),
        ("e2", "?"),
        ("e4", "?"),
        ("e7", "?"),
        ("wipes", "i8"),
        ("rounds_over", "i8"),
    ]
    row_fields: ClassVar = VSOCB_ROW
    arrive_kernel = arrive
    settle_kernel = settle
    release_kernel = remove

    def __init__(
        self, capacity: int, ids: int, *, alpha: float, confidence: Confidence, repairs: Collection[str] = ()
    ) -> None:
        super().__init__(capacity, ids)
        if unknown := set(repairs) - set(REPAIRS):
            raise InvalidInput(f"unknown repairs {sorted(unknown)}; there are {', '.join(REPAIRS)}")
        if not alpha > 0.0:
            raise InvalidInput(f"alpha must be above 0, not {alpha}")
        self.head["alpha"] = alpha
        confidence.write(self.head)
        for repair in {"E1", "E2", "E4", "E7"} & set(repairs):
            self.head[repair.lower()] = True
        self.head["floored"] = "E6" in repairs
        if "E7" in repairs:
            self.head["gamma_cost"] = self.head["gamma_arrival"] = 0.0

    @property
    def notes(self) -> dict[str, float]:
        """What goes wrong: caches wiped by a call, rounds that end over capacity."""
        return {name: float(np.asarray(self.head[name])[0]) for name in ("wipes", "rounds_over")}
