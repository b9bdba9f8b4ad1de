"""One line of the proxy's books: how many requests, what they cost, what was saved, what others would have cost.

    requests    = hits + coalesced + stale + misses + bypasses + passed + failed
    would(none) = spent + saved                         without a cache everything is paid for
    would(p)    = spent + saved − what p would have saved

What p would have saved comes from a shadow: the policy runs beside ours, without answers. It does not see what no cache
could have answered, requests without a key and answers that may not be kept: those cost everyone the same. For a time
in which p was not watched it counts as having saved nothing. A row of one minute may be off by what was under way when
the minute ended; the next row has it, and sums are right.

Rows are added to and never taken from; all that is kept is a sum of rows, so the sum of the parts is the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from knapcache.errors import InvalidInput
from knapcache.serve.observe.events import Event

COUNTED_AS = {
    "hit": "hits",
    "coalesced": "coalesced",
    "stale": "stale",
    "miss": "misses",
    "bypass": "bypasses",
    "pass": "passed",
}
"""Where an event is counted, by `outcome`; what is not named here has failed, or was refused."""
NONE = "none"
MOST_SHADOWS = 256


@dataclass(slots=True)
class UsageRow:
    """Numbers of some requests. Amounts of money and time are of answers: spent on them, or saved by having them."""

    requests: int = 0
    hits: int = 0
    coalesced: int = 0
    stale: int = 0
    misses: int = 0
    bypasses: int = 0
    passed: int = 0
    failed: int = 0
    bytes_saved: int = 0
    usd_spent: float = 0.0
    usd_saved: float = 0.0
    seconds_spent: float = 0.0
    seconds_saved: float = 0.0
    cost_spent: float = 0.0
    cost_saved: float = 0.0
    shadows: dict[str, float] = field(default_factory=dict)
    """What policies beside ours would have saved, by name."""

    def count(self, event: Event) -> None:
        """One request more."""
        self.requests += 1
        what = COUNTED_AS.get(event.outcome, "failed")
        setattr(self, what, getattr(self, what) + 1)
        if event.saved:
            self.usd_saved += event.usd or 0.0
            self.seconds_saved += event.upstream_seconds
            self.cost_saved += event.cost
            self.bytes_saved += event.size
        else:
            self.usd_spent += event.usd or 0.0
            self.seconds_spent += event.upstream_seconds
            self.cost_spent += event.cost

    def add(self, other: UsageRow) -> None:
        """Those requests, too."""
        for name in NUMBERS:
            more = getattr(other, name)
            if more:
                setattr(self, name, getattr(self, name) + more)
        for name, saved in other.shadows.items():
            self.shadows[name] = self.shadows.get(name, 0.0) + saved

    def would(self) -> dict[str, float]:
        """What others would have spent on these requests, in the policy's unit."""
        everything = self.cost_spent + self.cost_saved
        return {NONE: everything} | {name: everything - saved for name, saved in self.shadows.items()}

    def report(self) -> dict[str, Any]:
        """As the admin API says it."""
        return {name: getattr(self, name) for name in NUMBERS} | {"would": self.would()}

    def plain(self) -> list[Any]:
        """As files have it: numbers in the order of the fields, and the shadows behind them where there are any."""
        numbers = [getattr(self, name) for name in NUMBERS]
        return [*numbers, self.shadows] if self.shadows else numbers

    def check(self) -> None:
        """Outcomes sum to requests."""
        if self.requests != sum(getattr(self, name) for name in OUTCOMES):
            raise InvalidInput(f"outcomes do not sum to requests: {self}")


NUMBERS = tuple(one.name for one in fields(UsageRow) if one.name != "shadows")
COUNTS = NUMBERS[: NUMBERS.index("usd_spent")]
OUTCOMES = (*COUNTED_AS.values(), "failed")


def read_row(plain: Any) -> UsageRow:
    """From `plain`, out of a file or another process; InvalidInput for what cannot be a row."""
    if not isinstance(plain, list) or len(plain) not in (len(NUMBERS), len(NUMBERS) + 1):
        raise InvalidInput(f"a row has {len(NUMBERS)} numbers, and shadows behind them or not")
    shadows = plain[len(NUMBERS)] if len(plain) > len(NUMBERS) else {}
    if not isinstance(shadows, dict) or len(shadows) > MOST_SHADOWS:
        raise InvalidInput(f"shadows must be at most {MOST_SHADOWS} savings by policy")
    for name, number in zip(NUMBERS, plain, strict=False):
        _require_number(name, number, whole=name in COUNTS)
    for name, number in shadows.items():
        _require_number(name, number, whole=False)
    row = UsageRow(**dict(zip(NUMBERS, plain, strict=False)), shadows=dict(shadows))
    row.check()
    return row


def total(rows: Iterable[UsageRow]) -> UsageRow:
    """The sum."""
    whole = UsageRow()
    for row in rows:
        whole.add(row)
    return whole


def _require_number(name: str, number: Any, *, whole: bool) -> None:
    fits = type(number) is int if whole else type(number) in (int, float) and math.isfinite(number)
    if not fits or number < 0:
        raise InvalidInput(f"{name} must be a {'whole ' if whole else ''}number, 0 or more, not {str(number)[:40]!r}")
