"""What happened, in numbers: in all, by model and by tenant.

    requests = hits + coalesced + misses + bypasses + failed          for every row, and rows sum to the total

Spent is what answers cost when they were paid for. Saved is what the answer that was given instead of a call had
cost when it was paid for: what the call would cost today nobody knows. A coalesced request saves as a hit does.
`cost` is in the policy's unit; dollars are counted where they are known.

What is served is counted in one row for each pair of model and tenant first, and moved from there when somebody looks:
hits come most often, and three rows take three times as long.

Names of models and tenants come from outside, so there is room for MOST_LABELS of each; later ones share a row.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from typing import Any

from knapcache.errors import CorruptState
from knapcache.price.meter import Bill

MOST_LABELS = 200
MOST_PAIRS = 1000
OTHER = "other"


@dataclass(slots=True)
class Row:
    """One line of the ledger."""

    requests: int = 0
    hits: int = 0
    coalesced: int = 0
    misses: int = 0
    bypasses: int = 0
    """Requests without a key."""
    failed: int = 0
    """Calls that raised."""
    kept: int = 0
    """Answers taken in."""
    usd_spent: float = 0.0
    usd_saved: float = 0.0
    seconds_spent: float = 0.0
    seconds_saved: float = 0.0
    cost_spent: float = 0.0
    cost_saved: float = 0.0
    bytes_saved: int = 0
    """Of answers that were not sent for."""


COUNTED = ("requests", "hits", "coalesced", "misses", "bypasses", "failed", "kept", "bytes_saved")


class Ledger:
    """Rows, and counters that belong to no row."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Row()
        self._models: dict[str, Row] = {}
        self._tenants: dict[str, Row] = {}
        self._counters: dict[str, int] = {}
        self._served: dict[tuple[str, str], Row] = {}

    def served(self, outcome: str, model: str, tenant: str, bill: Bill, size: int) -> None:
        """An answer was given without a call of its own: a hit, or coalesced."""
        usd, seconds, cost, _ = bill
        with self._lock:
            row = self._served.get((model, tenant))
            if row is None:
                if len(self._served) == MOST_PAIRS:
                    self._move()
                row = self._served[model, tenant] = Row()
            if outcome == "hit":
                row.hits += 1
            else:
                row.coalesced += 1
            if usd is not None:
                row.usd_saved += usd
            row.seconds_saved += seconds
            row.cost_saved += cost
            row.bytes_saved += size

    def passed(self, what: str, model: str, tenant: str) -> None:
        """A request went upstream, or nowhere: misses, bypasses, failed."""
        with self._lock:
            for row in self._rows(model, tenant):
                row.requests += 1
                setattr(row, what, getattr(row, what) + 1)

    def paid(self, model: str, tenant: str, bill: Bill) -> None:
        """An answer came home."""
        with self._lock:
            for row in self._rows(model, tenant):
                row.usd_spent += bill.usd or 0.0
                row.seconds_spent += bill.seconds
                row.cost_spent += bill.cost

    def kept(self, model: str, tenant: str) -> None:
        """And was taken in."""
        with self._lock:
            for row in self._rows(model, tenant):
                row.kept += 1

    def count(self, what: str, times: int = 1) -> None:
        """Something that belongs to no row."""
        with self._lock:
            self._counters[what] = self._counters.get(what, 0) + times

    def _move(self) -> None:
        for (model, tenant), served in self._served.items():
            for row in self._rows(model, tenant):
                row.requests += served.hits + served.coalesced
                row.hits += served.hits
                row.coalesced += served.coalesced
                row.usd_saved += served.usd_saved
                row.seconds_saved += served.seconds_saved
                row.cost_saved += served.cost_saved
                row.bytes_saved += served.bytes_saved
        self._served = {}

    def _rows(self, model: str, tenant: str) -> tuple[Row, Row, Row]:
        return self._total, self._row(self._models, model), self._row(self._tenants, tenant)

    @staticmethod
    def _row(rows: dict[str, Row], label: str) -> Row:
        found = rows.get(label)
        if found is None:
            label = label if len(rows) < MOST_LABELS else OTHER
            found = rows.setdefault(label, Row())
        return found

    def forked(self) -> None:
        """In a child: nobody is here to let go of the lock. The child counts its own."""
        self.__init__()  # type: ignore[misc]

    def report(self) -> dict[str, Any]:
        """All of it."""
        with self._lock:
            self._move()
            return {
                **asdict(self._total),
                **self._counters,
                "by_model": {label: asdict(row) for label, row in self._models.items()},
                "by_tenant": {label: asdict(row) for label, row in self._tenants.items()},
            }

    def check(self) -> None:
        """Outcomes sum to requests, and rows to the total."""
        with self._lock:
            self._move()
            for rows in (self._models, self._tenants):
                for field in fields(Row):
                    derived = sum(getattr(row, field.name) for row in rows.values())
                    kept = getattr(self._total, field.name)
                    exact = field.name in COUNTED
                    if derived != kept if exact else abs(derived - kept) > 1e-6 * max(1.0, abs(kept)):
                        raise CorruptState(f"{field.name}: the ledger says {kept}, its rows sum to {derived}")
            for row in (self._total, *self._models.values(), *self._tenants.values()):
                if row.requests != row.hits + row.coalesced + row.misses + row.bypasses + row.failed:
                    raise CorruptState(f"outcomes do not sum to requests: {row}")
