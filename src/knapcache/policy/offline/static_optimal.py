"""The best fixed set of answers, chosen with the whole trace known: an offline reference.

An answer has to be paid for once before it can be kept. So the value of a query is the cost of its requests after the
first, and the best set is an exact knapsack over these values.
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
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001
    # The set was chosen by the largest size of each answer in the trace: only a larger answer does not fit.
    if rows[i].chosen and head[0].used + size <= head[0].capacity:
        insert(head, rows, i, size)


class Static(Policy):
    """Admit the answers of a fixed set and no others."""

    row_fields: ClassVar = [*ROW, ("chosen", "?")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, remove)
    release_kernel = remove

    def __init__(self, capacity: int, ids: int, chosen: npt.ArrayLike = ()) -> None:
        """`chosen`: one flag per id; missing flags are False."""
        super().__init__(capacity, ids)
        flags = np.asarray(chosen, dtype=bool)
        if flags.ndim != 1 or len(flags) > ids:
            raise InvalidInput(f"chosen must be one flag per id (at most {ids}), not an array of shape {flags.shape}")
        self.rows["chosen"][: len(flags)] = flags

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, **options: Any) -> Self:
        """Choose the best fixed set for `trace` by an exact knapsack."""
        keys, costs = trace.keys, trace.costs
        sizes = np.ones(trace.ids, np.int64)
        np.maximum.at(sizes, keys, trace.sizes)
        first = np.unique(keys, return_index=True)[1]
        value = np.bincount(keys, costs, minlength=trace.ids).astype(np.float64)
        value[keys[first]] -= costs[first]
        chosen = oracle.solve(np.maximum(value, 0.0), sizes, capacity).chosen
        return cls(capacity, trace.ids, chosen=chosen, **options)
