"""The watchdog measures stalls of the event loop, and tells those of the process from those of the machine."""

from __future__ import annotations

import asyncio
import logging
import re
import time

import pytest

from knapcache.proxy.events.loop_watchdog import CLOCKS, INTERVAL, LoopWatchdog
from tests.support.timing import check_seconds


def stalled(work: float, sleep: float) -> LoopWatchdog:
    """Return the watchdog of a loop that one callback has held: computing, then waiting, for so many seconds."""
    watchdog = LoopWatchdog()

    async def run() -> None:
        watchdog.start()
        await asyncio.sleep(0.05)
        end = time.thread_time() + work
        while time.thread_time() < end:
            pass
        time.sleep(sleep)
        await asyncio.sleep(0.05)
        watchdog.stop()

    asyncio.run(run())
    return watchdog


def test_a_callback_that_computes_is_a_stall() -> None:
    watchdog = stalled(0.3, 0.0)
    assert watchdog.longest >= 0.25
    assert watchdog.longest_cpu >= 0.25
    for clock in CLOCKS:
        buckets, total = watchdog.stalls[clock].samples()
        assert total >= 0.25
        counts = dict(buckets)
        assert counts["+Inf"] - counts["0.1"] >= 1
    watchdog.reset()
    assert watchdog.longest == watchdog.longest_cpu == 0.0


async def test_nothing_is_measured_after_stop() -> None:
    watchdog = LoopWatchdog()
    watchdog.stop()
    watchdog.start()
    watchdog.stop()
    await asyncio.sleep(3 * INTERVAL)
    assert dict(watchdog.stalls["wall"].samples()[0])["+Inf"] == 0


def test_a_process_that_does_not_run_uses_no_cpu() -> None:
    """A blocked process stands for one that a busy machine does not run."""
    watchdog = stalled(0.0, 0.5)
    assert watchdog.longest >= 0.45
    check_seconds(watchdog.longest_cpu, 0.25, "CPU time of a process that waits")


def test_long_stalls_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog()

    async def run() -> None:
        watchdog.start()
        for _ in range(2):
            await asyncio.sleep(0.05)
            time.sleep(1.1)
        await asyncio.sleep(0.05)
        watchdog.stop()

    with caplog.at_level(logging.WARNING, "knapcache.serve"):
        asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records if "Event loop" in record.getMessage()]
    assert re.match(r"Event loop blocked for [1-9]\d*\.", line)
