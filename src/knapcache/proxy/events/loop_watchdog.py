"""Measures how late the event loop runs.

A timer is due every INTERVAL seconds. What it is late by is how long the loop, or the interpreter's lock, was busy with
something else, or how long the machine was:

    stall       = time of the call − time when it was due
    CPU stall   = min(stall, CPU time of this process since the previous call)

The second one is not changed by other processes, so tests can bound it on a shared machine: a process that waits for a
CPU does not use one. A thread that computes without the interpreter's lock uses CPU time and does not delay the loop;
then the first term is the smaller one.

A call takes 3 µs, 50 times a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

log = logging.getLogger("knapcache.serve")

INTERVAL = 0.02
"""Seconds between two measurements."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CLOCKS = ("wall", "cpu")
"""How a stall is measured: see above."""
LONG_STALL, LOG_INTERVAL = 1.0, 60.0
"""Seconds of a stall that is logged, and seconds between two such lines."""


class Durations:
    """A histogram: counts by bucket, and the sum. bounds: the buckets' upper bounds in seconds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def samples(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulated counts by upper bound, and the sum."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True)), self.total


class LoopWatchdog:
    """Measures the event loop on which it is started. Other threads may read its numbers."""

    def __init__(self) -> None:
        self.longest = 0.0
        """Seconds of the longest stall."""
        self.longest_cpu = 0.0
        """Seconds of the longest CPU stall."""
        self.stalls = {clock: Durations(BUCKETS) for clock in CLOCKS}
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._cpu = 0.0
        self._logged = float("-inf")

    def start(self) -> None:
        """Measure the running event loop until `stop`."""
        loop = asyncio.get_running_loop()
        # time.monotonic, because loop.time() of uvloop is the start of the iteration and not the time of the call.
        self._due, self._cpu = time.monotonic() + INTERVAL, time.process_time()
        self._timer = loop.call_later(INTERVAL, self._measure, loop)

    def stop(self) -> None:
        """End the measurement. The numbers stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reset(self) -> None:
        self.longest = self.longest_cpu = 0.0

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = time.monotonic(), time.process_time()
        stall = max(0.0, now - self._due)
        cpu_stall = min(stall, cpu - self._cpu)
        self.stalls["wall"].add(stall)
        self.stalls["cpu"].add(cpu_stall)
        self.longest, self.longest_cpu = max(self.longest, stall), max(self.longest_cpu, cpu_stall)
        if stall > LONG_STALL and now - self._logged > LOG_INTERVAL:
            self._logged = now
            log.warning("Event loop blocked for %.1f seconds; no request was served during that time.", stall)
        self._due, self._cpu = now + INTERVAL, cpu
        self._timer = loop.call_later(INTERVAL, self._measure, loop)
