"""Time limits of tests: waits for a condition, upper limits of measured time, and linear time.

A missed limit raises TooSlow. The reason may be a busy machine, so pytest runs such a test again (`--only-rerun` in
pyproject.toml), and fails the run if there are more than a few of them (run_report.py). It never repeats a test that
fails in another way. So a test must raise TooSlow only for a missed limit, and never for a wrong result.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
What = str | Callable[[], object]
"""Names what is waited for or measured. A function is called when the limit is missed, so it can show the state."""

DEADLINE = 60.0
"""Seconds that a wait may take: far more than any of them takes on a busy machine."""
FIRST_PAUSE, MAX_PAUSE = 0.002, 0.05
"""Seconds between two evaluations of a condition. The pauses grow, because some conditions are expensive."""
GROWTH, MAX_RATIO = 8, 32.0
"""The large input is 8 times the small one. Linear time takes 8 times as long, quadratic time 64 times."""
MIN_SECONDS = 0.003
"""Shorter times than this are too inaccurate to be compared."""
ROUNDS = 6


class TooSlow(AssertionError):  # noqa: N818 - it is read as a statement
    """A time limit was missed."""


class Deadline:
    """Limits the time of a loop: `check` raises TooSlow once the time is over."""

    def __init__(self, what: What, seconds: float = DEADLINE) -> None:
        self._what, self._seconds = what, seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise TooSlow(f"not within {self._seconds:g} s: {_text(self._what)}")


def wait_until(condition: Callable[[], T | None], what: What = "the condition", seconds: float = DEADLINE) -> T:
    """Evaluate a condition until it is true, and return what it returned."""
    deadline, pause = Deadline(what, seconds), FIRST_PAUSE
    while not (found := condition()):
        deadline.check()
        time.sleep(pause)
        pause = min(1.5 * pause, MAX_PAUSE)
    return found


async def async_wait_until(
    condition: Callable[[], T | None], what: What = "the condition", seconds: float = DEADLINE
) -> T:
    """Do what `wait_until` does, without blocking the event loop."""
    deadline, pause = Deadline(what, seconds), FIRST_PAUSE
    while not (found := condition()):
        deadline.check()
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, MAX_PAUSE)
    return found


def check_seconds(found: float, limit: float, what: What) -> None:
    """Raise TooSlow if a measured time is above its limit, both in seconds."""
    if found > limit:
        raise TooSlow(f"{_text(what)}: {found:.4g} s, more than {limit:.4g} s")


@contextmanager
def within(seconds: float, what: What) -> Iterator[None]:
    """Raise TooSlow if the block takes longer, also if it fails: its limits of time may have run out on it."""
    start = time.monotonic()
    try:
        yield
    except Exception as error:
        if time.monotonic() - start > seconds:
            raise TooSlow(f"{_text(what)}: failed after more than {seconds:.4g} s") from error
        raise
    check_seconds(time.monotonic() - start, seconds, what)


def at_once(count: int, work: Callable[[int], T], seconds: float) -> list[T]:
    """Return the results of work in as many threads. Raise TooSlow unless all begin within so many seconds."""
    gate, starts = threading.Barrier(count), list[float]()
    results = [Future[T]() for _ in range(count)]

    def run(k: int) -> None:
        gate.wait()
        starts.append(time.monotonic())
        try:
            results[k].set_result(work(k))
        except BaseException as error:
            results[k].set_exception(error)

    for k in range(count):
        threading.Thread(target=run, args=(k,), daemon=True).start()
    wait_until(lambda: all(result.done() for result in results), f"the end of {count} threads")
    check_seconds(max(starts) - min(starts), seconds, f"the start of {count} threads")
    return [result.result() for result in results]


def check_waits_for(lock: threading.Lock, work: Callable[[], object]) -> None:
    """Check that work in another thread waits for a lock, and ends when the lock is released."""
    thread = threading.Thread(target=work)
    with lock:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    wait_until(lambda: not thread.is_alive(), "the thread")


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time that the work takes in this thread."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def check_linear(prepare: Callable[[int], Callable[[], object]], size: int, what: str, max_size: int = 0) -> None:
    """Check that work takes CPU time in proportion to the size of its input.

    prepare  returns the work on an input of a given size; its own time is not measured
    size     of the small input; it is doubled, up to eight times, until the work takes MIN_SECONDS
    max_size of the large input, if that is limited

    Both sizes are measured in turn, and the best times are compared, up to ROUNDS times. The first good comparison
    ends the check, because other programs can make work slower but not faster.
    """
    small, large_size = prepare(size), GROWTH * size
    limit = max_size or GROWTH * large_size
    while (once := cpu_seconds(small)) < MIN_SECONDS and 2 * large_size <= limit:
        size, large_size = 2 * size, 2 * large_size
        small = prepare(size)
    large, repeats = prepare(large_size), 1 + int(MIN_SECONDS / max(once, 1e-6))

    def small_seconds() -> float:
        return cpu_seconds(lambda: [small() for _ in range(repeats)]) / repeats

    one = other = math.inf
    for _ in range(ROUNDS):
        one = min(one, small_seconds(), small_seconds())
        other = min(other, cpu_seconds(large))
        if other <= max(MAX_RATIO * one, MIN_SECONDS):
            return
    raise TooSlow(f"{what}: size {size} takes {one:.3g} s, size {large_size} {other:.3g} s, {other / one:.1f} times")


def _text(what: What) -> object:
    return what if isinstance(what, str) else what()
