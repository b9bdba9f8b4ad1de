"""Answers that come faster than the store writes: callers wait for it, and no answer is dropped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from knapcache import Cache
from knapcache.cache import backpressure
from knapcache.cache.backpressure import COOLDOWN, MAX_WAIT, STALL_SECONDS, WriteBackpressure
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite import writer
from tests.support.caches import CHAT, Upstream, request_of, small_cache, store_of
from tests.support.faulty_disk import SlowDisk, slow_disk_under_stores
from tests.support.timing import async_wait_until, check_seconds, wait_until

CALLS = 300


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    monkeypatch.setattr(writer, "MAX_BACKLOG_WRITES", 20)
    with slow_disk_under_stores() as found:
        yield found


def check_all_stored(cache: Cache) -> None:
    store_of(cache).flush()
    stats = cache.stats()
    assert (stats.entries, stats.rejected_store_busy) == (CALLS, 0)
    cache.check()
    cache.close()


def test_blocking_callers_wait(tmp_path: Path, slow_disk: SlowDisk) -> None:
    cache = small_cache(capacity="64MiB", path=tmp_path / "answers.db")

    @cache.cached
    def answer(number: int) -> str:
        return f"answer {number}"

    slow_disk.start_fault()
    calling = threading.Thread(target=lambda: [answer(number) for number in range(CALLS)])
    calling.start()
    wait_until(lambda: store_of(cache).write_backlog_full, "a full queue")
    slow_disk.repair()
    calling.join()
    check_all_stored(cache)


async def test_coroutines_wait(tmp_path: Path, slow_disk: SlowDisk) -> None:
    """The disk is repaired by another task of the same event loop, which therefore is not blocked."""
    cache = small_cache(capacity="64MiB", path=tmp_path / "answers.db")

    @cache.cached
    async def answer(number: int) -> str:
        return f"answer {number}"

    slow_disk.start_fault()
    calling = asyncio.gather(*(answer(number) for number in range(CALLS)))
    await async_wait_until(lambda: store_of(cache).write_backlog_full, "a full queue")
    slow_disk.repair()
    await calling
    await asyncio.to_thread(check_all_stored, cache)


async def test_a_blocking_call_on_an_event_loop_does_not_wait(tmp_path: Path, slow_disk: SlowDisk) -> None:
    cache = small_cache(capacity="64MiB", path=tmp_path / "answers.db")
    slow_disk.start_fault()
    start = time.monotonic()
    for name in range(CALLS):
        cache.fetch(CHAT, request_of(name), Upstream()(name))
    check_seconds(time.monotonic() - start, STALL_SECONDS, "calls that do not wait")
    assert cache.stats().rejected_store_busy > 0
    slow_disk.repair()
    await asyncio.to_thread(cache.close)


class FullStore(MemoryStore):
    """A store whose write queue is full, until `space` says otherwise."""

    write_backlog_full = True  # type: ignore[misc]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[WriteBackpressure], float]:
    """Return the seconds that a caller waits, on a clock that only the wait itself moves."""
    now = [1000.0]

    def sleep(step: float) -> None:
        now[0] += step

    monkeypatch.setattr(time, "sleep", sleep)

    def waited(gate: WriteBackpressure) -> float:
        gate._clock = lambda: now[0]
        start = now[0]
        gate.wait()
        return now[0] - start

    return waited


def test_nobody_waits_again_for_a_queue_that_is_stalled(seconds: Callable[[WriteBackpressure], float]) -> None:
    gate = WriteBackpressure(FullStore(1 << 20))
    assert seconds(gate) == pytest.approx(STALL_SECONDS, abs=0.02)
    assert [seconds(gate) for _ in range(3)] == [0.0, 0.0, 0.0]
    time.sleep(COOLDOWN)
    assert seconds(gate) == pytest.approx(STALL_SECONDS, abs=0.02)


def test_a_caller_stops_waiting_as_soon_as_the_queue_counts_as_stalled(
    seconds: Callable[[WriteBackpressure], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With polls at exact fractions of a second, the wait is exact as well: no poll follows."""
    monkeypatch.setattr(backpressure, "POLL", 1 / 256)
    assert seconds(WriteBackpressure(FullStore(1 << 20))) == STALL_SECONDS


def test_a_caller_waits_longer_for_a_queue_that_moves(
    seconds: Callable[[WriteBackpressure], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other callers take the space each time: the queue is not stalled, and the next caller waits as well."""
    store = FullStore(1 << 20)
    gate = WriteBackpressure(store)
    sleep, sleeps = time.sleep, [0]

    def sleep_and_move(step: float) -> None:
        sleep(step)
        sleeps[0] += 1
        if sleeps[0] % 100 == 0:
            monkeypatch.setattr(FullStore, "write_backlog_full", False)
            gate._must_wait(0.0)  # another caller, which takes the space
            monkeypatch.setattr(FullStore, "write_backlog_full", True)

    monkeypatch.setattr(time, "sleep", sleep_and_move)
    assert [seconds(gate) for _ in range(2)] == [pytest.approx(MAX_WAIT, abs=0.02)] * 2


@pytest.mark.long
def test_a_file_stores_every_answer_of_a_fast_loop(tmp_path: Path) -> None:
    """50,000 calls: as many entries as in memory, in at most twice the time."""
    calls, times = 50_000, []
    for path in (None, tmp_path / "answers.db"):
        with Cache("1GB", path=path) as cache:

            @cache.cached
            def answer(number: int) -> dict[str, object]:
                return {"number": number, "text": "x" * 900}

            start = time.perf_counter()
            for number in range(calls):
                answer(number)
            store_of(cache).flush()
            times.append(time.perf_counter() - start)
            stats = cache.stats()
            assert (stats.entries, stats.rejected_store_busy) == (calls, 0)
    check_seconds(times[1], 2 * times[0], "a file, compared with memory")
