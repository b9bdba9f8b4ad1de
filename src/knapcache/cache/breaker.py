"""A disk that does not answer must not hold up those who only want to know whether it has something.

    closed      reads are waited for, DEADLINE at most each: then the request goes upstream, and the read has failed
                        │ FAILURES in a row
                        ▼
    open        nothing of the disk is waited for; requests go upstream at once (`skipped`)
                        │ COOL seconds later, the next who would read      ▲
                        ▼                                                  │ the probe failed, or came too late
    half-open   its read is a probe, under way; nobody waits for it  ──────┘
                        │ the probe came in time
                        ▼
                     closed

A read fails when the disk says so, or does not say anything within DEADLINE. That something is not there is no failure.
A probe that never comes back leaves the breaker half-open, and costs nothing but its thread. One probe at a time, and
never on anybody's time: of a hundred requests a second, one that had to wait for a probe would be one in a hundred.

Pure but for its lock: the clock comes in, and whoever reads tells how it went.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 0.25
"""Seconds that a request waits for its read, once it is begun."""
FAILURES = 3
"""Failed reads in a row that open the breaker; no more than reads that can be under way at once (aside.py)."""
COOL = 1.0
"""Seconds between two probes."""

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class Breaker:
    """Between those who read and the disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = CLOSED
        self.opened = 0
        """How often it has opened."""
        self.skipped = 0
        """AsyncReads that were not waited for."""
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0  # when it was opened, or the last probe ended

    def admits(self) -> bool:
        """May a read be waited for? Counts those that may not."""
        if self.state is CLOSED:
            return True
        with self._lock:
            self.skipped += 1
        return False

    def probe(self) -> bool:
        """Is it time to look? Then it is half-open, and the caller has to read and tell `probed`."""
        with self._lock:
            if self.state is not OPEN or self._clock() - self._since < COOL:
                return False
            self.state = HALF_OPEN
            return True

    def probed(self, well: bool) -> None:
        """The probe is over."""
        with self._lock:
            if self.state is HALF_OPEN:
                self.state = CLOSED if well else OPEN
                self._since, self._failures = self._clock(), 0

    def read(self, well: bool) -> None:
        """A read that was waited for is over, or nobody waits for it any more."""
        if well and not self._failures:  # as nearly always
            return
        with self._lock:
            self._failures = 0 if well else self._failures + 1
            if self._failures >= FAILURES and self.state is CLOSED:
                self.state, self._since = OPEN, self._clock()
                self.opened += 1

    def stats(self) -> dict[str, Any]:
        """State and counts."""
        with self._lock:
            return {"state": self.state, "opened": self.opened, "skipped": self.skipped}
