"""The experts of `adaptive`: each is a key to rank residents by, and an admission rule.

    horizon            log2 d + t_last/H     d = F·ρ·Ĉ/S: F requests, each counting half as much after H further ones;
    greedy-dual        L + d                 ρ the return probability of a query seen once; L the key of the last victim
    greedy-dual-size   L + Ĉ/S               with an L of its own
    recency            t_last                LRU
    hazard             index·Ĉ/S             index: the rate of returns at the query's age, by its history (hazard.py)

A horizon's densities d all halve every H requests. So the order of two answers without requests never changes, and
the key needs no clock. The longest half-life is LFU with cost and size. Greedy-dual keeps an answer for a time
proportional to its density; a horizon keeps it for a fixed time per doubling. Greedy-dual is better where popularity
fades like 1/age. Greedy-dual-size and recency do not count requests. They are best where the next request of a session
follows soon or never, and they are the textbook rules that `adaptive` must not be worse than.

These rank all answers by one rule. Hazard learns how queries of each kind return, so it suits traffic in which sessions
and popular questions are mixed. Its keys change with age.

LRU and GreedyDual-Size admit every newcomer. The others admit a newcomer if its key is at least that of each victim.

Rejected: experts that admit a newcomer if its value is at least the sum of the victims' values, that call the Oracle
while they hold few answers, or that rank by density and always admit. They were no better in caches of one to a hundred
answers than the experts that are left, and with more experts more leaders are chosen by chance.
"""

from __future__ import annotations

import math

from knapcache.estimate.costs import cost_of
from knapcache.estimate.discount import HALF_LIFE_COUNT, HALF_LIVES
from knapcache.estimate.hazard import return_rate_of
from knapcache.estimate.return_probability import return_probability_of
from knapcache.kernel import Records, inlined

EXPERT_COUNT = HALF_LIFE_COUNT + 4
"""Horizon k, with half-life k, is expert k. The others follow."""
GREEDY_DUAL, GREEDY_DUAL_SIZE, RECENCY, HAZARD = range(HALF_LIFE_COUNT, EXPERT_COUNT)
INITIAL_LEADER = HAZARD
"""The leader before anything is known."""

EXPERTS_HEAD = [("clock", "(2,)f8")]  # L of greedy-dual and of greedy-dual-size
EXPERTS_ROW = [("clock_at_request", "(2,)f8")]  # L at the last request


@inlined
def key_of(head: Records, rows: Records, i: int, expert: int, now: int) -> float:
    """Return the key of i for an expert. The least is evicted first. Only the key of HAZARD depends on t = now."""
    cost_per_size = cost_of(head, rows, i) / rows[i].entry_size
    if expert < GREEDY_DUAL:
        return horizon_key(rows, i, expert, return_probability_of(head, rows, i) * cost_per_size)
    return other_key(head, rows, i, expert, now, cost_per_size)


@inlined
def horizon_key(rows: Records, i: int, k: int, value: float) -> float:
    """Return the key of i for half-life k. value: ρ·Ĉ/S."""
    density = rows[i].recent[k] * value
    return math.log2(density) + rows[i].last / HALF_LIVES[k] if density > 0.0 else -math.inf


@inlined
def other_key(head: Records, rows: Records, i: int, expert: int, now: int, cost_per_size: float) -> float:
    """Return the key of i for an expert that is not a horizon."""
    q = rows[i]
    if expert == RECENCY:
        return q.last  # type: ignore[no-any-return]
    if expert == HAZARD:
        return return_rate_of(head, rows, i, now) * cost_per_size
    if expert == GREEDY_DUAL_SIZE:
        return q.clock_at_request[1] + q.paid / (q.misses * q.entry_size)  # type: ignore[no-any-return]
    density = q.recent[0] * return_probability_of(head, rows, i) * cost_per_size
    return q.clock_at_request[0] + density  # type: ignore[no-any-return]


@inlined
def admits_always(expert: int) -> bool:
    """Return whether an expert admits every newcomer."""
    return expert in (GREEDY_DUAL_SIZE, RECENCY)
