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
from knapcache.estimate.return_probability import promise_of
from knapcache.kernel import Records, inlined
from knapcache.policy.adaptive.admission_rules import ALWAYS, BEATS_EACH, BEATS_SUM

_ALL = (
    *((k, BEATS_EACH) for k in range(8)),
    *((k, BEATS_SUM) for k in (0, 2, 3, 4, 5, 6)),
    *((k, ALWAYS) for k in (0, 3)),
    (0, BEATS_EACH),  # greedy-dual, the last
)
SPEED = tuple(k for k, _ in _ALL)
"""Which half-life a member counts with."""
TEMPER = tuple(temper for _, temper in _ALL)
MEMBERS = len(_ALL)
GREEDY_DUAL = MEMBERS - 1
FIRST = 4
"""Who leads before anything is known: fair, half-life 4,096."""

MEMBERS_HEAD = [("clock", "f8")]  # L
MEMBERS_ROW = [("clocked", "f8")]  # L when last asked for


@inlined
def key_of(head: Records, rows: Records, i: int, member: int) -> float:
    """By what a member keeps i, as of its last request: the least goes first."""
    q = rows[i]
    k = SPEED[member]
    density = q.recent[k] * promise_of(head, rows, i) * cost_of(head, rows, i) / q.entry_size
    if member == GREEDY_DUAL:
        return q.clocked + density  # type: ignore[no-any-return]
    return math.log2(density) + q.last / HALF_LIVES[k] if density > 0.0 else -math.inf


@inlined
def clock_of(now: int, member: int) -> float:
    """The time in half-lives of a member."""
    return now / HALF_LIVES[SPEED[member]]  # type: ignore[no-any-return]
