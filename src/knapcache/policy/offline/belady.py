"""Belady's rule with cost and size: a yardstick that knows the future (Belady 1966: "A study of replacement
algorithms for a virtual-storage computer").

For equal sizes and costs, evicting what is asked for again the latest is optimal. With sizes and costs the best set
is NP-hard to find, and this is the greedy rule in Belady's spirit. An answer earns, at its next request, what that
request would cost; until then it takes room:

    v(q) = cost of the next request for q / (size · time until then)

The least v goes; what is not asked for again has v = 0. A newcomer whose own v is not above that of everyone who
would have to go is not taken in. On open traces this was better than always taking it in, than weighing it against
the sum of those who go, than v by the time between two requests instead of the time that is left, and than the next
request alone; it came within 0 to 3 % of total cost of the PFOO bound for caches of a tenth of the working set (6 %
at a hundredth).

Every v rises as its request comes nearer, each at its own pace, so no heap stays in order. But a v of earlier is
never above that of now: if the least of the heap, brought up to date, is still the least, it is the least of all.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import TraceLike, evict, insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, heap_add, heap_release, heap_remove, heap_top


@kernel
def value(head: Records, rows: Records, i: int) -> float:
    """v(q) at this moment."""
    q = rows[i]
    time = q.following - head[0].t
    return q.gain / (q.entry_size * time) if time > 0 else 0.0


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    h, q = head[0], rows[i]
    h.t += 1
    q.following = 0  # never
    if h.t < h.foreseen:
        # Request t of the trace stands in the t-th row behind those of the ids.
        now = rows[h.future + h.t]
        q.following = now.following
        q.gain = now.gain
    if not q.resident:
        return False
    heap_remove(head, rows, i)
    q.tiebreak = h.t
    q.priority = value(head, rows, i)
    heap_add(head, rows, i)
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - one signature for all
    rows[i].entry_size = size
    mine = value(head, rows, i)
    free = head[0].capacity - head[0].used
    going = 0
    while free < size:
        victim = worst(head, rows)
        if rows[victim].priority >= mine:
            break
        heap_remove(head, rows, victim)
        rows[going].victim = victim
        going += 1
        free += rows[victim].entry_size
    if free < size:
        for k in range(going):
            heap_add(head, rows, rows[k].victim)
        return
    for k in range(going):
        evict(head, rows, rows[k].victim)
    rows[i].priority = mine
    rows[i].tiebreak = head[0].t
    insert(head, rows, i, size)
    heap_add(head, rows, i)


@kernel
def worst(head: Records, rows: Records) -> int:
    """The resident of least v."""
    while True:
        i = heap_top(head, rows)
        v = value(head, rows, i)
        if v <= rows[i].priority:
            return i
        rows[i].priority = v


class Belady(HeapPolicy):
    """Evict what earns least for its room until its next request, all of the future known."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("future", "i8"), ("foreseen", "i8")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("following", "i8"), ("gain", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)

    def __init__(self, capacity: int, ids: int, *, following: npt.ArrayLike = (), gains: npt.ArrayLike = ()) -> None:
        """For each request: when its query is asked for again (0: never), and what that request would cost.

        Requests after the last one foreseen count as the last of their kind.
        """
        when, gain = np.asarray(following, np.int64), np.asarray(gains, np.float64)
        if when.ndim != 1 or when.shape != gain.shape:
            raise InvalidInput(f"following and gains must be flat and alike, not of shapes {when.shape}, {gain.shape}")
        self.spare = len(when) + 1
        super().__init__(capacity, ids)
        self.head["t"], self.head["future"], self.head["foreseen"] = -1, ids, len(when)
        self.rows["following"][ids:-1] = when
        self.rows["gain"][ids:-1] = gain

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, **options: Any) -> Self:
        """Belady's rule for these requests."""
        keys = trace.keys
        following = np.zeros(len(keys), np.int64)
        order = np.argsort(keys, kind="stable")
        again = keys[order[1:]] == keys[order[:-1]]
        following[order[:-1][again]] = order[1:][again]
        return cls(capacity, trace.ids, following=following, gains=trace.costs[following], **options)
