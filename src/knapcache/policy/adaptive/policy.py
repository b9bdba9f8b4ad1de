"""Adaptive, the default: keep what is worth most per unit of room, over a horizon that is learned.

The value of an answer is v = F·ρ·Ĉ: requests for it, discounted; the promise that there will be more; the expected cost
of a miss. Its density v/S is what a unit of room saves by holding it. Nothing of that is a knob:

    F   counted at eight half-lives at once, discount.py
    ρ   learned from how many queries with answers of that size came back, promise.py
    Ĉ   the query's own mean, drawn towards what its size costs as far as costs scatter, costs.py

and which half-life to go by, and whom to let in, is found by a tournament of shadow caches, shadows.py, over the rules
of members.py. The live cache ranks and admits as the leading member does.

A decision. A hit counts, and raises the answer's key in the heap of residents. A newcomer that fits comes in. One that
does not fit comes in if the leader's temper says so, and then the least dense go until it fits; nobody goes before
the room is needed. When the leader changes, residents are ranked anew, all at once; that is a pass over them, so the
next change waits until a quarter as many requests have gone by.

A cache of few answers is where density misleads: five large ones may fill it, and which five is a knapsack. While a
choosy member leads and at most FEW residents are there to be weighed, the exact Oracle decides between them and the
newcomer. It is asked only if the newcomer is worth more than the room it lacks, at the price of the least dense
resident: otherwise no exchange can gain. And an exchange must gain MARGIN of the newcomer's value, whose count
has just risen by its own request and flatters it. Rejected: asking it in larger caches. There the Oracle's set and the
heap's differ by less than an answer, and following it to the last cent means following the noise in the estimates.

What is remembered of a query outlives its answer. `recycle` gives up the least valuable of some that hold no answer,
so that the table of ids is bounded, and a flood of keys that never return displaces itself and not what is popular.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.estimate.costs import COSTS_HEAD, COSTS_ROW, cost_of, count_cost
from knapcache.estimate.discount import DISCOUNT_ROW, HALF_LIVES, count_request
from knapcache.estimate.return_probability import (
    RETURN_HEAD,
    RETURN_ROW,
    count_return,
    count_seen,
    return_probability_of,
)
from knapcache.kernel import Records, inlined, kernel
from knapcache.oracle.tiny import select_tiny
from knapcache.policy.adaptive.admission_rules import BEATS_SUM, newcomer_wins, value_now
from knapcache.policy.adaptive.experts import (
    EXPERT_RULE,
    EXPERTS_HEAD,
    EXPERTS_ROW,
    INITIAL_LEADER,
    half_lives_at,
    key_of,
)
from knapcache.policy.adaptive.tournament import (
    TOURNAMENT_HEAD,
    TOURNAMENT_ROW,
    check_tournament,
    drop_from_shadows,
    leader_after,
    observe,
    start_tournament,
)
from knapcache.policy.base import TraceLike, evict, insert, make_settle
from knapcache.policy.structures.heap import (
    HeapPolicy,
    evict_until_fits,
    heap_add,
    heap_rebuild,
    heap_release,
    heap_remove,
    heap_top,
    leaves_before,
)

CHECK_EVERY = 64
"""Requests between two looks at the tournament."""
MAX_EXCHANGE, MIN_GAIN = 8, 0.2
RECYCLE_SAMPLE = 32
"""Ids that `recycle` chooses from."""
RECYCLE_HALF_LIFE = 1
"""The half-life that usefulness is counted with: 262,144 requests."""


@inlined
def arrive(head: Records, rows: Records, i: int) -> bool:
    h, q = head[0], rows[i]
    h.t += 1
    count_request(rows, i, h.t)
    count_return(head, rows, i)
    q.clock_at_request = h.clock
    if not q.resident:
        return False
    update_priority(head, rows, i)
    observe(head, rows, i, h.t)
    follow_leader(head, rows)
    return True


@inlined
def update_priority(head: Records, rows: Records, i: int) -> None:
    """The key of resident i has changed: up with every request, and down only if estimates of costs have moved."""
    key = key_of(head, rows, i, head[0].leader)
    if key < rows[i].priority:
        heap_remove(head, rows, i)
        rows[i].priority, rows[i].tiebreak = key, head[0].t
        heap_add(head, rows, i)
    else:
        rows[i].priority, rows[i].tiebreak = key, head[0].t


@kernel
def admit(head: Records, rows: Records, i: int, size: int, cost: float) -> None:
    h, q = head[0], rows[i]
    count_seen(head, rows, i, size)
    count_cost(head, rows, i, size, cost)
    observe(head, rows, i, h.t)
    follow_leader(head, rows)
    q.priority, q.tiebreak = key_of(head, rows, i, h.leader), h.t
    if h.used + size > h.capacity:
        if EXPERT_RULE[h.leader] == BEATS_SUM and h.heap_size <= MAX_EXCHANGE:
            if not exchange(head, rows, i, size):
                return
        elif not newcomer_wins(head, rows, i, size, EXPERT_RULE[h.leader], half_lives_at(h.t, h.leader)):
            return
        evict_until_fits(head, rows, size)
    insert(head, rows, i, size)
    heap_add(head, rows, i)


@kernel
def exchange(head: Records, rows: Records, i: int, size: int) -> bool:
    """Let the Oracle choose among the residents and i; if i is chosen, those go whom it left out, until i fits."""
    h, n = head[0], head[0].heap_size
    now = half_lives_at(h.t, h.leader)
    value = value_now(rows[i].priority, size, now)
    short = h.used + size - h.capacity
    if n == 0 or value <= value_now(rows[heap_top(head, rows)].priority, short, now):
        return False
    values, sizes, chosen = np.empty(n + 1), np.empty(n + 1, np.int64), np.zeros(n + 1, np.bool_)
    ids = np.empty(n, np.int64)
    for k in range(n):
        ids[k] = rows[k].heap_id
        sizes[k] = rows[ids[k]].entry_size
        values[k] = value_now(rows[ids[k]].priority, sizes[k], now)
    values[n], sizes[n] = value, size
    h.oracle_calls += 1
    best = select_tiny(values, sizes, h.capacity, chosen)
    if not chosen[n] or best - values[:n].sum() < MIN_GAIN * value:
        return False
    while h.used + size > h.capacity:
        least = -1
        for k in range(n):
            if not chosen[k] and (least < 0 or leaves_before(rows, ids[k], ids[least])):
                least = k
        chosen[least] = True  # seen to
        heap_remove(head, rows, ids[least])
        evict(head, rows, ids[least])
    return True


@inlined
def follow_leader(head: Records, rows: Records) -> None:
    """Now and then: has another member taken the lead?"""
    if head[0].t >= head[0].next_check:
        choose_leader(head, rows)


@kernel
def choose_leader(head: Records, rows: Records) -> None:
    h = head[0]
    h.next_check = h.t + CHECK_EVERY
    leader = leader_after(head, h.leader)
    if leader == h.leader:
        return
    h.leader = leader
    h.next_check = h.t + max(CHECK_EVERY, h.heap_size // 4)
    for k in range(h.heap_size):
        i = rows[k].heap_id
        rows[i].priority = key_of(head, rows, i, leader)
    heap_rebuild(head, rows)


@inlined
def id_value(head: Records, rows: Records, i: int) -> float:
    """F·ρ·Ĉ at this moment, by the half-life SLOW; 0 before anything was paid."""
    q = rows[i]
    if q.misses == 0:
        return 0.0
    faded = 2.0 ** ((q.last - head[0].t) / HALF_LIVES[RECYCLE_HALF_LIFE])
    return q.recent[RECYCLE_HALF_LIFE] * faded * return_probability_of(head, rows, i) * cost_of(head, rows, i)  # type: ignore[no-any-return]


@kernel
def recycle(head: Records, rows: Records) -> int:
    """Forget an id, to be given to another key: the least valuable without an answer, of LOOK_AT next to the hand.

    Where all hold answers the one that is next to leave goes, and is reported as evicted.
    """
    h = head[0]
    h.evicted = 0
    n = rows.shape[0] - 1
    found, least = -1, np.inf
    for looked in range(n):
        if looked >= RECYCLE_SAMPLE and found >= 0:
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
    q.entry_size, q.misses, q.paid, q.last, q.clock_at_request, q.requests = 0, 0, 0.0, 0, 0.0, 0
    for k in range(len(HALF_LIVES)):
        q.recent[k] = 0.0
    return int(found)


class Adaptive(HeapPolicy):
    """The default policy."""

    head_fields: ClassVar = [
        *HeapPolicy.head_fields,
        *COSTS_HEAD,
        *RETURN_HEAD,
        *EXPERTS_HEAD,
        *TOURNAMENT_HEAD,
        ("t", "i8"),
        ("leader", "i8"),
        ("next_check", "i8"),
        ("hand", "i8"),  # where `recycle` looks next
    ]
    row_fields: ClassVar = [
        *HeapPolicy.row_fields,
        *COSTS_ROW,
        *DISCOUNT_ROW,
        *RETURN_ROW,
        *EXPERTS_ROW,
        *TOURNAMENT_ROW,
    ]
    arrive_kernel = arrive
    settle_kernel = make_settle(admit, heap_release)
    recycle_kernel = recycle

    def __init__(self, capacity: int, ids: int) -> None:
        super().__init__(capacity, ids)
        start_tournament(self.head, self.capacity)
        self.head["leader"] = INITIAL_LEADER

    @classmethod
    def for_trace(cls, capacity: int, trace: TraceLike, *, remember: int | None = None, **options: Any) -> Self:
        """For `trace`, with a table for all of its keys, or of `remember` ids that are used again and again."""
        if remember is not None and remember < 1:
            raise InvalidInput(f"remember must be at least 1, not {remember}")
        return cls(capacity, min(trace.ids, remember or trace.ids), **options)

    def check(self) -> None:
        super().check()
        check_tournament(self.head, self.rows)
