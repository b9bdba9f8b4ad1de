"""Health of the upstreams, from the calls of all processes.

calls     every call, retries included
errors    calls without a response, or with a status of 500 or more
state     failing once the last FAILURES calls were all errors, ok otherwise
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from knapcache.serve.observe.events import Event

FAILURES = 3
"""Errors in a row that make an upstream `failing`."""


class CallCounts:
    """Calls of one upstream."""

    __slots__ = ("calls", "errors", "errors_in_a_row")

    def __init__(self) -> None:
        self.calls = self.errors = self.errors_in_a_row = 0

    def count(self, status: int) -> None:
        """Count one call; status 0: no response came."""
        self.calls += 1
        if status == 0 or status >= 500:
            self.errors += 1
            self.errors_in_a_row += 1
        else:
            self.errors_in_a_row = 0


class UpstreamHealth:
    """Call counts of the configured upstreams, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._upstreams = {name: CallCounts() for name in names}

    def consume(self, events: Sequence[Event]) -> None:
        """Count the calls that these requests have made."""
        for event in events:
            if event.attempts and (counts := self._upstreams.get(event.upstream)) is not None:
                for status in event.attempts:
                    counts.count(status)

    def report(self) -> list[dict[str, Any]]:
        """Return one row for each upstream, in the order of the settings."""
        return [
            {
                "name": name,
                "state": "failing" if counts.errors_in_a_row >= FAILURES else "ok",
                "calls": counts.calls,
                "errors": counts.errors,
            }
            for name, counts in self._upstreams.items()
        ]
