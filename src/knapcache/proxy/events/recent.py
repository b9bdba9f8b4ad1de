"""The most recent requests, for a page that shows them live.

Every request has a serial number, which grows by one. The page asks for requests after the last serial it has seen. A
serial larger than ours comes from a former owner process: then all recent requests are returned.

Proxies of a shared store number their requests by time, in microseconds: so the page can ask any of them.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from knapcache.proxy.events.events import Event, shortened

MAX_RECENT = 1000
UNLISTED = frozenset({"attempts", "open_until", "parts", "reason", "trace", "tried"})
FIELDS = (*(name for name in Event._fields if name not in UNLISTED), "saved")


class RecentRequests:
    """The last MAX_RECENT events of all processes. clock: Unix time, to number them by it; None: from 1 on."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._events: deque[tuple[int, Event]] = deque(maxlen=MAX_RECENT)
        self._clock = clock
        self.serial = 0

    def consume(self, events: Sequence[Event]) -> None:
        for event in events:
            self.serial = self.serial + 1 if self._clock is None else max(self.serial + 1, serial_at(self._clock()))
            self._events.append((self.serial, shortened(event)))

    def after(self, serial: int, limit: int) -> dict[str, Any]:
        """Return the newest `limit` requests whose serial is larger, in the order in which they arrived."""
        if serial > self.serial:
            serial = 0
        rows = [row_of(number, event) for number, event in self.newest(limit) if number > serial]
        return {"serial": self.serial, "rows": by_arrival(rows)}

    def newest(self, limit: int) -> list[tuple[int, Event]]:
        """Return serial and event of the newest requests, oldest first."""
        return list(self._events)[-limit:]

    def find(self, serial: int) -> tuple[Event, str] | None:
        """Return the request of a serial, and the host of its proxy: empty, because it is this one."""
        return next(((event, "") for number, event in list(self._events) if number == serial), None)

    def earlier(self, event: Event) -> list[Event]:
        """Return the requests for the same key that arrived before this one, oldest first."""
        return earlier(event, [one for _, one in list(self._events)])


def earlier(event: Event, events: Sequence[Event]) -> list[Event]:
    """Return those of the events that were for the same key and arrived earlier, oldest first."""
    found = [one for one in events if one.key == event.key and one.time < event.time]
    return sorted(found, key=lambda one: one.time)


def by_arrival(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order in which the requests arrived. Serials have the order in which they finished."""
    return sorted(rows, key=operator.itemgetter("time"))


def serial_at(now: float) -> int:
    return int(now * 1e6)


def row_of(serial: int, event: Event, proxy: str = "") -> dict[str, Any]:
    """Return a request as it is listed. proxy: host of the proxy that served it, with a shared store."""
    row = {"serial": serial} | {name: getattr(event, name) for name in FIELDS}
    return row | {"proxy": proxy} if proxy else row
