"""What is known of a request of a conversation: its class for return times, and what it continues."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from knapcache.prefix.returns import ReturnCurve, ReturnTimes

TURNS = (1, 3, 10)
GAPS = (0.0, 30.0, 120.0, 300.0, 1200.0)
SIZES = (500, 2000, 8000, 32_000)


class Turn(NamedTuple):
    """A request of a conversation that may be continued."""

    time: float
    end: int
    number: int
    """How many requests it continues, one after the other."""


class Conversations:
    """Follows conversations, and learns how soon they are continued."""

    def __init__(self, minimum: int) -> None:
        self._minimum = minimum
        self._returns = ReturnTimes()
        self.turns: dict[Hashable, Turn] = {}

    def observe(
        self, key: Hashable, parent: Hashable | None, shared: int, end: int, kind: str, now: float
    ) -> ReturnCurve:
        """Count a request, and return how likely it is continued within some time.

        It continues its parent if it begins with all of it. One that shares less has another history from there on.
        """
        returns = self._returns
        returns.advance(now)
        before = self.turns.get(parent) if parent is not None else None
        gap, number, continues = -1.0, 0, False
        if before is not None:
            gap, continues = now - before.time, shared >= before.end
            if continues:
                returns.end(parent, now)
                number = before.number + 1
        self.turns[key] = Turn(now, end, number)
        classes = classes_of(kind, number, continues, gap, end - (shared if continues else 0))
        if end >= self._minimum:
            returns.begin(key, classes, now)
        return returns.curve(classes)


def classes_of(kind: str, number: int, continues: bool, gap: float, new: int) -> Sequence[Hashable]:
    """Return the classes of a request, from the general to the special."""
    turn, pause, size = bisect.bisect(TURNS, number), bisect.bisect(GAPS, gap), bisect.bisect(SIZES, new)
    return "all", kind, (kind, min(number, 1), continues), (kind, turn, pause), (kind, turn, pause, size)
