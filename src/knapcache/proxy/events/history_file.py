"""The rows of a history, and its file: one JSON document, validated like any other input.

    {"version": 5, "since": t, "total": row, "models": {name: row}, "tenants": …, "minutes": {number: row}, "hours": …,
     "days": …, feature: {"total": sums, "day": number, "today": sums}}

Sums of a feature stand under its name (feature_sums.py). Those of a feature that is off are written as they were read.

Version 1 had rows without the fields from `tokens_spent` on, versions 2 and 3 without those from `similar` on, and
version 4 without `usd_estimated`. All of them are still read.

A minute's number is its Unix time / 60, an hour's its Unix time / 3600, a day's the ordinal of its date.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from knapcache.errors import CorruptState, InvalidInput
from knapcache.proxy.events.feature_sums import LAST_DAY, FeatureSums, TotalsClasses
from knapcache.proxy.events.labels import MAX_LABELS
from knapcache.proxy.events.usage import NUMBERS, TIMES_ONLY, UsageRow, sum_rows

VERSION = 5
NUMBERS_OF_VERSION = {
    1: NUMBERS.index("tokens_spent"),
    2: NUMBERS.index("similar"),
    3: NUMBERS.index("similar"),
    4: NUMBERS.index("usd_estimated"),
    VERSION: len(NUMBERS),
}
"""Numbers in a row, by version of the file."""
MAX_MINUTES, MAX_HOURS = 26 * 60, 32 * 24
"""Rows kept: a day of minutes and a month of hours, and some more because days with a clock change are longer."""
MAX_DAYS = 4000
"""Eleven years. Older days are added to the oldest one."""
ROWS = ("models", "tenants", "minutes", "hours", "days")
CORE = frozenset({"version", "since", "total", *ROWS})
"""Names in the document that are not features."""
NO_TOTALS: TotalsClasses = MappingProxyType({})


@dataclass
class HistoryTable:
    """All rows of a history."""

    since: float
    """Unix time of the first row."""
    total: UsageRow = field(default_factory=UsageRow)
    models: dict[str, UsageRow] = field(default_factory=dict)
    tenants: dict[str, UsageRow] = field(default_factory=dict)
    minutes: dict[int, UsageRow] = field(default_factory=dict)
    hours: dict[int, UsageRow] = field(default_factory=dict)
    days: dict[int, UsageRow] = field(default_factory=dict)
    sums: dict[str, FeatureSums] = field(default_factory=dict)
    """By name of the feature, of those that are on."""
    unread: dict[str, Any] = field(default_factory=dict)
    """What the file has under other names: sums of features that are off."""

    def add(self, row: UsageRow, minute: int, hour: int, day: int) -> None:
        """Add a row to the total and to the rows of these times."""
        self.total.add(row)
        _row_at(self.minutes, minute, MAX_MINUTES).add(row)
        _row_at(self.hours, hour, MAX_HOURS).add(row)
        self.days.setdefault(day, UsageRow()).add(row)
        while len(self.days) > MAX_DAYS:
            oldest, next_oldest, *_ = sorted(self.days)
            self.days[next_oldest].add(self.days.pop(oldest))

    def check(self) -> None:
        """Raise CorruptState unless days, models and tenants each add up to the total. Only days have shadows."""
        for what, rows in (("days", self.days), ("models", self.models), ("tenants", self.tenants)):
            derived = sum_rows(rows.values())
            derived.check()
            compared = NUMBERS if rows is self.days else [name for name in NUMBERS if name not in TIMES_ONLY]
            pairs = {name: (getattr(self.total, name), getattr(derived, name)) for name in compared}
            if rows is self.days:
                names = {**self.total.shadows, **derived.shadows}
                pairs |= {name: (self.total.shadows.get(name, 0.0), derived.shadows.get(name, 0.0)) for name in names}
            for name, (total, found) in pairs.items():
                if not math.isclose(total, found, rel_tol=1e-6, abs_tol=1e-6):
                    raise CorruptState(f"{name}: the total is {total}, but the {what} add up to {found}")


def _row_at(rows: dict[int, UsageRow], number: int, limit: int) -> UsageRow:
    """Return the row of a time. A new one removes rows that are too old, and those that a clock set back left ahead."""
    row = rows.get(number)
    if row is None:
        for outdated in [k for k in rows if not number - limit < k < number + limit]:
            del rows[outdated]
        row = rows[number] = UsageRow()
    return row


def pack(table: HistoryTable) -> bytes:
    """Return the document."""
    return orjson.dumps(
        {
            "version": VERSION,
            "since": table.since,
            "total": table.total.to_list(),
            **{kind: {str(k): row.to_list() for k, row in getattr(table, kind).items()} for kind in ROWS},
            **table.unread,
            **{name: sums.to_json() for name, sums in table.sums.items()},
        }
    )


def unpack(document: bytes, totals: TotalsClasses = NO_TOTALS, *, whole: bool = True) -> HistoryTable:
    """Return the table of `pack`, also of an older version. Raises InvalidInput for anything else.

    totals   classes for the sums of features. Other sums stay as they are
    whole    days, models and tenants must add up to the total. False: it is a part (shared_documents.py), of which
             sums of other features are dropped
    """
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    version = found.get("version") if isinstance(found, dict) else None
    numbers = NUMBERS_OF_VERSION.get(version) if type(version) is int else None
    if numbers is None or version is None:
        raise InvalidInput(f"not a history of version {' or '.join(map(str, NUMBERS_OF_VERSION))}")
    since: Any = found.get("since")
    if type(since) not in (int, float) or not 0 <= since < 1e11:
        raise InvalidInput(f"since must be Unix time, not {str(since)[:40]!r}")
    table = HistoryTable(
        since=float(since),
        total=UsageRow.from_list(found.get("total"), numbers),
        models=_unpack_named(found.get("models"), numbers, MAX_LABELS + 1),
        tenants=_unpack_named(found.get("tenants"), numbers, MAX_LABELS + 1),
        minutes=_unpack_numbered(found.get("minutes"), numbers, 2 * MAX_MINUTES, LAST_DAY * 24 * 60),
        hours=_unpack_numbered(found.get("hours"), numbers, 2 * MAX_HOURS, LAST_DAY * 24),
        days=_unpack_numbered(found.get("days"), numbers, MAX_DAYS, LAST_DAY),
    )
    for name in found.keys() - CORE:
        if name in totals:
            table.sums[name] = FeatureSums.from_json(name, totals[name], found[name])
        elif whole:
            table.unread[name] = found[name]
    try:
        if whole:
            table.check()
    except CorruptState as error:
        raise InvalidInput(str(error)) from None
    return table


def _unpack_named(rows: Any, numbers: int, limit: int) -> dict[str, UsageRow]:
    if not isinstance(rows, dict) or len(rows) > limit:
        raise InvalidInput(f"rows must be an object with at most {limit} names")
    return {name: UsageRow.from_list(row, numbers) for name, row in rows.items()}


def _unpack_numbered(rows: Any, numbers: int, limit: int, last: int) -> dict[int, UsageRow]:
    named = _unpack_named(rows, numbers, limit)
    if not all(name.isascii() and name.isdigit() and len(name) < 12 and 0 < int(name) <= last for name in named):
        raise InvalidInput(f"minutes, hours and days must be numbers from 1 to {last}")
    return {int(name): row for name, row in named.items()}
