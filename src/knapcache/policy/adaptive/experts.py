"""The experts of `adaptive`: each is a key to rank residents by, and an admission rule.

    horizon       log2 d + t_last/H     d = F·ρ·Ĉ/S: F requests, each counting half as much after H further ones;
    greedy-dual   L + d                 ρ the return probability of a query seen once; L the key of the last victim

A horizon's densities d all halve every H requests. So the order of two answers without requests never changes, and
the key needs no clock. The longest half-life is LFU with cost and size, the shortest nearly LRU. Greedy-dual keeps an
answer for a time proportional to its density; a horizon keeps it for a fixed time per doubling. Greedy-dual is better
where popularity fades like 1/age.

The rules are those of admission_rules.py. Most experts use BEATS_EACH, which was best or nearly best in most traffic
tried. Small caches need BEATS_SUM: otherwise a large answer of medium density would empty them. ALWAYS is for traffic
where value shows late: a newcomer without history is admitted, as under LRU.
"""

from __future__ import annotations

import math

from knapcache.estimate.costs import cost_of
from knapcache.estimate.discount import HALF_LIVES
from knapcache.estimate.return_probability import return_probability_of
from knapcache.kernel import Records, inlined
from knapcache.policy.adaptive.admission_rules import ALWAYS, BEATS_EACH, BEATS_SUM

_EXPERTS = (
    *((k, BEATS_EACH) for k in range(8)),
    *((k, BEATS_SUM) for k in (0, 2, 3, 4, 5, 6)),
    *((k, ALWAYS) for k in (0, 3)),
    (0, BEATS_EACH),  # greedy-dual, the last
)
EXPERT_HALF_LIFE = tuple(k for k, _ in _EXPERTS)
"""Index of the half-life of each expert."""
EXPERT_RULE = tuple(rule for _, rule in _EXPERTS)
"""Admission rule of each expert."""
EXPERT_COUNT = len(_EXPERTS)
GREEDY_DUAL = EXPERT_COUNT - 1
INITIAL_LEADER = 4
"""The leader before anything is known: half-life 4,096, BEATS_EACH."""

EXPERTS_HEAD = [("clock", "f8")]  # L
EXPERTS_ROW = [("clock_at_request", "f8")]  # L at the last request


@inlined
def key_of(head: Records, rows: Records, i: int, expert: int) -> float:
    """Return the key of i for an expert, as of the last request for i. The least key is evicted first."""
    q = rows[i]
    k = EXPERT_HALF_LIFE[expert]
    density = q.recent[k] * return_probability_of(head, rows, i) * cost_of(head, rows, i) / q.entry_size
    if expert == GREEDY_DUAL:
        return q.clock_at_request + density  # type: ignore[no-any-return]
    return math.log2(density) + q.last / HALF_LIVES[k] if density > 0.0 else -math.inf


@inlined
def half_lives_at(now: int, expert: int) -> float:
    """Return the time `now` in half-lives of an expert."""
    return now / HALF_LIVES[EXPERT_HALF_LIFE[expert]]  # type: ignore[no-any-return]
