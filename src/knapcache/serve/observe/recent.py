"""The last requests, for a page that shows them as they come.

Every request has a serial, which grows by one. A page asks for what came after the last serial it knows; one that is
larger than ours is of a process before this one, and gets all there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from knapcache.serve.observe.events import Event

KEPT = 1000
SHOWN = tuple(name for name in Event._fields if name != "trace")


class Recent:
    """A listener of the journal, on the event loop's thread."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, Event]] = deque(maxlen=KEPT)
        self.serial = 0

    def listen(self, events: Sequence[Event]) -> None:
        """These are over."""
        for event in events:
            self.serial += 1
            self._events.append((self.serial, event))

    def after(self, serial: int, limit: int) -> dict[str, Any]:
        """The newest `limit` of those behind a serial, in their order."""
        first = max(self.serial - limit, serial if serial <= self.serial else 0)
        rows = [_row(number, event) for number, event in self._events if number > first]
        return {"serial": self.serial, "rows": rows}


def _row(serial: int, event: Event) -> dict[str, Any]:
    return {"serial": serial} | {name: getattr(event, name) for name in (*SHOWN, "saved")}
