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
from itertools import accumulate

log = logging.getLogger("knapcache.serve")

INTERVAL = 0.02
"""Seconds between two measurements."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CLOCKS = ("wall", "cpu")
"""How a stall is measured: see above."""
LONG_STALL, LOG_INTERVAL = 1.0, 60.0
"""Seconds of a stall that is logged, and seconds between two such lines."""


class LoopWatchdog:
    """Measures the event loop on which it is started. Other threads may read its numbers."""

    def __init__(self) -> None:
        self.longest = 0.0
        """Seconds of the longest stall."""
        self.longest_cpu = 0.0
        """Seconds of the longest CPU stall."""
        self._wall, self._cpu_bound = ([0] * (len(BUCKETS) + 1) for _ in CLOCKS)
        self._wall_total = self._cpu_total = 0.0
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
        """Forget the longest stalls."""
        self.longest = self.longest_cpu = 0.0

    def samples(self, clock: str) -> tuple[list[tuple[str, float]], float]:
        """Return cumulated counts of stalls by upper bound, and their sum in seconds. clock: one of CLOCKS."""
        bounds = [*map(str, BUCKETS), "+Inf"]
        counts, total = {"wall": (self._wall, self._wall_total), "cpu": (self._cpu_bound, self._cpu_total)}[clock]
        return list(zip(bounds, accumulate(counts), strict=True)), total

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = time.monotonic(), time.process_time()
        stall = max(0.0, now - self._due)
        cpu_stall = min(stall, cpu - self._cpu)
        self._wall[bisect_left(BUCKETS, stall)] += 1
        self._cpu_bound[bisect_left(BUCKETS, cpu_stall)] += 1
        self._wall_total += stall
        self._cpu_total += cpu_stall
        if stall > self.longest:
            self.longest = stall
        if cpu_stall > self.longest_cpu:
            self.longest_cpu = cpu_stall
        if stall > LONG_STALL and now - self._logged > LOG_INTERVAL:
            self._logged = now
            log.warning("Event loop blocked for %.1f seconds; no request was served during that time.", stall)
        self._due, self._cpu = now + INTERVAL, cpu
        self._timer = loop.call_later(INTERVAL, self._measure, loop)
