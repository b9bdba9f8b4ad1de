"""Single flight: concurrent requests share one call, and none hangs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from knapcache import Answer, Cache, InvalidInput, Reply
from knapcache.cache import PendingFetch
from knapcache.cache.single_flight import CallResult, InFlightCall, LeaderLost, SingleFlight
from tests.support.caches import CHAT, Upstream, is_answer, keyed, payload_of, request_of, small_cache
from tests.support.clock import Clock
from tests.support.timing import DEADLINE, at_once, check_waits_for, within


def in_threads(many: int, function: Callable[[], Any], seconds: float = 30.0) -> list[Any]:
    """Run a function in threads that begin within so many seconds. Return results, or what was raised."""

    def run(_: int) -> Any:
        try:
            return function()
        except Exception as error:
            return error

    return at_once(many, run, seconds)


def slow(name: object, calls: list[int], seconds: float = 0.1) -> Callable[[], Reply]:
    def call() -> Reply:
        calls.append(1)
        time.sleep(seconds)
        return Reply(payload_of(name), "m", cost=1.0)

    return call


def slow_async(name: object, calls: list[int], seconds: float = 0.1) -> Any:
    async def call() -> Reply:
        calls.append(1)
        await asyncio.sleep(seconds)
        return Reply(payload_of(name), "m", cost=1.0)

    return call


def test_64_threads_one_call() -> None:
    calls: list[int] = []
    with small_cache() as cache:
        answers = in_threads(64, lambda: cache.fetch(CHAT, request_of(1), slow(1, calls)))
        assert len(calls) == 1
        assert {answer.payload for answer in answers} == {payload_of(1)}
        assert sorted(answer.outcome for answer in answers).count("miss") == 1
        stats = cache.stats()
        assert (stats.requests, stats.misses) == (64, 1)
        assert stats.cost_saved == 63.0
        cache.check()


async def test_500_coroutines_one_call() -> None:
    calls: list[int] = []
    async with small_cache() as cache:
        answers = await asyncio.gather(*(cache.afetch(CHAT, request_of(1), slow_async(1, calls)) for _ in range(500)))
        assert len(calls) == 1
        assert {answer.payload for answer in answers} == {payload_of(1)}
        assert [answer.outcome for answer in answers].count("miss") == 1
        cache.check()


def test_threads_and_two_event_loops_share_a_call() -> None:
    calls: list[int] = []
    with small_cache() as cache:

        async def many() -> list[Answer]:
            return await asyncio.gather(
                *(cache.afetch(CHAT, request_of(1), slow_async(1, calls, 0.3)) for _ in range(20))
            )

        kinds = iter(
            [lambda: asyncio.run(many())] * 2 + [lambda: [cache.fetch(CHAT, request_of(1), slow(1, calls, 0.3))]] * 6
        )
        found = [answer for answers in in_threads(8, lambda: next(kinds)()) for answer in answers]
        assert len(found) == 46
        assert len(calls) == 1
        assert all(is_answer(answer.payload, 1) for answer in found)


async def test_the_call_of_a_cancelled_leader_goes_on_and_is_stored() -> None:
    calls: list[int] = []
    async with small_cache() as cache:
        leader = asyncio.create_task(cache.afetch(CHAT, request_of(1), slow_async(1, calls)))
        await asyncio.sleep(0.02)
        others = [asyncio.create_task(cache.afetch(CHAT, request_of(1), slow_async(1, calls))) for _ in range(9)]
        await asyncio.sleep(0.02)
        leader.cancel()
        answers = await asyncio.gather(*others)
        assert {answer.outcome for answer in answers} == {"coalesced"}
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert len(calls) == 1
        assert cache.fetch(CHAT, request_of(1), slow(1, calls)).outcome == "hit"


async def test_a_cancelled_waiter_does_not_affect_others() -> None:
    calls: list[int] = []
    async with small_cache() as cache:
        tasks = [asyncio.create_task(cache.afetch(CHAT, request_of(1), slow_async(1, calls))) for _ in range(10)]
        await asyncio.sleep(0.02)
        for task in tasks[1::2]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == 5
        assert all(is_answer(answer.payload, 1) for answer in answers if isinstance(answer, Answer))
        assert len(calls) == 1


def test_a_failure_reaches_all_threads_after_one_retry() -> None:
    calls: list[int] = []

    def failing() -> Reply:
        calls.append(1)
        time.sleep(0.1)
        raise ConnectionError("no")

    with small_cache() as cache:
        results = in_threads(32, lambda: cache.fetch(CHAT, request_of(1), failing), 0.1)
        assert all(isinstance(result, ConnectionError) for result in results)
        assert len(calls) == 2
        assert cache.stats().failed == 32
        cache.check()


async def test_a_failure_reaches_all_coroutines_after_one_retry() -> None:
    calls: list[int] = []

    async def failing() -> Reply:
        calls.append(1)
        await asyncio.sleep(0.05)
        raise ConnectionError("no")

    async with small_cache() as cache:
        tasks = [cache.afetch(CHAT, request_of(1), failing) for _ in range(100)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, ConnectionError) for result in results)
        assert len(calls) == 2


def test_one_waiter_calls_again_when_the_leader_fails() -> None:
    calls: list[int] = []

    def once() -> Reply:
        calls.append(1)
        time.sleep(0.1)
        if len(calls) == 1:
            raise ConnectionError("no")
        return Reply(payload_of(1), cost=1.0)

    with small_cache() as cache:
        results = in_threads(32, lambda: cache.fetch(CHAT, request_of(1), once))
        assert len(calls) == 2
        assert sum(isinstance(result, ConnectionError) for result in results) == 1
        assert all(is_answer(result.payload, 1) for result in results if isinstance(result, Answer))


def test_a_waiter_calls_alone_after_the_timeout() -> None:
    called, release = threading.Event(), threading.Event()

    def call() -> Reply:
        called.set()
        assert release.wait(DEADLINE)
        return Reply(payload_of(1), "m", cost=1.0)

    with small_cache(wait=0.05) as cache:
        leader = threading.Thread(target=lambda: cache.fetch(CHAT, request_of(1), call))
        leader.start()
        try:
            assert called.wait(DEADLINE)
            upstream = Upstream()
            answer = cache.fetch(CHAT, request_of(1), upstream(1, version=7))
            assert (answer.outcome, upstream.calls) == ("miss", 1)
            again = cache.fetch(CHAT, request_of(1), upstream(1, version=8))
            assert again.outcome == "miss", "a request has joined the abandoned call"
        finally:
            release.set()
            leader.join()
        cache.check()


def test_the_call_of_a_closed_event_loop_is_replaced() -> None:
    calls: list[int] = []
    with small_cache(wait=20.0) as cache:
        joined = threading.Event()

        async def leave() -> None:
            task = asyncio.create_task(cache.afetch(CHAT, request_of(1), slow_async(1, calls, 30.0)))
            await asyncio.sleep(0.05)
            joined.set()
            await asyncio.sleep(0.1)
            task.cancel()

        loop = threading.Thread(target=lambda: asyncio.run(leave()))
        loop.start()
        joined.wait()
        with within(10.0, "a call after another one was cancelled"):
            answer = cache.fetch(CHAT, request_of(1), slow(1, calls, 0.0))
        assert is_answer(answer.payload, 1)
        loop.join()
        assert len(calls) == 2


def test_an_interrupted_leader_is_replaced() -> None:
    with small_cache() as cache:
        started = threading.Event()

        def interrupted() -> Reply:
            started.set()
            time.sleep(0.1)
            raise KeyboardInterrupt

        def lead() -> None:
            with pytest.raises(KeyboardInterrupt):
                cache.fetch(CHAT, request_of(1), interrupted)

        with ThreadPoolExecutor(1) as pool:
            leading = pool.submit(lead)
            started.wait()
            assert is_answer(cache.fetch(CHAT, request_of(1), Upstream()(1)).payload, 1)
        leading.result()


def test_a_call_that_requests_its_own_key_does_not_wait() -> None:
    with small_cache(wait=20.0) as cache:
        inner: list[str] = []

        def outer() -> Reply:
            inner.append(cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome)
            return Reply(payload_of(1), cost=1.0)

        with within(10.0, "a call inside a call"):
            assert cache.fetch(CHAT, request_of(1), outer).outcome == "miss"
        assert inner == ["miss"]


async def test_a_blocking_request_in_the_event_loop_of_the_call_does_not_wait() -> None:
    calls: list[int] = []
    async with small_cache(wait=20.0) as cache:
        task = asyncio.create_task(cache.afetch(CHAT, request_of(1), slow_async(1, calls)))
        await asyncio.sleep(0.02)
        with within(10.0, "a call in the event loop"):
            assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "miss"
        await task


def test_a_task_cancelled_before_its_start_releases_the_call() -> None:
    calls: list[int] = []

    async def main() -> None:
        leader = asyncio.create_task(cache.afetch(CHAT, request_of(1), slow_async(1, calls)))
        await asyncio.sleep(0)  # the leader has created its task, which has not begun
        for task in list(cache._engine.leader_tasks._tasks):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader

    with small_cache() as cache:
        asyncio.run(main())
        assert len(cache._engine.single_flight) == 0
        assert cache.stats().failed == 1
        assert calls == []
    gc.collect()


def test_nothing_is_left_behind() -> None:
    with small_cache() as cache:
        for k in range(50):
            cache.fetch(CHAT, request_of(k), Upstream()(k))
        assert len(cache._engine.single_flight) == 0
        assert not cache._engine.leader_tasks._tasks


def test_a_late_waiter_joins_the_call_of_a_newcomer() -> None:
    single_flight: SingleFlight[int] = SingleFlight()
    failed, first = single_flight._join("k")
    assert first
    single_flight.fail(failed, ConnectionError())
    newcomer, first = single_flight._join("k")
    assert first
    assert single_flight._join_retry(failed) == (newcomer, False)
    single_flight.complete(newcomer, 1)
    assert single_flight._join_retry(failed) == (newcomer, False)
    assert len(single_flight) == 0


@pytest.mark.parametrize("step", ["join", "join_retry", "abandon", "complete"])
def test_every_step_of_a_call_waits_for_the_lock(step: str) -> None:
    single_flight: SingleFlight[int] = SingleFlight()
    call, _ = single_flight._join("k")
    steps: dict[str, Callable[[], object]] = {
        "join": lambda: single_flight._join("k"),
        "join_retry": lambda: single_flight._join_retry(call),
        "abandon": lambda: single_flight._abandon(call),
        "complete": lambda: single_flight.complete(call, 1),
    }
    check_waits_for(single_flight._lock, steps[step])


def test_an_answer_stored_between_lookup_and_call_is_not_paid_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_cache() as cache:
        upstream = Upstream()
        lead = cache._engine.single_flight.lead

        def late(key: Any) -> Any:
            monkeypatch.setattr(cache._engine.single_flight, "lead", lead)
            assert cache.fetch(CHAT, request_of(1), upstream(1)).outcome == "miss"  # another caller was quicker
            return lead(key)

        monkeypatch.setattr(cache._engine.single_flight, "lead", late)
        answer = cache.fetch(CHAT, request_of(1), upstream(1))
        assert (answer.outcome, upstream.calls) == ("coalesced", 1)
        assert is_answer(answer.payload, 1)
        cache.check()


async def begin(cache: Cache, **options: bool) -> PendingFetch:
    pending = await cache._internal.begin_async(keyed(cache, request_of(1)), **options)
    assert isinstance(pending, PendingFetch)
    return pending


async def test_waiters_get_what_a_begun_fetch_completes_with() -> None:
    clock = Clock()
    async with small_cache(clock=clock) as cache:
        pending = await begin(cache)
        waiter = asyncio.create_task(cache._internal.begin_async(keyed(cache, request_of(1))))
        await asyncio.sleep(0.02)
        assert not waiter.done()
        assert pending.complete(Reply(payload_of(1), "m", cost=1.0), 0.1).outcome == "miss"
        clock.now -= 10.0  # the system's clock is set back
        answer = await waiter
        assert isinstance(answer, Answer)
        assert (answer.outcome, answer.payload, answer.age) == ("coalesced", payload_of(1), 0.0)
        pending.abandon()  # too late: it changes nothing
        assert (cache.stats().misses, cache.stats().failed) == (1, 0)
        cache.check()


async def test_a_waiter_leads_when_a_begun_fetch_is_abandoned() -> None:
    async with small_cache() as cache:
        pending = await begin(cache)
        waiter = asyncio.create_task(cache._internal.begin_async(keyed(cache, request_of(1))))
        await asyncio.sleep(0.02)
        pending.abandon(ConnectionError())
        second = await waiter
        assert isinstance(second, PendingFetch)
        assert second.leads
        second.complete(Reply(payload_of(1), "m", cost=1.0), 0.1)
        assert cache.fetch(CHAT, request_of(1), Upstream()(1)).outcome == "hit"
        assert cache.stats().failed == 1
        cache.check()


async def test_a_bad_reply_releases_the_waiters() -> None:
    async with small_cache() as cache:
        pending = await begin(cache)
        with pytest.raises(InvalidInput):
            pending.complete("text", 0.1)  # type: ignore[arg-type]
        assert len(cache._engine.single_flight) == 0


async def test_a_fetch_that_is_not_stored_has_no_waiters() -> None:
    async with small_cache() as cache:
        alone = await begin(cache, store=False)
        other = await begin(cache)
        assert (alone.leads, other.leads) == (False, True)
        alone.complete(Reply(payload_of(1), "m", cost=1.0), 0.1)
        other.complete(Reply(payload_of(1), "m", cost=1.0), 0.1)
        assert cache.stats().admitted == 1


async def test_a_refresh_in_flight_is_known() -> None:
    async with small_cache() as cache:
        assert not cache._internal.refreshing(keyed(cache, request_of(1)))
        pending = await begin(cache, refresh=True)
        assert cache._internal.refreshing(keyed(cache, request_of(1)))
        pending.abandon()
        assert not cache._internal.refreshing(keyed(cache, request_of(1)))


async def test_a_refresh_does_not_join_a_call_that_began_before_it() -> None:
    async with small_cache(wait=0.5) as cache:
        older = await begin(cache)
        fresh = await begin(cache, refresh=True)
        assert (older.leads, fresh.leads) == (True, True)
        assert fresh.complete(Reply(payload_of(1, version=2), "m", cost=1.0), 0.1).outcome == "miss"
        older.complete(Reply(payload_of(1, version=1), "m", cost=1.0), 0.1)


async def test_later_requests_do_not_join_a_call_that_was_given_up() -> None:
    single_flight: SingleFlight[int] = SingleFlight()
    given_up, _ = single_flight._join("k")
    assert await single_flight.join("k", 0.01, blocking=False) is None
    assert "k" not in single_flight
    newer = await single_flight.join("k", 0.01, blocking=False)
    assert isinstance(newer, InFlightCall)
    assert newer is not given_up
    single_flight._abandon(given_up)  # by a waiter that gives up later: the newer call stays
    assert single_flight._join("k") == (newer, False)
    single_flight.complete(newer, 1)


@pytest.mark.parametrize("error", [None, ConnectionError()])
async def test_the_end_of_a_call_that_was_given_up_does_not_remove_the_call_that_followed(
    error: Exception | None,
) -> None:
    single_flight: SingleFlight[int] = SingleFlight()
    given_up, _ = single_flight._join("k")
    single_flight._abandon(given_up)
    newer, leads = single_flight._join("k")
    assert leads
    if error is None:
        single_flight.complete(given_up, 1)
    else:
        single_flight.fail(given_up, error)
    assert single_flight._join("k") == (newer, False)
    assert single_flight.completed == 1
    single_flight.complete(newer, 2)
    single_flight.complete(newer, 3)  # resolved once
    assert newer.future is not None
    assert newer.future.result() == newer.result
    assert (newer.future.result().value, single_flight.completed, len(single_flight)) == (2, 2, 0)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_request_calls_alone_when_two_leaders_are_lost(blocking: bool) -> None:
    """A second call that failed raises its error. A second leader that was lost has none: its waiters call alone."""
    for error in (LeaderLost(), ConnectionError("no")):
        single_flight: SingleFlight[int] = SingleFlight()
        first, _ = single_flight._join("k")
        first.retry = InFlightCall("k")
        for call, result in ((first, LeaderLost()), (first.retry, error)):
            call.thread = -1  # led by another thread
            call.result = CallResult(None, result)
        joined = single_flight.join("k", 1.0, blocking=blocking)
        if isinstance(error, LeaderLost):
            assert await joined is None
        else:
            with pytest.raises(ConnectionError):
                await joined
        assert first.retry.retry is None, "a third call that nobody leads"
