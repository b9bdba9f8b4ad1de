"""Sums of features in the history: each feature counts its parts of events with a class of its own (`Feature.totals`).

The history keeps them in total and for one day, and knows of a feature only its name and that class. Of a feature that
is off it keeps what the file has.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Self, TypeVar

from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.labels import printable

LAST_DAY = date.max.toordinal()

T = TypeVar("T")
N = TypeVar("N", int, float)


class FeatureTotals(ABC):
    """Sums of one feature over some requests. An object without arguments is the sum of none."""

    __slots__ = ()

    @abstractmethod
    def count(self, event: Event) -> None:
        """Add a request whose event has a part of the feature."""

    def count_note(self, note: Any) -> None:  # noqa: B027
        """Add a note of the feature. Not every feature has notes."""

    @abstractmethod
    def add(self, other: Any) -> None:
        """Add all requests of other sums."""

    @abstractmethod
    def __bool__(self) -> bool:
        """Whether anything was counted."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the sums for the history file."""

    @classmethod
    @abstractmethod
    def from_json(cls, value: Any) -> Self:
        """Return the sums of `to_json`. Raises InvalidInput for anything else."""


TotalsClasses = Mapping[str, type[FeatureTotals]]
"""By name of the feature."""


@dataclass
class FeatureSums:
    """The sums of one feature."""

    total: FeatureTotals
    today: FeatureTotals
    day: int = 0
    """Ordinal of the date of `today`."""

    @classmethod
    def new(cls, kind: type[FeatureTotals]) -> FeatureSums:
        """Return the sums of no request."""
        return cls(kind(), kind())

    def add(self, more: FeatureTotals, day: int) -> None:
        """Add to the total, and to the sums of a day. Other days are forgotten."""
        self.total.add(more)
        if day != self.day:
            self.day, self.today = day, type(more)()
        self.today.add(more)

    def to_json(self) -> dict[str, Any]:
        return {"total": self.total.to_json(), "day": self.day, "today": self.today.to_json()}

    @classmethod
    def from_json(cls, name: str, kind: type[FeatureTotals], value: Any) -> FeatureSums:
        """Return the sums of `to_json`. Raises InvalidInput for anything else. name: that of the feature."""
        day = value.get("day") if isinstance(value, dict) else None
        if type(day) is not int or not 0 <= day <= LAST_DAY:
            raise InvalidInput(f"{name} must have a day from 0 to {LAST_DAY}, not {str(day)[:40]!r}")
        return cls(kind.from_json(value.get("total")), kind.from_json(value.get("today")), day)


# Sums.


def add_numbers(total: Any, more: Any, names: Iterable[str]) -> None:
    """Add fields of an object to those of another one."""
    for name in names:
        if number := getattr(more, name):
            setattr(total, name, getattr(total, name) + number)


def add_counts(total: dict[str, N], more: Mapping[str, N]) -> None:
    """Add numbers by name."""
    for name, number in more.items():
        total[name] = total[name] + number if name in total else number


# Readers of values in the file. They raise ValueError for others.


def read_names(value: Any, limit: int, read: Callable[[Any], T]) -> dict[str, T]:
    if not isinstance(value, dict) or len(value) > limit or any(name != printable(name) for name in value):
        raise ValueError(f"an object with at most {limit} names is needed")
    return {name: read(one) for name, one in value.items()}


def read_count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a whole number, 0 or more, is needed, not {str(value)[:40]!r}")
    return value


def read_amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"a number, 0 or more, is needed, not {str(value)[:40]!r}")
    return float(value)
