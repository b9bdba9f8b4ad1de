"""Circuit breaker for reads of the store: a disk that does not answer must not delay requests.

    closed      a request waits for its read, at most DEADLINE seconds; then it goes upstream, and the read has failed
                        │ FAILURES in a row
                        ▼
    open        requests do not wait for the disk; they go upstream at once (`skipped`)
                        │ COOLDOWN seconds later, the next read            ▲
                        ▼                                                  │ the probe failed or came too late
    half-open   that read is a probe; its request does not wait for it ────┘
                        │ the probe came in time
                        ▼
                     closed

A read fails when the disk reports an error, or nothing within DEADLINE. That there is no entry is not a failure. A
probe that never returns leaves the breaker half-open and costs its thread. There is one probe at a time, and no request
waits for it: of a hundred requests a second, one that waited for the probe would be one in a hundred.

The breaker does no I/O. The clock is an argument, and the reader reports how each read ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 0.25
"""Seconds that a request waits for its read, from the start of the read."""
FAILURES = 3
"""Failed reads in a row that open the breaker; no more than the threads of the pool that reads (threads.py)."""
COOLDOWN = 1.0
"""Seconds between two probes."""

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"


class Breaker:
    """The state of the reads of one store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = CLOSED
        self.opened = 0
        """How often it has opened."""
        self.skipped = 0
        """Reads that no request waited for."""
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._since = clock()  # when it opened, or the last probe ended

    def allows_read(self) -> bool:
        """Return whether a request may wait for its read, and count it as skipped if not."""
        if self.state is CLOSED:
            return True
        with self._lock:
            self.skipped += 1
        return False

    def start_probe(self) -> bool:
        """Become half-open if a probe is due. Then the caller must read, and call `end_probe`."""
        with self._lock:
            if self.state is not OPEN or self._clock() - self._since < COOLDOWN:
                return False
            self.state = HALF_OPEN
            return True

    def end_probe(self, succeeded: bool) -> None:
        """Close after a successful probe; open again otherwise."""
        with self._lock:
            if self.state is HALF_OPEN:
                self.state = CLOSED if succeeded else OPEN
                self._since, self._failures = self._clock(), 0

    def record(self, succeeded: bool) -> None:
        """Count a read that a request waited for."""
        if succeeded and not self._failures:  # nearly always
            return
        with self._lock:
            self._failures = 0 if succeeded else self._failures + 1
            if self._failures >= FAILURES and self.state is CLOSED:
                self.state, self._since = OPEN, self._clock()
                self.opened += 1

    def stats(self) -> dict[str, Any]:
        """Return the state and the counts."""
        with self._lock:
            return {"state": self.state, "opened": self.opened, "skipped": self.skipped}
