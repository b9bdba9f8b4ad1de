"""LFU-DA: least frequently used with dynamic aging (Arlitt, Friedrich, Jin 1999: "Performance Evaluation of Web
Proxy Cache Replacement Policies"; Arlitt, Cherkasova, Dilley, Friedrich, Jin 1999: "Evaluating Content Management
Techniques for Web Proxy Caches").

    K(q) = F(q) + L

F counts requests since admission. The answer of least K is evicted, and the cache age L becomes its K. Newcomers
start from L, so they overtake answers that were popular long ago. Size and cost are ignored.
"""

from __future__ import annotations

from typing import ClassVar

from knapcache.kernel import Records, inlined
from knapcache.policy.base import insert, make_settle
from knapcache.policy.structures.heap import HeapPolicy, evict_until_fits, heap_add, heap_release


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    rows[i].requests += 1
    rows[i].priority = rows[i].requests + head[0].age  # K = F + L, with the current L
    rows[i].tiebreak = head[0].t
    return True


@inlined
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:  # noqa: ARG001 - every policy has the same signature
    head[0].age = max(head[0].age, evict_until_fits(head, rows, size))  # L
    rows[i].requests = 1
    rows[i].priority = 1.0 + head[0].age
    rows[i].tiebreak = head[0].t
    insert(head, rows, i, size)
    heap_add(head, rows, i)


class LFUDA(HeapPolicy):
    """Least frequently used, with dynamic aging."""

    head_fields: ClassVar = [*HeapPolicy.head_fields, ("t", "i8"), ("age", "f8")]
    row_fields: ClassVar = [*HeapPolicy.row_fields, ("requests", "i8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)
