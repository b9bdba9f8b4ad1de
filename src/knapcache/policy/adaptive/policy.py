"""Adaptive, the default policy: keep the answers of greatest value per size, over a learned half-life.

The value of an answer is v = F·ρ·Ĉ: discounted requests, the probability of further requests, and the expected cost of
a miss. Its density v/S is what a unit of capacity saves by holding it. Nothing has to be configured:

    F   counted at eight half-lives at once: discount.py
    ρ   learned from how many queries with answers of that size returned: return_probability.py
    Ĉ   the query's mean cost, shrunk towards the typical cost of its size as far as costs scatter: costs.py

The half-life and the admission rule are found by a tournament of shadow caches (tournament.py) over the experts of
experts.py. The live cache ranks and admits as the leading expert does.

A decision. A hit is counted and raises the answer's key in the heap of residents. A newcomer that fits is admitted.
One that does not fit is admitted if the leader's rule says so, and the least dense residents are evicted until it
fits; nothing is evicted before. When the leader changes, all residents are ranked again. That is a pass over them, so
the next change waits for a quarter as many requests.

Density misleads in a cache of few answers: five large ones may fill it, and choosing five is a knapsack. While the
leader's rule is BEATS_SUM and at most MAX_EXCHANGE answers are resident, the exact Oracle decides between them and the
newcomer. It is called only if the newcomer is worth more than the space it lacks, at the price of the least dense
resident: otherwise no exchange can gain. An exchange must gain MIN_GAIN of the newcomer's value, because that value has
just risen by its own request and is biased upwards. Rejected: calling the Oracle in larger caches. There its set and
the heap's differ by less than an answer, and following it exactly means following the noise in the estimates.

Statistics of a query survive its eviction. `recycle` frees the id of least value among some that are not resident. So
the table of ids is bounded, and a flood of keys that never return displaces itself, not the popular ones.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

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
from knapcache.policy.adaptive.compaction import compacted
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
from knapcache.policy.base import CompactState, TraceLike, evict, insert, make_settle
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
"""Requests between two checks of the tournament."""
MAX_EXCHANGE, MIN_GAIN = 8, 0.2
"""Most residents for which the Oracle decides; gain of an exchange, as a share of the newcomer's value."""
RECYCLE_SAMPLE = 32
"""Ids that `recycle` compares."""
RECYCLE_HALF_LIFE = 1
"""Index of the half-life by which `recycle` values ids: 262,144 requests."""


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
    """Update the key of resident i. It rises with a request, unless the cost estimates have fallen."""
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
    """Call the Oracle on the residents and i. If it chooses i, evict residents it left out until i fits.

    Return whether i is admitted.
    """
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
        chosen[least] = True  # do not pick it again
        heap_remove(head, rows, ids[least])
        evict(head, rows, ids[least])
    return True


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
    for k in range(h.heap_size):
        i = rows[k].heap_id
        rows[i].priority = key_of(head, rows, i, leader)
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

    If all are resident, evict the one of least key and report it.
    """
    h = head[0]
    h.evicted = 0
    n = rows.shape[0] - 1
    found, least = -1, np.inf
    for examined in range(n):
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
    q.entry_size, q.misses, q.paid, q.last, q.clock_at_request, q.requests = 0, 0, 0.0, 0, 0.0, 0
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
        *TOURNAMENT_HEAD,
        ("t", "i8"),
        ("leader", "i8"),
        ("next_check", "i8"),
        ("hand", "i8"),  # where `recycle` continues
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
        """Build for `trace` with an id for every key, or with a table of `remember` recycled ids."""
        if remember is not None and remember < 1:
            raise InvalidInput(f"remember must be at least 1, not {remember}")
        return cls(capacity, min(trace.ids, remember or trace.ids), **options)

    def request_counts(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        decay = 2.0 ** ((self.rows["last"][ids] - self.head["t"][0]) / HALF_LIVES[0])
        return np.asarray(self.rows["recent"][ids, 0] * decay)

    def compacted(self, head: Records, rows: Records, limit: int) -> CompactState:
        return compacted(head, rows, limit)

    def check(self) -> None:
        super().check()
        check_tournament(self.head, self.rows)
