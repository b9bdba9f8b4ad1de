"""The rows of a history, and how they are written down: one JSON document, read as carefully as anything from outside.

    {"version": 1, "since": t, "total": row, "models": {name: row}, "tenants": …, "minutes": {number: row}, "hours": …,
     "days": …}

A minute's number is its Unix time by 60, an hour's by 3600, a day's that of its date in the calendar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import orjson

from knapcache.errors import CorruptState, InvalidInput
from knapcache.serve.observe.usage import NUMBERS, UsageRow, read_row, total

VERSION = 1
MOST_LABELS = 200
"""Names of models and of tenants come from outside: later ones share a row."""
OTHER = "other"
LONGEST = 120
"""Characters of a name."""
MINUTES, HOURS = 26 * 60, 32 * 24
"""How many are kept: a day and a month, and what a day may be longer when clocks change."""
LAST_DAY = date.max.toordinal()
DAYS = 4000
"""Eleven years; older days are added to the oldest."""


@dataclass
class HistoryTable:
    """Every row there is."""

    since: float
    total: UsageRow = field(default_factory=UsageRow)
    models: dict[str, UsageRow] = field(default_factory=dict)
    tenants: dict[str, UsageRow] = field(default_factory=dict)
    minutes: dict[int, UsageRow] = field(default_factory=dict)
    hours: dict[int, UsageRow] = field(default_factory=dict)
    days: dict[int, UsageRow] = field(default_factory=dict)

    def add(self, row: UsageRow, minute: int, hour: int, day: int) -> None:
        """To the total, and to these."""
        self.total.add(row)
        _at(self.minutes, minute, MINUTES).add(row)
        _at(self.hours, hour, HOURS).add(row)
        self.days.setdefault(day, UsageRow()).add(row)
        while len(self.days) > DAYS:
            oldest, next_oldest, *_ = sorted(self.days)
            self.days[next_oldest].add(self.days.pop(oldest))

    def check(self) -> None:
        """Each of the divisions sums to the total; the shadows belong to no model and no tenant."""
        for what, rows in (("days", self.days), ("models", self.models), ("tenants", self.tenants)):
            derived = total(rows.values())
            derived.check()
            pairs = {name: (getattr(self.total, name), getattr(derived, name)) for name in NUMBERS}
            if rows is self.days:
                names = {**self.total.shadows, **derived.shadows}
                pairs |= {name: (self.total.shadows.get(name, 0.0), derived.shadows.get(name, 0.0)) for name in names}
            for name, (kept, found) in pairs.items():
                if not math.isclose(kept, found, rel_tol=1e-6, abs_tol=1e-6):
                    raise CorruptState(f"{name}: in all {kept}, but the {what} sum to {found}")


def _at(rows: dict[int, UsageRow], number: int, most: int) -> UsageRow:
    """The row of a step. A new one makes those leave that are too old, and those a clock set back has left ahead."""
    found = rows.get(number)
    if found is None:
        for old in [k for k in rows if not number - most < k < number + most]:
            del rows[old]
        found = rows[number] = UsageRow()
    return found


def label(rows: dict[str, UsageRow], name: str) -> UsageRow:
    """The row of a name; what has no room shares one."""
    found = rows.get(name)
    if found is None:
        name = name[:LONGEST].encode("utf-8", "replace").decode()  # JSON has no lone surrogates
        found = rows.setdefault(name if name in rows or len(rows) < MOST_LABELS else OTHER, UsageRow())
    return found


def pack(books: HistoryTable) -> bytes:
    """The document."""

    def rows(of: dict[Any, UsageRow]) -> dict[str, Any]:
        return {str(k): row.plain() for k, row in of.items()}

    return orjson.dumps(
        {
            "version": VERSION,
            "since": books.since,
            "total": books.total.plain(),
            "models": rows(books.models),
            "tenants": rows(books.tenants),
            "minutes": rows(books.minutes),
            "hours": rows(books.hours),
            "days": rows(books.days),
        }
    )


def unpack(text: bytes) -> HistoryTable:
    """From `pack`; InvalidInput for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InvalidInput(f"not a history of version {VERSION}")
    since: Any = found.get("since")
    if type(since) not in (int, float) or not 0 <= since < 1e11:
        raise InvalidInput("since must be Unix time")
    books = HistoryTable(
        float(since),
        read_row(found.get("total")),
        _named(found.get("models"), MOST_LABELS + 1),
        _named(found.get("tenants"), MOST_LABELS + 1),
        _numbered(found.get("minutes"), 2 * MINUTES, LAST_DAY * 24 * 60),
        _numbered(found.get("hours"), 2 * HOURS, LAST_DAY * 24),
        _numbered(found.get("days"), DAYS, LAST_DAY),
    )
    try:
        books.check()
    except CorruptState as error:
        raise InvalidInput(str(error)) from None
    return books


def _named(plain: Any, most: int) -> dict[str, UsageRow]:
    if not isinstance(plain, dict) or len(plain) > most:
        raise InvalidInput(f"rows must be at most {most} by name")
    return {name: read_row(row) for name, row in plain.items()}


def _numbered(plain: Any, most: int, last: int) -> dict[int, UsageRow]:
    named = _named(plain, most)
    if not all(name.isascii() and name.isdigit() and len(name) < 12 and 0 < int(name) <= last for name in named):
        raise InvalidInput("steps must have numbers")
    return {int(name): row for name, row in named.items()}
