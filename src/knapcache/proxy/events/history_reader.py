"""Sums and charts from the rows of histories: days, models and tenants, and the points of charts.

Rows of several histories are added: rows of the same minute, hour, day, model or tenant become one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import date, datetime, tzinfo
from datetime import time as clock_time
from typing import Any, NamedTuple

from knapcache.proxy.events.feature_sums import TotalsClasses
from knapcache.proxy.events.history_file import MAX_DAYS, HistoryTable
from knapcache.proxy.events.labels import LabelLimiter
from knapcache.proxy.events.usage import UsageRow, sum_rows

MINUTE, HOUR, DAY = 60, 3600, 86_400


class Span(NamedTuple):
    """The points of a chart: how many seconds each, and how many up to now."""

    step: int
    steps: int


SPANS = {"hour": Span(MINUTE, 60), "day": Span(5 * MINUTE, 288), "month": Span(6 * HOUR, 124)}
"""And "all": a point for each day since the first."""


class HistoryReader(ABC):
    """Reads the rows of some tables. Its results are copies."""

    zone: tzinfo | None
    """Time zone of the days; None: the machine's."""
    totals: TotalsClasses
    """Classes for the sums of features that are on."""
    now: Callable[[], float]
    """Returns Unix time."""

    @abstractmethod
    def tables(self) -> Iterator[HistoryTable]:
        """Yield the tables. None may be read after the next one was asked for."""

    @abstractmethod
    def poll_shadows(self) -> None:
        """Add what other policies would have saved since the last poll, and what was evicted."""

    @abstractmethod
    def save(self) -> bool:
        """Write the file if anything has changed. Returns False if it cannot be written; the first time is logged."""

    @property
    def since(self) -> float:
        """When the first history began, Unix time."""
        return min((table.since for table in self.tables() if table.since > 0.0), default=0.0)

    def today(self) -> UsageRow:
        """Return the row since midnight."""
        today = self._today()
        return sum_rows(table.days[today] for table in self.tables() if today in table.days)

    def total(self) -> UsageRow:
        return sum_rows(table.total for table in self.tables())

    def models(self) -> dict[str, UsageRow]:
        return self._named("models")

    def tenants(self) -> dict[str, UsageRow]:
        return self._named("tenants")

    def _named(self, kind: str) -> dict[str, UsageRow]:
        """Return the sum of rows by name. Names beyond the limit of labels are added to "other"."""
        found: dict[str, UsageRow] = {}
        labels = LabelLimiter()
        for table in self.tables():
            for name, row in getattr(table, kind).items():
                found.setdefault(labels.label(name), UsageRow()).add(row)
        return found

    def sums(self, name: str) -> tuple[Any, Any]:
        """Return the sums of a feature that is on, since midnight and since the histories began."""
        day, kind = self._today(), self.totals[name]
        today, total = kind(), kind()
        for table in self.tables():
            if (sums := table.sums.get(name)) is not None:
                total.add(sums.total)
                if sums.day == day:
                    today.add(sums.today)
        return today, total

    def points(self, span: str) -> tuple[int, list[tuple[float, UsageRow]]]:
        """Return the seconds between two points, and start time and row of each. Times without requests are zero.

        span: one of SPANS, or "all".
        """
        if span == "all":
            return DAY, self._daily_points()
        step, steps = SPANS[span]
        last = int(self.now() // step)
        points = {k: UsageRow() for k in range(last - steps + 1, last + 1)}
        for table in self.tables():
            rows, unit = (table.minutes, MINUTE) if step < HOUR else (table.hours, HOUR)
            for k, row in rows.items():
                point = points.get(k * unit // step)
                if point is not None:
                    point.add(row)
        return step, [(float(k * step), row) for k, row in points.items()]

    def _daily_points(self) -> list[tuple[float, UsageRow]]:
        days = {self._today(): UsageRow()}
        for table in self.tables():
            for day, row in table.days.items():
                days.setdefault(day, UsageRow()).add(row)
        last = max(days)
        first = max(last - MAX_DAYS + 1, min(days))  # a clock that was once at 1970 makes no endless chart
        points = {day: days.pop(day, UsageRow()) for day in range(first, last + 1)}
        for row in days.values():
            points[first].add(row)
        midnights = (datetime.combine(date.fromordinal(day), clock_time(), self.zone) for day in points)
        return [(midnight.timestamp(), row) for midnight, row in zip(midnights, points.values(), strict=True)]

    def _today(self) -> int:
        return datetime.fromtimestamp(self.now(), self.zone).date().toordinal()
