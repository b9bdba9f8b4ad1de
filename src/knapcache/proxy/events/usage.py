"""Usage: the definition of requests, of what was spent and of what was saved.

History, metrics, admin API and page all count with `UsageRow`. Limits count the same payments (features/limits).

    request     what a client sent below /v1, whatever came of it. Each input of a request for several embeddings counts
                as one, because each has a key, an outcome and a cost of its own
    requests    = hits + similar + coalesced + stale + misses + bypasses + passthrough + failed (or rejected)
    from cache  = hits + similar + coalesced + stale                the hit rate is their share of all requests
    spent       what every call of an upstream cost that was paid for: misses, bypasses, failed calls that report a
                usage, refreshes of stale answers, and other calls in the background
    saved       what the answers from the cache had cost when they were paid for
    would(none) = spent + saved                         without a cache every answer is paid for
    would(p)    = spent + saved − what policy p would have saved

A call is paid for if the upstream answers it with a status below 400, or with a usage that has a price. If its cost is
not known (no usage, a usage that contradicts itself, an answer that broke off), it adds no dollars: it counts as
`unpriced`. Spend limits then count an estimate, which is summed up in `usd_estimated` for callers with limits:

    counted by a spend limit = usd_spent + usd_estimated

Passthrough requests have no price.

What p would have saved comes from a shadow. Requests without a key and answers that may not be stored cost the same
with every policy, so shadows do not see them. For a time without a shadow of p, p has saved nothing. A row of one
minute may be off by the requests that were in flight when the minute ended; the next row has them, and sums are exact.

Dollars are summed over answers of known price only. `priced` and `unpriced` count the answers with and without one, so
that a sum over some answers is not taken for the sum over all. Cost is in the policy's unit. It contains the estimates
for answers without a price (price/meter.py), and is not shown as dollars.

`evictions` counts entries that had to leave, and answers that were not admitted, for lack of space. While it is 0,
every policy of the same or more capacity saves the same.

Rows only grow. Every stored row is a sum of rows, so the parts always add up to the total.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import SAVED, Event, PaymentEvent
from knapcache.proxy.events.feature_sums import add_counts, add_numbers

COUNTED_AS = {
    "hit": "hits",
    "similar": "similar",
    "coalesced": "coalesced",
    "stale": "stale",
    "miss": "misses",
    "bypass": "bypasses",
    "passthrough": "passthrough",
}
"""Field that counts an outcome. All other outcomes count as failed."""
NO_CACHE = "none"
MAX_SHADOWS = 256


@dataclass(slots=True)
class UsageRow:
    """Numbers over some requests. Dollars, seconds and cost are what their answers cost: spent now, or saved."""

    requests: int = 0
    hits: int = 0
    coalesced: int = 0
    stale: int = 0
    misses: int = 0
    bypasses: int = 0
    passthrough: int = 0
    failed: int = 0
    bytes_saved: int = 0
    usd_spent: float = 0.0
    usd_saved: float = 0.0
    seconds_spent: float = 0.0
    seconds_saved: float = 0.0
    cost_spent: float = 0.0
    cost_saved: float = 0.0
    tokens_spent: int = 0
    tokens_saved: int = 0
    priced: int = 0
    """Answers of known price."""
    unpriced: int = 0
    """Answers of unknown price, and of free models."""
    evictions: int = 0
    """Entries that were evicted, and answers not admitted, for lack of space. Only in rows of times, not of names."""
    similar: int = 0
    """Answers that were stored for similar requests."""
    usd_estimated: float = 0.0
    """Dollars that limits have counted for calls whose cost is not known. Last: older files do not have it."""
    shadows: dict[str, float] = field(default_factory=dict)
    """Savings of other policies on the same requests, by name."""

    def count(self, event: Event) -> None:
        outcome, usd, cost = event.outcome, event.usd, event.cost
        self.requests += 1
        if outcome == "hit":  # the most frequent, then misses
            self.hits += 1
        elif outcome == "miss":
            self.misses += 1
        else:
            name = COUNTED_AS.get(outcome, "failed")
            setattr(self, name, getattr(self, name) + 1)
        if usd is not None:
            self.priced += 1
        elif cost > 0.0:
            self.unpriced += 1
        if outcome in SAVED:
            self.tokens_saved += event.tokens
            self.usd_saved += usd or 0.0
            self.seconds_saved += event.upstream_seconds
            self.cost_saved += cost
            self.bytes_saved += event.size
        else:
            self.tokens_spent += event.tokens
            self.usd_spent += usd or 0.0
            self.seconds_spent += event.upstream_seconds
            self.cost_spent += cost
        if event.usd_estimated:
            self.usd_estimated += event.usd_estimated

    def count_payment(self, payment: PaymentEvent) -> None:
        """Add a background call, which does not count as a request."""
        if payment.usd is not None:
            self.priced += 1
        elif payment.cost > 0.0:
            self.unpriced += 1
        self.tokens_spent += payment.tokens
        self.usd_spent += payment.usd or 0.0
        self.seconds_spent += payment.seconds
        self.cost_spent += payment.cost
        self.usd_estimated += payment.usd_estimated

    def add(self, other: UsageRow) -> None:
        add_numbers(self, other, NUMBERS)
        add_counts(self.shadows, other.shadows)

    def would(self, policies: Iterable[str] = ()) -> dict[str, float]:
        """Return what these requests would have cost without a cache and with other policies, in the policy's unit.

        policies   have a cost also if the row does not have them: they have saved nothing
        """
        uncached = self.cost_spent + self.cost_saved
        saved = dict.fromkeys(policies, 0.0) | self.shadows
        return {NO_CACHE: uncached} | {name: uncached - each for name, each in saved.items()}

    def report(self, policies: Iterable[str] = ()) -> dict[str, Any]:
        """Return the row for the admin API, with these policies."""
        return {name: getattr(self, name) for name in NUMBERS} | {"would": self.would(policies)}

    def to_list(self) -> list[Any]:
        """Return the row for the history file: numbers in field order, then the shadows if there are any."""
        numbers = [getattr(self, name) for name in NUMBERS]
        return [*numbers, self.shadows] if self.shadows else numbers

    @classmethod
    def from_list(cls, values: Any, numbers: int) -> UsageRow:
        """Return the row of `to_list`, of which a file of an older version has fewer numbers. Raises InvalidInput."""
        if not isinstance(values, list) or len(values) not in (numbers, numbers + 1):
            raise InvalidInput(f"a row must have {numbers} numbers, and may have shadows after them")
        names = NUMBERS[:numbers]
        shadows = values[numbers] if len(values) > numbers else {}
        if not isinstance(shadows, dict) or len(shadows) > MAX_SHADOWS:
            raise InvalidInput(f"shadows must be at most {MAX_SHADOWS} savings by policy")
        # One comparison for most rows: a reader of other proxies' histories has a hundred thousand of them.
        head = values[:numbers]
        if tuple(map(type, head)) != TYPES[:numbers] or not all(0 <= number < INFINITE for number in head):
            for name, number in zip(names, head, strict=True):
                _require_number(name, number, whole=name in WHOLE)
        for name, number in shadows.items():
            _require_number(name, number, whole=False)
        row = cls(*head)
        row.shadows = dict(shadows)
        row.check()
        return row

    def check(self) -> None:
        """Raise InvalidInput unless the outcomes add up to the requests."""
        if self.requests != sum(getattr(self, name) for name in OUTCOME_COUNTS):
            raise InvalidInput(f"outcomes must add up to requests, not {self}")


NUMBERS = tuple(one.name for one in fields(UsageRow) if one.name != "shadows")
WHOLE = frozenset(one.name for one in fields(UsageRow) if one.type == "int")
TYPES = tuple(int if name in WHOLE else float for name in NUMBERS)
INFINITE = float("inf")
TIMES_ONLY = ("evictions",)
"""Numbers that rows of models and tenants do not have."""
OUTCOME_COUNTS = (*COUNTED_AS.values(), "failed")


def sum_rows(rows: Iterable[UsageRow]) -> UsageRow:
    """Return a new row with the sum of all."""
    total = UsageRow()
    for row in rows:
        total.add(row)
    return total


def _require_number(name: str, number: Any, *, whole: bool) -> None:
    valid = type(number) is int if whole else type(number) in (int, float) and math.isfinite(number)
    if not valid or number < 0:
        raise InvalidInput(f"{name} must be a {'whole ' if whole else ''}number, 0 or more, not {str(number)[:40]!r}")
