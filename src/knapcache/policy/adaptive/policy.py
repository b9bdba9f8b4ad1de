"""Adaptive, the default policy: keep the answers that save most per size, by the rule that suits the traffic.

What a unit of capacity saves by holding an answer is its expected rate of returns, times the expected cost of a miss,
divided by its size. Nothing has to be configured. The estimates:

    F   requests, discounted at eight half-lives at once: discount.py
    ρ   the probability of a first return, from how many queries with answers of that size returned:
        return_probability.py
    Ĉ   the query's mean cost, shrunk towards the typical cost of its size as far as costs scatter: costs.py
    the rate of returns, by the query's history and the time since its last request: hazard.py

The rule to rank and to admit by is found by a tournament of shadow caches (tournament.py) over the experts of
experts.py, which include LRU and GreedyDual-Size. The live cache ranks and admits as the leading expert does.

A decision. A hit is counted and raises the answer's key in the heap of residents. A newcomer that fits is admitted.
One that does not fit is admitted if the leader's rule says so, and the least dense residents are evicted until it
fits; nothing is evicted before. When the leader changes, all residents are ranked again. That is a pass over them, so
the next change waits for a quarter as many requests.

Rejected: choosing the residents by the Oracle, which considers exchanges of several answers. Its set and the heap's
differ by less than an answer, and following it exactly means following the noise in the estimates.

Statistics of a query survive its eviction. `recycle` frees the id of least value among some that are not resident. So
the table of ids is bounded, and a flood of keys that never return displaces itself, not the popular ones.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from knapcache.estimate.costs import COSTS_HEAD, COSTS_ROW, MAX_COST, cost_of, count_cost
from knapcache.estimate.discount import DISCOUNT_ROW, HALF_LIVES, count_request
from knapcache.estimate.hazard import HAZARD_HEAD, HAZARD_ROW, count_gap
from knapcache.estimate.return_probability import (
    RETURN_HEAD,
    RETURN_ROW,
    count_return,
    count_seen,
    return_probability_of,
)
from knapcache.kernel import Records, borrowed, inlined, kernel, prefetch
from knapcache.policy.adaptive.compaction import compacted
from knapcache.policy.adaptive.experts import (
    EXPERTS_HEAD,
    EXPERTS_ROW,
    HAZARD,
    INITIAL_LEADER,
    admits_always,
    key_of,
)
from knapcache.policy.adaptive.tournament import (
    REFRESHES,
    TOURNAMENT_HEAD,
    TOURNAMENT_ROW,
    check_tournament,
    drop_from_shadows,
    end_filling,
    leader_after,
    observe,
    start_tournament,
)
from knapcache.policy.base import ROW, CompactState, TraceLike, evict, insert, make_settle, number_of_ids
from knapcache.policy.structures.heap import (
    HEAP_ROW,
    HeapPolicy,
    heap_add,
    heap_rebuild,
    heap_release,
    heap_remove,
    heap_top,
)

CHECK_EVERY = 8
"""Requests between two checks of the tournament."""
PREFETCHED = 8
"""Residents whose rows are loaded ahead while all are ranked again."""
RECYCLE_SAMPLE, MAX_EXAMINED = 32, 1024
"""Ids that `recycle` compares; ids that it examines to find one that is not resident."""
RECYCLE_HALF_LIFE = 1
"""Index of the half-life by which `recycle` values ids: 262,144 requests."""


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    h, q = head[0], rows[i]
    h.t += 1
    count_gap(rows, i, h.t)
    count_request(rows, i, h.t)
    count_return(head, rows, i)
    q.clock_at_request[0], q.clock_at_request[1] = h.clock[0], h.clock[1]
    if h.leader == HAZARD:
        refresh_residents(head, rows)
    if not q.resident:
        return False
    update_priority(head, rows, i)
    observe(head, rows, i, h.t)
    follow_leader(head, rows)
    return True


@inlined
def update_priority(head: Records, rows: Records, i: int) -> None:
    """Update the key of resident i. It rises with a request, unless the estimates have fallen."""
    key = key_of(head, rows, i, head[0].leader, head[0].t)
    if key < rows[i].priority:
        heap_remove(head, rows, i)
        rows[i].priority, rows[i].tiebreak = key, head[0].t
        heap_add(head, rows, i)
    else:
        rows[i].priority, rows[i].tiebreak = key, head[0].t


@kernel
def refresh_residents(head: Records, rows: Records) -> None:
    """Update the keys of some residents, because those of HAZARD change with age."""
    h = head[0]
    for _ in range(min(h.heap_size, REFRESHES)):
        h.refresh_position = h.refresh_position + 1 if h.refresh_position + 1 < h.heap_size else 0
        i = rows[h.refresh_position].heap_id
        key = key_of(head, rows, i, HAZARD, h.t)
        if key > rows[i].priority:
            rows[i].priority = key
        elif key < rows[i].priority:
            heap_remove(head, rows, i)
            rows[i].priority = key
            heap_add(head, rows, i)


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    h, q = head[0], rows[i]
    count_seen(head, rows, i, size)
    count_cost(head, rows, i, size, cost)
    observe(head, rows, i, h.t)
    follow_leader(head, rows)
    q.priority, q.tiebreak = key_of(head, rows, i, h.leader, h.t), h.t
    if h.used + size > h.capacity:
        if h.filling:
            end_filling(head)
        if not make_room(head, rows, i, size):
            return
    insert(head, rows, i, size)
    heap_add(head, rows, i)


@inlined
def make_room(head: Records, rows: Records, i: int, size: int) -> bool:
    """Evict residents until `size` more units fit. Return False and evict nothing if the leader does not admit i."""
    h = head[0]
    used, victims = h.used, 0
    while used + size > h.capacity:
        victim = heap_top(head, rows)
        if rows[victim].priority > rows[i].priority and not admits_always(h.leader):
            for k in range(victims):
                heap_add(head, rows, rows[k].victim)
            return False
        heap_remove(head, rows, victim)
        used -= rows[victim].entry_size
        rows[victims].victim = victim  # where `evict` reports it
        victims += 1
    for k in range(victims):
        evict(head, rows, rows[k].victim)
    return True


@kernel
def renew(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    """Settle the resident i, whose answer was paid for again and fits in place of the old one.

    The old answer had expired, the caller wanted a new one, or two calls were made at once. The request itself was
    observed when i arrived or was admitted, so only size and cost are new. If they are as before, all later decisions
    must be those after a hit. So i keeps its position in the heap, which determines what `refresh_residents` updates.
    """
    h, q = head[0], rows[i]
    size_before, cost_before = q.entry_size, cost_of(head, rows, i)
    count_seen(head, rows, i, size)
    count_cost(head, rows, i, size, cost)
    h.used += size - size_before
    if size != size_before or cost_of(head, rows, i) != cost_before:
        update_priority(head, rows, i)


@kernel
def reprice(head: Records, rows: Records, i: int, cost: float) -> None:
    rows[i].paid = rows[i].misses * min(cost, MAX_COST)
    update_priority(head, rows, i)


settle_newcomer = make_settle(admit, heap_release)


@inlined
def settle(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    h, q = head[0], rows[i]
    if q.resident and h.used - q.entry_size + size <= h.capacity:
        h.evicted = 0
        renew(head, rows, i, size, cost)
    else:
        settle_newcomer(head, rows, i, size, cost)


@inlined
def follow_leader(head: Records, rows: Records) -> None:
    """Choose the leader again every CHECK_EVERY requests or more."""
    if head[0].t >= head[0].next_check:
        choose_leader(head, rows)


@kernel
def choose_leader(head: Records, rows: Records) -> None:
    """Ask the tournament for the leader. If it changed, rank all residents again."""
    h = head[0]
    h.next_check = h.t + CHECK_EVERY
    leader = leader_after(head, h.leader)
    if leader == h.leader:
        return
    h.leader = leader
    h.next_check = h.t + max(CHECK_EVERY, h.heap_size // 4)
    # A request waits for this loop. `borrowed` and `prefetch` make it four times as fast for a million residents.
    head, rows = borrowed(head), borrowed(rows)
    for k in range(h.heap_size):
        prefetch(rows, rows[min(k + PREFETCHED, h.heap_size - 1)].heap_id)
        i = rows[k].heap_id
        rows[i].priority = key_of(head, rows, i, leader, h.t)
    heap_rebuild(head, rows)


@inlined
def id_value(head: Records, rows: Records, i: int) -> float:
    """Return F·ρ·Ĉ now, by the half-life RECYCLE_HALF_LIFE; 0 if nothing was paid yet."""
    q = rows[i]
    if q.misses == 0:
        return 0.0
    decay = 2.0 ** ((q.last - head[0].t) / HALF_LIVES[RECYCLE_HALF_LIFE])
    return q.recent[RECYCLE_HALF_LIFE] * decay * return_probability_of(head, rows, i) * cost_of(head, rows, i)  # type: ignore[no-any-return]


@kernel
def recycle(head: Records, rows: Records) -> int:
    """Free an id for another key: the least valuable of the next RECYCLE_SAMPLE that are not resident.

    If all that it examines are resident, evict the resident of least key and report it.
    """
    h = head[0]
    h.evicted = 0
    n = rows.shape[0] - 1
    found, least = -1, np.inf
    for examined in range(min(n, MAX_EXAMINED)):
        if examined >= RECYCLE_SAMPLE and found >= 0:
            break
        i = h.hand
        h.hand = (h.hand + 1) % n
        if not rows[i].resident:
            value = id_value(head, rows, i)
            if value < least:
                found, least = i, value
    if found < 0:
        found = heap_top(head, rows)
        heap_remove(head, rows, found)
        evict(head, rows, found)
    drop_from_shadows(head, rows, found)
    q = rows[found]
    q.entry_size, q.misses, q.paid, q.last, q.requests = 0, 0, 0.0, 0, 0
    q.clock_at_request[0], q.clock_at_request[1], q.gap = 0.0, 0.0, 0.0
    for k in range(len(HALF_LIVES)):
        q.recent[k] = 0.0
    return int(found)


class Adaptive(HeapPolicy):
    """Value per size, with half-life and admission rule learned by a tournament of experts."""

    head_fields: ClassVar = [
        *HeapPolicy.head_fields,
        *COSTS_HEAD,
        *RETURN_HEAD,
        *EXPERTS_HEAD,
        *HAZARD_HEAD,
        *TOURNAMENT_HEAD,
        ("t", "i8"),
        ("leader", "i8"),
        ("next_check", "i8"),
        ("refresh_position", "i8"),  # in the heap
        ("hand", "i8"),  # where `recycle` continues
    ]
    row_fields: ClassVar = [  # in this order: 136 bytes, 3 of them padding
        *ROW,
        *RETURN_ROW,
        *HEAP_ROW,
        *EXPERTS_ROW,
        *HAZARD_ROW,
        *DISCOUNT_ROW,
        *COSTS_ROW,
        *TOURNAMENT_ROW,
    ]
    arrive_kernel = arrive
    settle_kernel = settle
    reprice_kernel = reprice
    recycle_kernel = recycle

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        start_tournament(self.head)
        self.head["leader"] = INITIAL_LEADER

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, *, remember: int | None = None, **options: Any) -> Self:
        """Build for `trace` with an id for every key, or with a table of `remember` recycled ids."""
        return cls(capacity, number_of_ids(trace, remember), **options)

    def request_counts(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        decay = 2.0 ** ((self.rows["last"][ids] - self.head["t"][0]) / HALF_LIVES[0])
        return np.asarray(self.rows["recent"][ids, 0] * decay)

    def request_count(self, i: int) -> float:  # a tenth of the time: every eviction is recorded with it
        age = float(self.head["t"][0]) - float(self.rows["last"][i])
        return float(self.rows["recent"][i, 0]) * math.exp2(-age / HALF_LIVES[0])

    def inherit(self, i: int, other: int) -> None:
        rows = self.rows  # counts are discounted up to the last request of their id
        decay = 2.0 ** ((rows["last"][other] - rows["last"][i]) / np.array(HALF_LIVES))
        rows["recent"][i] = np.maximum(rows["recent"][i], rows["recent"][other] * decay)

    def compacted(self, head: Records, rows: Records, limit: int) -> CompactState:
        return compacted(head, rows, limit)

    def check(self) -> None:
        super().check()
        check_tournament(self.head, self.rows)
