"""Passive health of one upstream, from the results of real requests in this process. Groups use it to choose.

    HEALTHY     requests are sent
    OPEN        groups send requests to other members, until `open_until`
    HALF_OPEN   that time has passed: the next request is the probe

    state       event                                                      next state
    HEALTHY     MAX_FAILURES failures in a row, or MAX_FAILED of the       OPEN for FIRST_OPEN seconds
                last WINDOW requests
    any         a failure with a time to wait (429 with Retry-After)       OPEN for that time, up to MAX_RETRY_AFTER
    HALF_OPEN   the probe fails                                            OPEN for twice as long, up to MAX_OPEN
    HALF_OPEN   the probe has no result after PROBE_SECONDS                HALF_OPEN: the next request is a probe, too
    not HEALTHY a success                                                  HEALTHY

A result counts only if its request began after the last change of state: requests that were on their way when the
upstream was opened neither close it nor open it for longer. A group without another member sends requests to an open
upstream, too. Their failures change nothing, and a success closes it.

`events/upstream_health.py` is the owner's view of all processes, for people: it logs the first failed request. This
state is one process's, and decides where requests go.
"""

from __future__ import annotations

import enum
import time

MAX_FAILURES = 3
WINDOW, MAX_FAILED = 20, 10
FIRST_OPEN, MAX_OPEN = 1.0, 60.0
"""Seconds."""
MAX_RETRY_AFTER = 3600.0
"""Seconds of a Retry-After that is obeyed. An upstream must not end its own use for days by one header."""
PROBE_SECONDS = 60.0
_MASK = (1 << WINDOW) - 1


class HealthState(enum.StrEnum):
    """State of an upstream; the table of transitions is in the module's docstring."""

    HEALTHY = "healthy"
    OPEN = "open"
    HALF_OPEN = "half-open"


class PassiveHealth:
    """The health of one upstream. Times are of the monotonic clock."""

    __slots__ = ("_failures", "_probing", "_recent", "_seconds", "generation", "last_failure", "open_until")

    def __init__(self) -> None:
        self.generation = 0
        """Changes of state so far. A request keeps the number at its begin, and passes it with its result."""
        self.open_until = 0.0
        """0: healthy."""
        self.last_failure = float("-inf")
        self._failures = self._recent = 0
        """Failures in a row, and the last results: one bit each, 1 for a failure."""
        self._seconds = 0.0
        """How long it was opened the last time; 0: it was not, since it was healthy."""
        self._probing = False

    def state(self, now: float) -> HealthState:
        """Return the state."""
        if not self.open_until:
            return HealthState.HEALTHY
        return HealthState.HALF_OPEN if self._probing or now >= self.open_until else HealthState.OPEN

    def available(self, now: float) -> bool:
        """Return whether a request may be sent: it is healthy, or half-open without a probe."""
        return now >= self.open_until

    def begin(self, now: float) -> int:
        """Begin a request. Return the number to pass with its result. In half-open state it is the probe."""
        if self.open_until and now >= self.open_until:
            self._probing, self.open_until = True, now + PROBE_SECONDS
        return self.generation

    def succeed(self, generation: int) -> None:
        """Count a request that was answered."""
        if generation != self.generation:
            return
        self._failures = 0
        if self.open_until:
            self.open_until = self._seconds = 0.0
            self._recent, self._probing = 0, False
            self.generation += 1
        elif self._recent:
            self._recent = self._recent << 1 & _MASK

    def fail(self, generation: int, now: float, retry_after: float | None = None) -> None:
        """Count a request that was not answered. retry_after: seconds for which the upstream wants no requests."""
        self.last_failure = now
        if generation != self.generation:
            return
        if retry_after:
            self._open(now, min(retry_after, MAX_RETRY_AFTER))
        elif self._probing:
            self._seconds = min(MAX_OPEN, max(FIRST_OPEN, 2.0 * self._seconds))
            self._open(now, self._seconds)
        elif not self.open_until:
            self._failures += 1
            self._recent = (self._recent << 1 | 1) & _MASK
            if self._failures >= MAX_FAILURES or self._recent.bit_count() >= MAX_FAILED:
                self._seconds = FIRST_OPEN
                self._open(now, FIRST_OPEN)

    def release(self, generation: int, now: float) -> None:
        """End a request whose result says nothing about the upstream: the caller's error, or a caller that left."""
        if self._probing and generation == self.generation:
            self._probing, self.open_until = False, now

    def _open(self, now: float, seconds: float) -> None:
        self.open_until, self._probing = now + seconds, False
        self._failures = self._recent = 0
        self.generation += 1

    def open_until_unix(self) -> float:
        """Return the Unix time until which it is open; 0: it is healthy."""
        return self.open_until and time.time() + self.open_until - time.monotonic()
