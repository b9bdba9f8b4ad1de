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
FIELDS = (*(name for name in Event._fields if name not in ("attempts", "reason", "trace")), "saved")


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
        rows = [row_of(number, event) for number, event in self._events if number > first]
        return {"serial": self.serial, "rows": rows}

    def find(self, serial: int) -> Event | None:
        """Return the request of a serial, or None."""
        oldest = self.serial - len(self._events) + 1
        return self._events[serial - oldest][1] if oldest <= serial <= self.serial else None

    def earlier(self, event: Event) -> list[Event]:
        """Return the requests for the same key that arrived before this one, oldest first."""
        found = [one for _, one in self._events if one.key == event.key and one.time < event.time]
        return sorted(found, key=lambda one: one.time)


def row_of(serial: int, event: Event) -> dict[str, Any]:
    """Return a request as it is listed."""
    return {"serial": serial} | {name: getattr(event, name) for name in FIELDS}
