"""The most recent requests, for a page that shows them live.

Every request has a serial number, which grows by one. The page asks for requests after the last serial it has seen. A
serial larger than ours comes from a former owner process: then all recent requests are returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from knapcache.serve.observe.events import Event

MAX_RECENT = 1000
FIELDS = (*(name for name in Event._fields if name not in ("attempts", "trace")), "saved")


class RecentRequests:
    """The last MAX_RECENT events of all processes."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, Event]] = deque(maxlen=MAX_RECENT)
        self.serial = 0

    def consume(self, events: Sequence[Event]) -> None:
        """Number the events and store them."""
        for event in events:
            self.serial += 1
            self._events.append((self.serial, event))

    def after(self, serial: int, limit: int) -> dict[str, Any]:
        """Return the newest `limit` requests whose serial is larger, oldest first."""
        first = max(self.serial - limit, serial if serial <= self.serial else 0)
        rows = [_row(number, event) for number, event in self._events if number > first]
        return {"serial": self.serial, "rows": rows}


def _row(serial: int, event: Event) -> dict[str, Any]:
    return {"serial": serial} | {name: getattr(event, name) for name in FIELDS}
