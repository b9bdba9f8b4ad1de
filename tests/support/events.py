"""Events for tests of their consumers."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from knapcache.errors import InvalidInput
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.feature_sums import FeatureTotals, add_numbers
from knapcache.proxy.events.usage import NUMBERS, UsageRow

ROWS = ("models", "tenants", "minutes", "hours", "days")


class SamplePart(NamedTuple):
    """The part of a feature `sample`, whose fields are not plain."""

    text: str = ""
    pairs: tuple[tuple[int, int], ...] = ()
    amounts: Mapping[str, float] = MappingProxyType({})

    def shortened(self) -> SamplePart:
        return self._replace(pairs=())

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> SamplePart:
        return cls(**fields | {"pairs": tuple(map(tuple, fields["pairs"]))})


class SampleNote(NamedTuple):
    """A note of the feature `sample`."""

    number: int


@dataclass(slots=True)
class SampleTotals(FeatureTotals):
    """Sums of the feature `sample`."""

    requests: int = 0
    noted: int = 0

    def count(self, event: Event) -> None:
        self.requests += len(event.parts["sample"].text)

    def count_note(self, note: SampleNote) -> None:
        self.noted += note.number

    def add(self, other: SampleTotals) -> None:
        add_numbers(self, other, ("requests", "noted"))

    def __bool__(self) -> bool:
        return bool(self.requests or self.noted)

    def to_json(self) -> dict[str, Any]:
        return {"requests": self.requests, "noted": self.noted}

    @classmethod
    def from_json(cls, value: Any) -> SampleTotals:
        if not isinstance(value, dict) or value.keys() != {"requests", "noted"}:
            raise InvalidInput("sums of samples must have two numbers")
        return cls(**value)


def same_usage(a: UsageRow, b: UsageRow) -> bool:
    """Return whether two rows have the same numbers, up to rounding errors."""
    names = {*a.would(), *b.would()}
    pairs = [(getattr(a, name), getattr(b, name)) for name in NUMBERS]
    pairs += [(a.would().get(name, 0.0), b.would().get(name, 0.0)) for name in names]
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in pairs)


class EventList(list[Event]):
    """A consumer that keeps every event."""

    def consume(self, events: Sequence[Event]) -> None:
        self.extend(events)


def event(outcome: str = "hit", **other: Any) -> Event:
    """Return one event with plausible values. Other names than those of its fields are parts of features."""
    fields: dict[str, Any] = {
        "time": 1.7e9,
        "endpoint": "chat/completions",
        "model": "gpt-4o",
        "tenant": "team-a",
        "outcome": outcome,
        "status": 200,
        "seconds": 0.25,
        "ttfb": 0.125,
        "stream": False,
        "key": "ab" * 32,
        "size": 2000,
        "cost": 0.5,
        "usd": 0.5,
        "upstream_seconds": 2.0,
        "upstream": "" if outcome == "hit" else "openai",
        "attempts": (200,) if outcome == "miss" else (),
    }
    parts = {name: other.pop(name) for name in list(other) if name not in Event._fields}
    return Event(**fields | other, parts=parts)


def older_document(document: dict[str, Any], version: int, *without: str) -> dict[str, Any]:
    """Return a history document as versions before 4 wrote it: rows without their last two numbers."""

    def row(values: list[Any]) -> list[Any]:
        numbers = [one for one in values if not isinstance(one, dict)]
        return [*numbers[:-2], *values[len(numbers) :]]

    rows = {kind: {name: row(values) for name, values in document[kind].items()} for kind in ROWS}
    kept = {name: value for name, value in document.items() if name not in without}
    return kept | rows | {"version": version, "total": row(document["total"])}


def traffic(count: int, seed: int = 0) -> list[Event]:
    """Return hits and misses of a few hundred keys, some of them much more frequent than others."""
    draw = random.Random(seed)
    seen: set[int] = set()
    found = []
    for k in range(count):
        number = int(draw.paretovariate(0.7))
        outcome = "hit" if number in seen else "miss"
        seen.add(number)
        key = hashlib.sha256(b"%d" % number).hexdigest()
        size, cost = 500 + number % 5000, (1 + number % 7) / 1000
        found.append(event(outcome, time=1.7e9 + k, key=key, size=size, cost=cost, usd=cost))
    return found
