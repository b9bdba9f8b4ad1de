"""The rules that `adaptive` chooses from. Each is a key to keep by, and a temper towards newcomers.

    horizon       log2 d + t_last/H     d = F·ρ·Ĉ/S: F requests, each counting half as much every H that follow,
    greedy-dual   L + d                 ρ the promise of one seen once; L the key of the last to go

A horizon's densities d halve every H requests, all alike, so the order of two answers that nobody asks for never
changes, and the key needs no clock. The longest half-life is LFU with cost and size, the shortest nearly LRU.
Greedy-dual gives an answer time in proportion to its density where a horizon gives a fixed time for each doubling;
it is better where popularity fades like 1/age.

The tempers are those of tempers.py. Most members are fair, which was best or nearly so in most traffic tried. Small
caches want choosy ones: a large answer of middling density would empty them. Open ones are for traffic where value
shows late: a newcomer that looks like nothing gets its chance, as under LRU.
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
"""Which half-life a member counts with."""
EXPERT_RULE = tuple(rule for _, rule in _EXPERTS)
EXPERT_COUNT = len(_EXPERTS)
GREEDY_DUAL = EXPERT_COUNT - 1
INITIAL_LEADER = 4
"""Who leads before anything is known: fair, half-life 4,096."""

EXPERTS_HEAD = [("clock", "f8")]  # L
EXPERTS_ROW = [("clock_at_request", "f8")]  # L when last asked for


@inlined
def key_of(head: Records, rows: Records, i: int, expert: int) -> float:
    """By what a member keeps i, as of its last request: the least goes first."""
    q = rows[i]
    k = EXPERT_HALF_LIFE[expert]
    density = q.recent[k] * return_probability_of(head, rows, i) * cost_of(head, rows, i) / q.entry_size
    if expert == GREEDY_DUAL:
        return q.clock_at_request + density  # type: ignore[no-any-return]
    return math.log2(density) + q.last / HALF_LIVES[k] if density > 0.0 else -math.inf


@inlined
def half_lives_at(now: int, expert: int) -> float:
    """The time in half-lives of a member."""
    return now / HALF_LIVES[EXPERT_HALF_LIFE[expert]]  # type: ignore[no-any-return]
