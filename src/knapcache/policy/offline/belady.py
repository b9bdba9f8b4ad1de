"""Belady's rule with cost and size: an offline reference (Belady 1966: "A study of replacement algorithms for a
virtual-storage computer").

For equal sizes and costs, evicting the answer whose next request is farthest away is optimal. With sizes and costs the
optimum is NP-hard, and this is the corresponding greedy rule. An answer saves the cost of its next request, and
occupies space until then:

    v(q) = cost of the next request for q / (size · time until then)

The answer of least v is evicted; one without a next request has v = 0. A newcomer is admitted only if its v is above
that of every victim. On public traces this was better than: admitting always; comparing with the sum of the victims;
v by the time between two requests; and v by the next request alone. Its total cost came within 0 to 3 % of the PFOO
bound for caches of a tenth of the working set (6 % at a hundredth).

Every v rises as its request comes nearer, each at its own pace, so no heap stays in order. But an earlier v is a lower
bound: if the least of the heap, after an update, is still the least, it is the least of all.
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
    """Return v(q) now."""
    q = rows[i]
    time = q.following - head[0].t
    return q.gain / (q.entry_size * time) if time > 0 else 0.0


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    h, q = head[0], rows[i]
    h.t += 1
    q.following = 0  # never
    if h.t < h.future_length:
        # Request t of the trace is described by the t-th row after those of the ids.
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
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - every policy has the same signature
    rows[i].entry_size = size
    threshold = value(head, rows, i)
    free = head[0].capacity - head[0].used
    victims = 0
    while free < size:
        victim = worst(head, rows)
        if rows[victim].priority >= threshold:
            break
        heap_remove(head, rows, victim)
        rows[victims].victim = victim
        victims += 1
        free += rows[victim].entry_size
    if free < size:
        for k in range(victims):
            heap_add(head, rows, rows[k].victim)
        return
    for k in range(victims):
        evict(head, rows, rows[k].victim)
    rows[i].priority = threshold
    rows[i].tiebreak = head[0].t
    insert(head, rows, i, size)
    heap_add(head, rows, i)


@kernel
def worst(head: Records, rows: Records) -> int:
    """Return the resident of least v."""
    while True:
        i = heap_top(head, rows)
        v = value(head, rows, i)
        if v <= rows[i].priority:
            return i
        rows[i].priority = v


class Belady(HeapPolicy):
    """Evict the answer that saves least per size and time until its next request."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("future", "i8"), ("future_length", "i8")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("following", "i8"), ("gain", "f8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)

    def __init__(self, capacity: int, ids: int, *, following: npt.ArrayLike = (), gains: npt.ArrayLike = ()) -> None:
        """For each request of the trace, the index of the next request for its query (0: none) and that one's cost.

        Requests after the end of the trace have no next request.
        """
        when, gain = np.asarray(following, np.int64), np.asarray(gains, np.float64)
        if when.ndim != 1 or when.shape != gain.shape:
            raise InvalidInput(
                f"following and gains must be one-dimensional and equally long, "
                f"not of shapes {when.shape}, {gain.shape}"
            )
        self.spare = len(when) + 1
        super().__init__(capacity, ids)
        self.head["t"], self.head["future"], self.head["future_length"] = -1, ids, len(when)
        self.rows["following"][ids:-1] = when
        self.rows["gain"][ids:-1] = gain

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, **options: Any) -> Self:
        """Build the policy from the next request of each request in `trace`."""
        keys = trace.keys
        following = np.zeros(len(keys), np.int64)
        order = np.argsort(keys, kind="stable")
        again = keys[order[1:]] == keys[order[:-1]]
        following[order[:-1][again]] = order[1:][again]
        return cls(capacity, trace.ids, following=following, gains=trace.costs[following], **options)
