"""The most recent matches of the semantic tier, by id: for the dashboard, and for feedback on one of them.

A match becomes known with the event of its request. Its verdict follows when it is judged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from knapcache.features.semantic.event import SemanticEvent, VerdictEvent
from knapcache.proxy.events.events import Event

MAX_MATCHES = 10_000
"""Matches that are known. One takes about 1 kB, and 1 kB more if the setting `show_content` is on."""


class RecentMatch(NamedTuple):
    """A match and when its request arrived, Unix time."""

    time: float
    match: SemanticEvent


class RecentMatches:
    """The last MAX_MATCHES matches of all processes of this proxy."""

    def __init__(self, limit: int = MAX_MATCHES) -> None:
        self._limit = limit
        self._matches: OrderedDict[str, RecentMatch] = OrderedDict()

    def consume(self, events: Sequence[Event]) -> None:
        """Add the matches of a batch."""
        for event in events:
            match = event.parts.get("semantic")
            if match is not None and match.match_id:
                self._matches[match.match_id] = RecentMatch(event.time, match)
                if len(self._matches) > self._limit:
                    self._matches.popitem(last=False)

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        """Add the verdicts on matches that are known."""
        for verdict in verdicts:
            found = self._matches.get(verdict.match_id)
            if found is not None:
                judged = found.match._replace(verdict=verdict.verdict, rung=verdict.rung, judge_usd=verdict.judge_usd)
                self._matches[verdict.match_id] = found._replace(match=judged)

    def find(self, match_id: str) -> RecentMatch | None:
        """Return the match of an id, or None."""
        return self._matches.get(match_id)

    def newest(self, limit: int, scope: str | None = None) -> list[RecentMatch]:
        """Return the newest matches, newest first, of one scope or of all."""
        found = (one for one in reversed(self._matches.values()) if scope in (None, one.match.scope))
        return list(islice(found, limit))

    def check(self) -> None:
        """Raise ValueError unless every match is under its id and the bound holds."""
        if len(self._matches) > self._limit or any(name != one.match.match_id for name, one in self._matches.items()):
            raise ValueError("recent matches are inconsistent")
