"""A disk that fails, hangs or is slow: requests go upstream at once and none fails, and the cache recovers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from knapcache import Cache, Reply
from knapcache.cache import async_reads, backpressure
from knapcache.cache.breaker import COOLDOWN, FAILURES, Breaker
from knapcache.errors import StoreError
from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import CHAT, Upstream, is_answer, payload_of, request_of, small_cache, store_of
from tests.support.clock import Clock
from tests.support.faulty_disk import DISK_FAULTS, SlowDisk, slow_disk_under_stores
from tests.support.timing import Deadline, async_wait_until, check_seconds

ENTRIES = 150
MAX_TURNS = 50
"""More turns of the event loop than a request takes that waits for nothing."""


# The state machine.


def test_opens_after_failures_in_a_row_and_closes_after_a_probe() -> None:
    clock = Clock(0.0)
    breaker = Breaker(clock)
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.record(False)
        breaker.record(True)
    assert breaker.allows_read()
    assert not breaker.start_probe()
    for _ in range(FAILURES):
        breaker.record(False)
    assert breaker.stats() == {"state": "open", "opened": 1, "skipped": 0}
    assert not breaker.allows_read()
    assert not breaker.start_probe()
    clock.now += COOLDOWN
    assert breaker.start_probe()
    assert not breaker.start_probe(), "one at a time"
    assert breaker.stats() == {"state": "half-open", "opened": 1, "skipped": 1}
    breaker.record(False)
    breaker.end_probe(False)
    assert breaker.state == "open"
    assert not breaker.start_probe()
    clock.now += COOLDOWN
    assert breaker.start_probe()
    assert not breaker.allows_read()
    breaker.end_probe(True)
    assert breaker.allows_read()
    for _ in range(FAILURES - 1):
        breaker.record(False)
    assert breaker.stats() == {"state": "closed", "opened": 1, "skipped": 2}


# The cache.


@pytest.fixture
def slow_disk() -> Iterator[SlowDisk]:
    with slow_disk_under_stores() as found:
        yield found


def async_call(name: object, n: int = 8000) -> Callable[[], Awaitable[Reply]]:
    async def call() -> Reply:
        return Upstream()(name, n)()

    return call


async def fetch(cache: Cache, name: object, n: int = 8000) -> str:
    """Return the outcome. The upstream answers at once."""
    answer = await cache.afetch(CHAT, request_of(name), async_call(name, n))
    assert is_answer(answer.payload, name)
    return answer.outcome


async def fetch_at_once(cache: Cache, name: object) -> str:
    """Return the outcome of a request that waits for no thread and no timer. The loop never sleeps meanwhile."""
    task = asyncio.create_task(fetch(cache, name))
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        if task.done():
            return task.result()
    raise AssertionError(f"the request for {name} waits")


class LoopMonitor:
    """Measures the longest time that the event loop was blocked."""

    async def __aenter__(self) -> LoopMonitor:
        self.worst = 0.0
        self._task = asyncio.create_task(self._beat())
        return self

    async def _beat(self) -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.002)
            self.worst = max(self.worst, time.perf_counter() - start - 0.002)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


def filled(path: Path) -> Cache:
    cache = small_cache(capacity="8MiB", path=path)
    for name in range(ENTRIES):
        cache.fetch(CHAT, request_of(name), Upstream()(name, 8000))
    store_of(cache).flush()
    return cache


async def wait_open(cache: Cache) -> None:
    """Send requests until the breaker opens."""
    for name in range(10):
        if cache.stats().breaker.state != "closed":
            return
        await fetch(cache, name)
    raise AssertionError("the breaker does not open")


@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_a_disk_that_does_not_answer(
    tmp_path: Path, slow_disk: SlowDisk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the breaker is open, no request waits for the disk, and none fails."""
    monkeypatch.setattr("knapcache.cache.breaker.COOLDOWN", 3600.0)  # a probe could read SQLite's page cache
    cache = filled(tmp_path / "answers.db")
    assert await fetch(cache, 0) == "hit"
    DISK_FAULTS[kind](slow_disk)
    async with LoopMonitor() as monitor:
        await wait_open(cache)
        assert slow_disk.injected > 0
        for name in range(10, 310):
            await fetch_at_once(cache, name % 200)
        at_once = await asyncio.gather(*(fetch(cache, f"new {name}") for name in range(200)))
        assert set(at_once) == {"miss"}
        again = await fetch(cache, "new 1")
        if kind != "stopped":
            assert again == "hit", "what is queued for the disk is in memory"
        assert cache.stats().breaker.skipped > 0
    check_seconds(monitor.worst, 2.0, "stall of the loop")
    monkeypatch.undo()
    slow_disk.repair()
    await wait_recovered(cache)
    await asyncio.to_thread(check_and_close, cache)


async def wait_recovered(cache: Cache) -> None:
    deadline = Deadline(lambda: f"a closed breaker: {cache.stats().breaker}")
    while True:
        await fetch(cache, 140)
        if cache.stats().breaker.state == "closed" and await fetch(cache, 140) == "hit":
            return
        deadline.check()
        await asyncio.sleep(0.05)


def check_and_close(cache: Cache) -> None:
    store_of(cache).flush()
    cache.check()
    cache.close()


async def test_entries_on_a_blocked_disk_are_not_forgotten(tmp_path: Path, slow_disk: SlowDisk) -> None:
    cache = filled(tmp_path / "answers.db")
    entries = cache.stats().entries
    slow_disk.start_fault()
    await wait_open(cache)
    for name in range(20, 60):
        with pytest.raises(Exception, match="only_cached forbids a call"):
            await cache.afetch(CHAT, request_of(name), async_call(name), only_cached=True)
    slow_disk.repair()
    await wait_recovered(cache)
    assert cache.stats().missing_entries == 0
    assert cache.stats().entries >= entries
    assert [await fetch(cache, name) for name in range(20, 60)] == ["hit"] * 40
    await asyncio.to_thread(check_and_close, cache)


async def test_a_blocked_writer_does_not_fill_the_memory(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "STALL_SECONDS", 0.1)
    cache = small_cache(capacity="64MiB", path=tmp_path / "answers.db")
    store = store_of(cache)
    assert isinstance(store, SqliteStore)
    writer = store._writer
    assert writer
    slow_disk.start_fault()
    for name in range(300):
        assert await fetch(cache, name, 200_000) == "miss"
    assert writer._backlog_bytes <= writer._max_backlog_bytes + store.max_entry_size
    stats = cache.stats()
    assert stats.rejected_store_busy > 0
    assert stats.admitted + stats.rejected_store_busy == 300
    jobs = writer._queue.qsize()
    for name in range(300, 600):
        await fetch(cache, name, 200_000)
    assert writer._queue.qsize() == jobs, "a rejected answer leaves nothing in the queue"
    await cache.afetch(CHAT, request_of(0), async_call(0), refresh=True)
    with pytest.raises(
        Exception, match="only_cached forbids a call"
    ):  # the old answer was evicted: a newer one was paid for
        await cache.afetch(CHAT, request_of(0), async_call(0), only_cached=True)
    slow_disk.repair()
    await asyncio.to_thread(store.flush)
    assert await fetch(cache, 1, 200_000) == "hit"
    assert await fetch(cache, 1000, 200_000) == "miss"
    assert await fetch(cache, 1000, 200_000) == "hit"
    await asyncio.to_thread(check_and_close, cache)


async def test_a_missing_entry_is_forgotten(tmp_path: Path) -> None:
    cache = filled(tmp_path / "answers.db")
    store = store_of(cache)
    key = next(iter(store.scan())).key
    await asyncio.to_thread(store.apply(evict=[key]).result)
    outcomes = [await fetch(cache, name) for name in range(ENTRIES)]
    assert (outcomes.count("hit"), outcomes.count("miss")) == (ENTRIES - 1, 1)
    assert cache.stats().missing_entries == 1
    await asyncio.to_thread(check_and_close, cache)


async def test_many_concurrent_reads_do_not_open_the_breaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_reads, "DEADLINE", 30.0)  # not a matter of time, however slow the machine
    cache = filled(tmp_path / "answers.db")
    outcomes = await asyncio.gather(*(fetch(cache, name % ENTRIES) for name in range(3000)))
    assert set(outcomes) == {"hit"}
    assert cache.stats().breaker.opened == 0
    await asyncio.to_thread(check_and_close, cache)


async def test_readers_hand_over_without_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(path) as owner, small_cache(capacity="8MiB", path=path) as reader:
        assert await fetch(reader, 1) == "hit"
        assert await fetch(reader, "new") == "miss"
        await async_wait_until(lambda: reader.stats().handed_over >= 1)
        await asyncio.to_thread(owner.maintain)
        assert await fetch(owner, "new") == "hit"
        free = threading.Event()
        monkeypatch.setattr(store_of(reader), "hand_over", lambda _: free.wait(30))
        async with LoopMonitor() as monitor:
            for name in range(20):
                assert await fetch(reader, f"large {name}", 1 << 20) == "miss"
        check_seconds(monitor.worst, 2.0, "stall of the loop")
        assert reader.stats().handover_failed > 0
        free.set()


async def test_a_closed_cache(tmp_path: Path) -> None:
    cache = filled(tmp_path / "answers.db")
    cache.close()
    assert await fetch(cache, 1) == "miss"
    assert cache.stats().breaker.opened == 0


def test_a_failed_read_raises(tmp_path: Path, slow_disk: SlowDisk) -> None:
    cache = filled(tmp_path / "answers.db")
    store = store_of(cache)
    key = next(iter(store.scan())).key
    found = store.get(key)
    assert found
    assert found.payload == payload_of(int(found.request.split(b"question ")[1].split(b'"')[0]), 8000)
    slow_disk.start_fault(broken=True)
    assert isinstance(store, SqliteStore)
    store._database._disconnect()  # its page cache has the row
    with pytest.raises(StoreError, match="could not be read"):
        store.read(key)
    assert store.get(key) is None
    slow_disk.repair()
    assert store.read(key) == found
    check_and_close(cache)
