"""The ledger: counts and sums of requests, in total, by model and by tenant.

    requests = hits + similar + coalesced + misses + bypasses + failed          in every row; rows sum to the total

"Spent" is what answers cost when they were paid for. "Saved" is what the returned answer had cost when it was paid for;
what the same call would cost today is unknown. A coalesced request saves like a hit, and so does an answer to a similar
question. `cost` is in the policy's unit;
dollars are summed where they are known.

Requests are counted in one row per pair of model and tenant, and moved into the three rows on `report`: updating three
rows takes three times as long.

Names of models and tenants come from clients, so at most MAX_LABELS of each have a row; the rest share one.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from typing import Any

from knapcache.errors import CorruptState
from knapcache.price.meter import Bill

MAX_LABELS = 200
MAX_PAIRS = 1000
OTHER = "other"


@dataclass(slots=True)
class LedgerRow:
    """Counts and sums of one model, of one tenant, or of all."""

    requests: int = 0
    hits: int = 0
    similar: int = 0
    """Requests that were served the answer to a question in another wording."""
    coalesced: int = 0
    misses: int = 0
    bypasses: int = 0
    """Requests without a key."""
    failed: int = 0
    """Calls that raised."""
    admitted: int = 0
    """Answers that the policy admitted, or that were handed over to the owner."""
    usd_spent: float = 0.0
    usd_saved: float = 0.0
    seconds_spent: float = 0.0
    seconds_saved: float = 0.0
    cost_spent: float = 0.0
    cost_saved: float = 0.0
    bytes_saved: int = 0
    """Bytes of answers that were served without a call."""
    tokens_spent: int = 0
    """Tokens of requests and answers that were paid for, as far as answers have a usage."""
    tokens_saved: int = 0


OUTCOMES = ("hits", "similar", "coalesced", "misses", "bypasses", "failed")
FIELDS = tuple(field.name for field in fields(LedgerRow))
EXACT = tuple(field.name for field in fields(LedgerRow) if field.type == "int")
"""Fields that are whole numbers; the others are sums of floats."""


class Ledger:
    """Rows, and counters of events that belong to no row."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = LedgerRow()
        self._models: dict[str, LedgerRow] = {}
        self._tenants: dict[str, LedgerRow] = {}
        self._counters: dict[str, int] = {}
        self._pairs: dict[tuple[str, str], LedgerRow] = {}
        """Since the last move. Their `requests` are 0: they are derived from the outcomes."""

    def add_hit(
        self, model: str, tenant: str, usd: float | None, seconds: float, cost: float, tokens: int, size: int
    ) -> None:
        """Count a hit. size: bytes of its answer. Positional: the hottest path."""
        with self._lock:
            row = self._pairs.get((model, tenant)) or self._new_pair(model, tenant)
            row.hits += 1
            if usd is not None:
                row.usd_saved += usd
            row.seconds_saved += seconds
            row.cost_saved += cost
            row.bytes_saved += size
            row.tokens_saved += tokens

    def add_reused(self, outcome: str, model: str, tenant: str, bill: Bill, size: int) -> None:
        """Count a request that got the answer of another: outcome "coalesced" or "similar"."""
        usd, seconds, cost, _, tokens, _ = bill
        with self._lock:
            row = self._pairs.get((model, tenant)) or self._new_pair(model, tenant)
            setattr(row, outcome, getattr(row, outcome) + 1)
            row.usd_saved += usd or 0.0
            row.seconds_saved += seconds
            row.cost_saved += cost
            row.bytes_saved += size
            row.tokens_saved += tokens

    def add_request(self, outcome: str, model: str, tenant: str) -> None:
        """Count a request that was not served from the cache: outcome "misses", "bypasses" or "failed"."""
        with self._lock:
            row = self._pairs.get((model, tenant)) or self._new_pair(model, tenant)
            setattr(row, outcome, getattr(row, outcome) + 1)

    def add_spent(self, model: str, tenant: str, bill: Bill, *, admitted: bool) -> None:
        """Add what an answer cost, and count it if it was admitted."""
        usd, seconds, cost, _, tokens, _ = bill
        with self._lock:
            row = self._pairs.get((model, tenant)) or self._new_pair(model, tenant)
            row.usd_spent += usd or 0.0
            row.seconds_spent += seconds
            row.cost_spent += cost
            row.tokens_spent += tokens
            row.admitted += admitted

    def _new_pair(self, model: str, tenant: str) -> LedgerRow:
        if len(self._pairs) == MAX_PAIRS:
            self._move()
        row = self._pairs[model, tenant] = LedgerRow()
        return row

    def count(self, counter: str, times: int = 1) -> None:
        """Count an event that belongs to no row."""
        with self._lock:
            self._counters[counter] = self._counters.get(counter, 0) + times

    def _move(self) -> None:
        for (model, tenant), pair in self._pairs.items():
            pair.requests = sum(getattr(pair, outcome) for outcome in OUTCOMES)
            for row in (self._total, self._row(self._models, model), self._row(self._tenants, tenant)):
                for name in FIELDS:
                    setattr(row, name, getattr(row, name) + getattr(pair, name))
        self._pairs = {}

    @staticmethod
    def _row(rows: dict[str, LedgerRow], label: str) -> LedgerRow:
        found = rows.get(label)
        if found is None:
            label = label if len(rows) < MAX_LABELS else OTHER
            found = rows.setdefault(label, LedgerRow())
        return found

    def after_fork(self) -> None:
        """Start empty in a child process, with a lock that no thread of the parent holds."""
        self.__init__()  # type: ignore[misc]

    def report(self) -> dict[str, Any]:
        """Return the total, all counters, and the rows by model and by tenant."""
        with self._lock:
            self._move()
            return {
                **asdict(self._total),
                **self._counters,
                "by_model": {label: asdict(row) for label, row in self._models.items()},
                "by_tenant": {label: asdict(row) for label, row in self._tenants.items()},
            }

    def check(self) -> None:
        """Raise CorruptState unless outcomes sum to requests, and rows to the total."""
        with self._lock:
            self._move()
            for rows in (self._models, self._tenants):
                for field in fields(LedgerRow):
                    derived = sum(getattr(row, field.name) for row in rows.values())
                    total = getattr(self._total, field.name)
                    exact = field.name in EXACT
                    if derived != total if exact else abs(derived - total) > 1e-6 * max(1.0, abs(total)):
                        raise CorruptState(f"{field.name}: the total is {total}, and rows sum to {derived}")
            for row in (self._total, *self._models.values(), *self._tenants.values()):
                if row.requests != sum(getattr(row, outcome) for outcome in OUTCOMES):
                    raise CorruptState(f"outcomes do not sum to requests: {row}")
