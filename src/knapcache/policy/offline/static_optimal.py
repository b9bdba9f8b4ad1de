"""Policies that know the future: yardsticks, not competitors.

`static` keeps the best fixed set of answers, chosen with the whole trace known. An answer still has to be paid
for once before it can be kept, so the value of a query is what its requests cost after the first; the best set
is an exact knapsack over that.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from knapcache import oracle
from knapcache.errors import InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import ROW, Policy, TraceLike, insert, make_settle, remove


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:  # noqa: ARG001 - every policy has the same signature
    return bool(rows[i].resident)


@kernel
def admit(head: Records, rows: Records, i: int, room: int, cost: float) -> None:  # noqa: ARG001
    # The set was chosen by the largest size of each answer, so this can fail only for answers larger than foreseen.
    if rows[i].chosen and head[0].used + room <= head[0].capacity:
        insert(head, rows, i, room)


class Static(Policy):
    """Best fixed set in hindsight: keeps the answers it was told to keep, from their first arrival on."""

    row_fields: ClassVar = [*ROW, ("chosen", "?")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, remove)
    release_kernel = remove

    def __init__(self, capacity: int, ids: int, chosen: npt.ArrayLike = ()) -> None:
        """`chosen`: one flag an id (shorter is padded with False)."""
        super().__init__(capacity, ids)
        flags = np.asarray(chosen, dtype=bool)
        if flags.ndim != 1 or len(flags) > ids:
            raise InvalidInput(f"chosen must be one flag an id ({ids} at most), not an array of shape {flags.shape}")
        self.rows["chosen"][: len(flags)] = flags

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, **options: Any) -> Self:
        """The best fixed set for these requests: all of the future, known."""
        keys, costs = trace.keys, trace.costs
        room = np.ones(trace.ids, np.int64)
        np.maximum.at(room, keys, trace.sizes)
        first = np.unique(keys, return_index=True)[1]
        value = np.bincount(keys, costs, minlength=trace.ids).astype(np.float64)
        value[keys[first]] -= costs[first]
        chosen = oracle.solve(np.maximum(value, 0.0), room, capacity).chosen
        return cls(capacity, trace.ids, chosen=chosen, **options)
