"""Events for tests of their consumers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from knapcache.proxy.events.events import Event, PrefixEvent, SemanticEvent, VerdictEvent

ROWS = ("models", "tenants", "minutes", "hours", "days")


class EventList(list[Event]):
    """A consumer that keeps every event."""

    def consume(self, events: Sequence[Event]) -> None:
        self.extend(events)


def event(outcome: str = "hit", **other: Any) -> Event:
    """Return one event with plausible values."""
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
    parts: dict[str, Any] = {name: other.pop(name) for name in ("prefix", "semantic") if name in other}
    return Event(**fields | other, parts=parts)


def prefix_event(**other: Any) -> PrefixEvent:
    """Return what a provider's prompt cache did for a request of 10,000 tokens: 8,000 read, 1,500 written."""
    fields: dict[str, Any] = {
        "mode": "observe",
        "tariff": "anthropic",
        "rule": "learned",
        "own_marks": True,
        "reported": True,
        "input": 10_000,
        "read": 8_000,
        "short_written": 1_000,
        "long_written": 500,
        "predicted": 7_900,
        "bills": {"none": 10_000.0, "last-5m": 3_550.0, "last-1h": 5_800.0, "learned": 2_300.0, "paid": 3_550.0},
        "usd_per_token": 3e-6,
        "tokens": 9_900,
        "positions": ((-7, 2_000), (2**62, 9_900)),
        "system": 0,
        "kind": "tool",
    }
    return PrefixEvent(**fields | other)


def semantic_event(**other: Any) -> SemanticEvent:
    """Return what the semantic tier did with a request that it answered."""
    fields: dict[str, Any] = {
        "kind": "served",
        "match_id": "m-1",
        "scope": "team-a",
        "key": "ab" * 32,
        "matched_key": "cd" * 32,
        "similarity": 0.93,
        "risk": 0.003,
        "level": 0,
        "features": (0.93, 0.5, 1.0),
        "seconds": 0.008,
    }
    return SemanticEvent(**fields | other)


def verdict_event(**other: Any) -> VerdictEvent:
    """Return the verdict on a match in the shadow."""
    fields: dict[str, Any] = {
        "match_id": "m-1",
        "scope": "team-a",
        "kind": "shadow",
        "verdict": "same",
        "rung": "equal",
        "judge_usd": 0.0,
        "time": 1.7e9,
    }
    return VerdictEvent(**fields | other)


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
