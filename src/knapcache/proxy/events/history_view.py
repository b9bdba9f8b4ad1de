"""Sums and charts from the rows of histories: days, models and tenants, and the points of charts.

Rows of several histories are added: rows of the same minute, hour, day, model or tenant become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, tzinfo
from datetime import time as clock_time
from typing import NamedTuple

from knapcache.errors import InvalidInput
from knapcache.features.prefix.totals import PrefixTotals
from knapcache.features.semantic.totals import SemanticTotals
from knapcache.proxy.events.history_file import MAX_DAYS, HistoryTable
from knapcache.proxy.events.labels import LabelLimiter
from knapcache.proxy.events.usage import UsageRow, sum_rows

MINUTE, HOUR, DAY = 60, 3600, 86_400
Points = tuple[int, list[tuple[float, UsageRow]]]


class Span(NamedTuple):
    """The points of a chart: how many seconds each, and how many up to now."""

    step: int
    steps: int


SPANS = {"hour": Span(MINUTE, 60), "day": Span(5 * MINUTE, 288), "month": Span(6 * HOUR, 124)}
"""And "all": a point for each day since the first."""


class HistoryView:
    """The rows of some tables. Its results are copies. zone: time zone of the days; None: the machine's."""

    def __init__(self, tables: Sequence[HistoryTable], zone: tzinfo | None = None) -> None:
        self._tables, self._zone = tables, zone

    def today(self, now: float) -> UsageRow:
        """Return the row since midnight."""
        today = self._day(now).toordinal()
        return sum_rows(table.days[today] for table in self._tables if today in table.days)

    def total(self, _now: float = 0.0) -> UsageRow:
        """Return the row since the histories began."""
        return sum_rows(table.total for table in self._tables)

    def models(self, _now: float = 0.0) -> dict[str, UsageRow]:
        """Return the total by model."""
        return add_named(table.models for table in self._tables)

    def tenants(self, _now: float = 0.0) -> dict[str, UsageRow]:
        """Return the total by tenant."""
        return add_named(table.tenants for table in self._tables)

    def prefix(self, now: float) -> tuple[PrefixTotals, PrefixTotals]:
        """Return the sums of providers' prompt caches, since midnight and since the histories began."""
        today, total, day = PrefixTotals(), PrefixTotals(), self._day(now).toordinal()
        for table in self._tables:
            total.add(table.prefix)
            if table.prefix_day == day:
                today.add(table.prefix_today)
        return today, total

    def semantic(self, now: float) -> tuple[SemanticTotals, SemanticTotals]:
        """Return the sums of the semantic tier, since midnight and since the histories began."""
        today, total, day = SemanticTotals(), SemanticTotals(), self._day(now).toordinal()
        for table in self._tables:
            total.add(table.semantic)
            if table.semantic_day == day:
                today.add(table.semantic_today)
        return today, total

    def points(self, span: str, now: float) -> Points:
        """Return the seconds between two points, and start time and row of each. Times without requests are zero."""
        if span == "all":
            return DAY, self._daily_points(now)
        if span not in SPANS:
            raise InvalidInput(f"span must be one of {', '.join([*SPANS, 'all'])}, not {span[:40]!r}")
        step, steps = SPANS[span]
        last = int(now // step)
        points = {k: UsageRow() for k in range(last - steps + 1, last + 1)}
        for table in self._tables:
            rows, unit = (table.minutes, MINUTE) if step < HOUR else (table.hours, HOUR)
            for k, row in rows.items():
                point = points.get(k * unit // step)
                if point is not None:
                    point.add(row)
        return step, [(float(k * step), row) for k, row in points.items()]

    def _daily_points(self, now: float) -> list[tuple[float, UsageRow]]:
        today = self._day(now).toordinal()
        known = [day for table in self._tables for day in table.days]
        last = max([today, *known])
        first = max(last - MAX_DAYS + 1, min([today, *known]))  # a clock that was once at 1970 makes no endless chart
        points = {day: UsageRow() for day in range(first, last + 1)}
        for table in self._tables:
            for day, row in table.days.items():
                points[max(first, day)].add(row)
        return [(self._midnight(date.fromordinal(day)), row) for day, row in points.items()]

    def _day(self, now: float) -> date:
        return datetime.fromtimestamp(now, self._zone).date()

    def _midnight(self, day: date) -> float:
        return datetime.combine(day, clock_time(), self._zone).timestamp()


def add_named(tables: Iterable[dict[str, UsageRow]]) -> dict[str, UsageRow]:
    """Return the sum of rows by name. Names beyond the limit of labels are added to "other"."""
    found: dict[str, UsageRow] = {}
    labels = LabelLimiter()
    for rows in tables:
        for name, row in rows.items():
            found.setdefault(labels.label(name), UsageRow()).add(row)
    return found


def add_points(one: Points, other: Points) -> Points:
    """Return the sum of two charts of the same span and time. Charts of all days may begin on different days."""
    step, found = one[0], dict(one[1])
    for at, row in other[1]:
        found.setdefault(at, UsageRow()).add(row)
    return step, sorted(found.items())
