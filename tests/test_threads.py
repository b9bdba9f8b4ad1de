"""Thread helpers: deadlines, bounded queues, and callers that never wait for a blocked thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import time
import weakref
from collections.abc import Sequence

import pytest

from knapcache.threads import (
    TIMED_OUT,
    BatchWorker,
    DeadlinePool,
    PeriodicThread,
    as_coroutine,
    run_blocking,
    run_with_deadline,
)
from tests.support.timing import within

# DeadlinePool.


async def test_a_pool_returns_results_until_the_timeout() -> None:
    pool = DeadlinePool("test", 2)
    free = threading.Event()
    assert await pool.run(lambda: 7, 5.0) == (7, True)
    late = await asyncio.gather(*(pool.run(lambda: free.wait(60), 0.2) for _ in range(5)))
    assert [started for _, started in late] == [True, True, False, False, False]
    assert all(result is TIMED_OUT for result, _ in late)
    done: list[int] = []
    assert pool.submit(lambda: done.append(1))
    free.set()
    assert await pool.run(lambda: 8, 5.0) == (8, True)
    assert done == [1]
    pool.close()
    assert await pool.run(lambda: 9, 5.0) == (TIMED_OUT, False)
    assert not pool.submit(lambda: done.append(2))


async def test_a_call_returns_the_result_or_raises_the_exception() -> None:
    pool = DeadlinePool("test", threads=1)
    assert await pool.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await pool.call(lambda: 1 / 0)
    pool.close()
    with pytest.raises(RuntimeError, match="test is closed"):
        await pool.call(lambda: 3)


async def test_an_exception_of_a_call_does_not_keep_its_data() -> None:
    """Without the garbage collector: bodies of rejected requests would fill the memory before it runs."""

    class Body:
        pass

    def fail(body: Body) -> None:
        raise ValueError(type(body).__name__)

    pool, body = DeadlinePool("test", threads=1), Body()
    alive = weakref.ref(body)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await pool.call(functools.partial(fail, body))
        del body
        await pool.call(lambda: None)  # the thread has let go of the first call
        assert alive() is None
    finally:
        gc.enable()
        pool.close()


async def test_queued_work_waits_while_the_pool_makes_progress() -> None:
    """44 times 0.1 s, two at a time, timeout 1 s: the last call is queued for longer than two timeouts."""
    pool = DeadlinePool("test", 2)
    with within(3.1, "44 calls"):
        results = await asyncio.gather(*(pool.run(functools.partial(time.sleep, 0.1), 1.0) for _ in range(44)))
    assert results == [(None, True)] * 44
    pool.close()


async def test_queued_work_times_out_at_last() -> None:
    pool = DeadlinePool("test", 1)
    with within(50 * 0.1, "fewer calls than all 50, one after the other"):
        results = await asyncio.gather(*(pool.run(functools.partial(time.sleep, 0.1), 0.3) for _ in range(50)))
    assert results[0][1]
    assert results[-1] == (TIMED_OUT, False)
    pool.close()


def test_a_result_for_a_closed_loop_is_dropped() -> None:
    pool, free = DeadlinePool("test", 1), threading.Event()
    assert asyncio.run(pool.run(lambda: free.wait(30), 0.01))[0] is TIMED_OUT
    free.set()
    assert asyncio.run(pool.run(lambda: 1, 5.0)) == (1, True)
    pool.close()


# BatchWorker.


def test_batches_arrive_in_order() -> None:
    got: list[int] = []
    worker = BatchWorker("test", got.extend)
    for k in range(0, 1000, 10):
        worker.offer(range(k, k + 10))
    assert worker.close()
    assert got == [*range(1000)]
    assert worker.lost == 0


def test_a_blocked_worker_loses_the_newest_and_counts_them() -> None:
    got: list[int] = []
    started, go = threading.Event(), threading.Event()

    def work(batch: Sequence[int]) -> None:
        started.set()
        assert go.wait(60)
        got.extend(batch)

    worker = BatchWorker("test", work, max_waiting=25)
    worker.offer(range(10))
    assert started.wait(60)
    worker.offer(range(10, 20))
    worker.offer(range(20, 30))
    worker.offer(range(30, 40))
    assert worker.lost == 15
    assert not worker.close(0.01)
    assert not worker.close(0.01)
    assert worker.lost == 40, "what still waits counts as lost, once"
    go.set()
    assert worker.close()
    assert got == [*range(25)]


def test_a_failing_worker_goes_on_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    got: list[int] = []

    def work(batch: Sequence[int]) -> None:
        if batch[0] < 3:
            raise ZeroDivisionError
        got.extend(batch)

    worker = BatchWorker("test", work)
    for k in range(5):
        worker.offer([k])
    assert worker.close()
    worker.offer([9])  # closed
    assert (got, worker.lost) == ([3, 4], 4)
    assert [record.getMessage() for record in caplog.records] == ["test: a batch is lost"]


# PeriodicThread.


def test_a_periodic_thread_has_ended_when_it_was_joined() -> None:
    class Clock:
        def __init__(self) -> None:
            self.calls, self.third = 0, threading.Event()

        def tick(self) -> float:
            self.calls += 1
            if self.calls == 3:
                self.third.set()
                assert thread.stopped.wait(60)
            return 0.0

    clock = Clock()
    thread = PeriodicThread("test-periodic", clock.tick, 0.0)
    thread.join()  # not started
    thread.start()
    thread.start()  # runs already
    assert clock.third.wait(60)
    thread.stopped.set()
    thread.join()
    assert "test-periodic" not in [each.name for each in threading.enumerate()]
    assert clock.calls == 3


# run_with_deadline.


async def test_a_deadline_ends_the_wait_and_not_the_call() -> None:
    free, done = threading.Event(), threading.Event()

    def work() -> None:
        free.wait(30)
        done.set()

    assert not await run_with_deadline(work, 0.01)
    assert not done.is_set()
    free.set()
    assert await asyncio.to_thread(done.wait, 10)
    assert await run_with_deadline(lambda: None, 10.0)


def test_a_call_that_outlives_its_loop_is_harmless() -> None:
    free, done = threading.Event(), threading.Event()

    def work() -> None:
        free.wait(30)
        done.set()

    assert not asyncio.run(run_with_deadline(work, 0.01))
    free.set()
    assert done.wait(60)


# run_blocking.


def test_a_coroutine_that_never_suspends_runs_without_an_event_loop() -> None:
    async def double(x: int) -> int:
        return 2 * await as_coroutine(int)(x)

    assert run_blocking(double(4)) == 8


def test_a_coroutine_that_suspends_is_an_error() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="the coroutine suspended"):
        run_blocking(wait())
