"""The most recent requests, for the dashboard.

Every request has a serial number, which grows by one. The page asks for requests after the last serial it has seen. A
serial larger than ours comes from a former owner process: then all recent requests are returned.

Proxies of a shared store number their requests by time, in microseconds: so the page can ask any of them.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from knapcache.proxy.events.events import Event, shortened

MAX_RECENT = 1000
UNLISTED = frozenset({"attempts", "open_until", "parts", "reason", "trace", "tried"})
FIELDS = (*(name for name in Event._fields if name not in UNLISTED), "saved")


class RecentReader(ABC):
    """Reads recent requests: those of one proxy, or of all that share a store (published.py)."""

    @abstractmethod
    def listed(self, limit: int) -> list[tuple[int, Event, str]]:
        """Return serial, event and host of requests, oldest first: at least the newest `limit` of them; 0: all."""

    @abstractmethod
    def after(self, serial: int, limit: int) -> dict[str, Any]:
        """Return the newest `limit` requests whose serial is larger, and the serial for the next call."""

    def page(self, serial: int, after: int, limit: int) -> dict[str, Any]:
        """Return a result of `after`. Rows are in the order of arrival, serials in that in which requests finished."""
        rows = [row_of(*one) for one in self.listed(limit)[-limit:] if one[0] > after]
        return {"serial": serial, "rows": sorted(rows, key=operator.itemgetter("time"))}

    def newest(self, limit: int) -> list[tuple[int, Event]]:
        """Return serial and event of the newest requests, oldest first."""
        return [(serial, event) for serial, event, _ in self.listed(limit)[-limit:]]

    def find(self, serial: int) -> tuple[Event, str] | None:
        """Return the request of a serial, and the host of the proxy that served it; empty: this one."""
        return next(((event, host) for number, event, host in self.listed(0) if number == serial), None)

    def earlier(self, event: Event) -> list[Event]:
        """Return the requests for the same key that arrived before this one, oldest first."""
        found = [one for _, one, _ in self.listed(0) if one.key == event.key and one.time < event.time]
        return sorted(found, key=operator.attrgetter("time"))


class RecentRequests(RecentReader):
    """The last MAX_RECENT events of all processes. clock: Unix time, to number them by it; None: from 1 on."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._events: deque[tuple[int, Event, str]] = deque(maxlen=MAX_RECENT)
        self._clock = clock
        self.serial = 0

    def consume(self, events: Sequence[Event]) -> None:
        for event in events:
            self.serial = self.serial + 1 if self._clock is None else max(self.serial + 1, serial_at(self._clock()))
            self._events.append((self.serial, shortened(event) if event.parts else event, ""))

    def listed(self, limit: int) -> list[tuple[int, Event, str]]:
        return list(self._events)[-limit:]

    def after(self, serial: int, limit: int) -> dict[str, Any]:
        return self.page(self.serial, serial if serial <= self.serial else 0, limit)


def serial_at(now: float) -> int:
    return int(now * 1e6)


def row_of(serial: int, event: Event, proxy: str = "") -> dict[str, Any]:
    """Return a request as it is listed. proxy: host of the proxy that served it, with a shared store."""
    row = {"serial": serial} | {name: getattr(event, name) for name in FIELDS}
    return row | {"proxy": proxy} if proxy else row
