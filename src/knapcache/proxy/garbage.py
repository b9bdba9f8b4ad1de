"""Full garbage collections of the process at moments when no request waits for them.

A collection stops all threads. Those of young objects take less than a millisecond. A full one visits every object that
was made since the start: with some large embeddings requests in work these are hundreds of thousands, and it takes half
a second. Python would run it in their midst, because they make most objects. So Python runs none, and a timer does:

    due     after as many collections of younger objects as Python waits for (the third threshold)
    run     when the process has used less than IDLE_SHARE of a CPU for a second; after MAX_DELAY seconds in any case

Only objects in reference cycles wait for it. All others are freed at once.

After a collection of an idle process, glibc returns free memory to the system. It has a heap for each thread, in which
large requests leave hundreds of megabytes.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time

INTERVAL = 1.0
"""Seconds between two looks."""
IDLE_SHARE = 0.2
MAX_DELAY = 60.0
NEVER = 1 << 30


class FullCollections:
    """Runs the full collections of this process, on the event loop on which it is started."""

    def __init__(self) -> None:
        self._due_after = 0
        self._cpu = self._checked = self._collected = 0.0

    def start(self) -> None:
        """Collect now, never visit the objects that exist again, and run further collections from a timer.

        Objects from the start live as long as the process. Each full collection would visit them for 50 ms.
        """
        gc.collect()
        gc.freeze()
        young, middle, self._due_after = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        self._collected = time.monotonic()
        self._check(asyncio.get_running_loop())

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = time.monotonic(), time.process_time()
        idle = cpu - self._cpu < IDLE_SHARE * (now - self._checked)
        self._cpu, self._checked = cpu, now
        if gc.get_count()[2] > self._due_after and (idle or now - self._collected > MAX_DELAY):
            gc.collect()
            self._collected = time.monotonic()
            if idle:
                loop.run_in_executor(None, trim)
        loop.call_later(INTERVAL, self._check, loop)


def trim() -> None:
    """Return free memory to the system, where the C library can: glibc."""
    if (found := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        found(0)
