"""CAMP (Ghandeharizadeh, Irani, Lam, Yap, Middleware 2014: "CAMP: A Cost Adaptive Multi-Queue Eviction Policy for
Key-Value Stores"): GreedyDual-Size in nearly constant time.

    H(q) = L + ratio(q)        ratio = c/s, cost per size, rounded to `precision` significant bits

c is the cost of the miss that admitted q, s its size. Answers of one rounded ratio form one LRU queue: L never falls,
so their order by H is their order by last request. A heap holds only the queues, by the H of their oldest answers.
There are few queues however many answers there are. The answer of least H is evicted and L rises to it; on a hit L
rises to the least H among the other answers. (The authors' simulator raises L only on evictions, to the least H that
remains. On our traces that costs up to 4 % more.)

The paper multiplies ratios by the largest size so far and cuts them to integers before it rounds them; ratios below
2^precision then have fewer significant bits. Here the float is rounded: the same precision at every scale. Ratios
outside 2^−40 … 2^40 are clamped to that range.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import numpy as np

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import Records, kernel
from knapcache.policy.base import HEAD, ROW, Policy, evict, insert, make_settle, remove
from knapcache.policy.structures.heap import HEAP_HEAD, HEAP_ROW, heap_add, heap_remove, heap_top, leaves_before
from knapcache.policy.structures.linked_list import LINK_ROW, linked_ids, push, unlink

MIN_EXPONENT, MAX_EXPONENT = -40, 40


@kernel
def queue_of(head: Records, ratio: float) -> int:
    """Return the queue of a ratio: 1, 2, … in rising order of the ratio rounded down."""
    steps = 1 << (head[0].precision - 1)
    mantissa, exponent = math.frexp(ratio)  # ratio = mantissa · 2^exponent, 1/2 ≤ mantissa < 1
    if ratio <= 0.0 or exponent <= MIN_EXPONENT:
        return 1
    if exponent > MAX_EXPONENT:
        return int((MAX_EXPONENT - MIN_EXPONENT) * steps)
    return int((exponent - MIN_EXPONENT - 1) * steps + int((2.0 * mantissa - 1.0) * steps) + 1)


@kernel
def ratio_of(head: Records, k: int) -> float:
    """Return the rounded ratio of queue k."""
    steps = 1 << (head[0].precision - 1)
    return (1.0 + (k - 1) % steps / steps) * 2.0 ** ((k - 1) // steps + MIN_EXPONENT)  # type: ignore[no-any-return]


@kernel
def attach(head: Records, rows: Records, i: int) -> None:
    """Append i to its queue, with H at the current L."""
    k = rows[i].queue
    end = len(rows) - k
    rows[i].priority = head[0].inflation + ratio_of(head, k)
    rows[i].tiebreak = head[0].t
    push(rows, i, k)
    if rows[end].newer == i:
        heap_add_queue(head, rows, end)


@kernel
def detach(head: Records, rows: Records, i: int) -> None:
    """Remove i from its queue."""
    end = len(rows) - rows[i].queue
    first = rows[end].newer == i
    unlink(rows, i)
    if first:
        heap_remove(head, rows, end)
        if rows[end].newer != end:
            heap_add_queue(head, rows, end)


@kernel
def heap_add_queue(head: Records, rows: Records, end: int) -> None:
    """Add a queue to the heap, by the H of its oldest answer."""
    rows[end].priority = rows[rows[end].newer].priority
    rows[end].tiebreak = rows[rows[end].newer].tiebreak
    heap_add(head, rows, end)


@kernel
def arrive(head: Records, rows: Records, i: int) -> bool:
    head[0].t += 1
    if not rows[i].resident:
        return False
    detach(head, rows, i)
    if head[0].heap_size > 0:
        head[0].inflation = max(head[0].inflation, rows[heap_top(head, rows)].priority)  # L ← least H of the others
    attach(head, rows, i)
    return True


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    while head[0].used + size > head[0].capacity:
        victim = rows[heap_top(head, rows)].newer
        head[0].inflation = max(head[0].inflation, rows[victim].priority)
        detach(head, rows, victim)
        evict(head, rows, victim)
    insert(head, rows, i, size)
    rows[i].queue = queue_of(head, cost / size)
    attach(head, rows, i)


@kernel
def release(head: Records, rows: Records, i: int) -> None:
    detach(head, rows, i)
    remove(head, rows, i)


class CAMP(Policy):
    """GreedyDual-Size with rounded ratios: LRU queues and a heap of queues."""

    head_fields: ClassVar = [*HEAD, *HEAP_HEAD, ("t", "i8"), ("inflation", "f8"), ("precision", "i8")]
    row_fields: ClassVar = [*ROW, *HEAP_ROW, *LINK_ROW, ("queue", "i8")]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, release)
    release_kernel = release

    def __init__(self, capacity: int, ids: int, *, precision: int = 5) -> None:
        """`precision`: significant bits of a rounded ratio, 1 … 10; the paper finds 5 as good as exact ratios."""
        if not 1 <= precision <= 10:
            raise InvalidInput(f"precision must be in 1 … 10, not {precision}")
        self.spare = (MAX_EXPONENT - MIN_EXPONENT) << (precision - 1)  # the sentinels of the queues
        super().__init__(capacity, ids)
        self.head["precision"] = precision
        ends = np.arange(ids, len(self.rows))
        self.rows["older"][ends] = self.rows["newer"][ends] = ends

    def check(self) -> None:
        super().check()
        found: list[int] = []
        heaped_queues = self.rows["heap_id"][: int(self.head["heap_size"][0])].tolist()
        ends = np.arange(self.ids, len(self.rows))
        self._expect("queues in the heap", sorted(heaped_queues), ends[self.rows["newer"][ends] != ends].tolist())
        for end in heaped_queues:
            k = len(self.rows) - end
            queue = linked_ids(self.rows, k)
            found += queue
            self._expect(f"H of queue {k}", self.rows["priority"][end], self.rows["priority"][queue[0]])
            if any(leaves_before(self.rows, b, a) for a, b in itertools.pairwise(queue)):
                raise CorruptState(f"queue {k} is out of order")
        self._expect("queues", frozenset(found), self.residents)
