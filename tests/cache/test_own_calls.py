"""`get` and `put`: programs that make their calls themselves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from knapcache import InvalidInput, Reply
from knapcache.cache.engine import BYTES_PER_SECOND
from knapcache.cache.open_misses import MAX_OPEN, MAX_OPEN_OF_KEY
from tests.support.caches import CHAT, Upstream, payload_of, request_of, small_cache


def test_a_miss_and_its_answer_are_one_request() -> None:
    with small_cache() as cache:
        assert cache.get(CHAT, request_of(1)) is None
        time.sleep(0.02)
        assert cache.put(CHAT, request_of(1), Reply(payload_of(1), "m2"))
        hit = cache.get(CHAT, request_of(1))
        assert hit is not None
        assert (hit.outcome, hit.payload, hit.model) == ("hit", payload_of(1), "m2")
        stats = cache.stats()
        assert (stats.requests, stats.misses, stats.hits, stats.admitted) == (2, 1, 1, 1)
        assert 0.02 <= stats.seconds_spent == hit.bill.seconds < 10.0, "the time from get to put"
        assert len(cache._engine.open_misses) == 0
        cache.check()


def test_namespace_context_and_age_are_those_of_fetch() -> None:
    now = [1e9]
    with small_cache(clock=lambda: now[0]) as cache:
        where = {"namespace": "a", "context": {"upstream": "x"}}
        assert cache.get(CHAT, request_of(1), **where) is None  # type: ignore[arg-type]
        cache.put(CHAT, request_of(1), Reply(b"an answer", cost=1.0), **where)  # type: ignore[arg-type]
        assert cache.fetch(CHAT, request_of(1), Upstream()(1), only_cached=True, **where).payload == b"an answer"  # type: ignore[arg-type]
        assert cache.get(CHAT, request_of(1), namespace="a") is None
        now[0] += 10.0
        assert cache.get(CHAT, request_of(1), max_age=5.0, **where) is None  # type: ignore[arg-type]
        assert cache.get(CHAT, request_of(1), max_age=15.0, **where) is not None  # type: ignore[arg-type]


def test_an_answer_without_a_get_counts_as_a_request_of_estimated_duration() -> None:
    with small_cache() as cache:
        for version in range(2):
            assert cache.put(CHAT, request_of(1), Reply(payload_of(1, version=version)))
        assert cache.put(CHAT, request_of(2), Reply(b"known", seconds=3.0))
        stats = cache.stats()
        assert (stats.requests, stats.misses, stats.hits) == (3, 3, 0)
        seconds = sum(len(payload_of(1, version=version)) for version in range(2)) / BYTES_PER_SECOND + 3.0
        assert stats.seconds_spent == pytest.approx(seconds)
        hit = cache.get(CHAT, request_of(1))
        assert hit is not None
        assert hit.payload == payload_of(1, version=1), "the newer answer replaces the older one"
        cache.check()


def test_concurrent_misses_of_a_key_have_an_answer_each() -> None:
    with small_cache() as cache:
        for _ in range(3):
            assert cache.get(CHAT, request_of(1)) is None
        for _ in range(3):
            assert cache.put(CHAT, request_of(1), Reply(b"answer", cost=1.0))
        assert (cache.stats().requests, cache.stats().misses) == (3, 3)


def test_misses_without_an_answer_are_dropped() -> None:
    with small_cache() as cache:
        for _ in range(MAX_OPEN_OF_KEY + 1):
            assert cache.get(CHAT, request_of("polled")) is None
        for k in range(MAX_OPEN):
            assert cache.get(CHAT, request_of(k)) is None
        assert len(cache._engine.open_misses) == MAX_OPEN
        requests = cache.stats().requests
        assert cache.put(CHAT, request_of("polled"), Reply(b"late", cost=1.0))
        assert cache.stats().requests == requests + 1, "it was dropped first"


def test_what_is_not_a_reply_is_refused_and_the_miss_stays_open() -> None:
    with small_cache() as cache:
        assert cache.get(CHAT, request_of(1)) is None
        with pytest.raises(InvalidInput, match="put takes a Reply, not a bytes"):
            cache.put(CHAT, request_of(1), b"answer")  # type: ignore[arg-type]
        assert cache.put(CHAT, request_of(1), Reply(b"answer", cost=1.0))
        assert cache.stats().requests == 1


async def test_coroutines(tmp_path: Path) -> None:
    async with small_cache(path=tmp_path / "answers.db") as cache:
        assert await cache.aget(CHAT, request_of(1)) is None
        await asyncio.sleep(0.01)
        assert await cache.aput(CHAT, request_of(1), Reply(payload_of(1)))
        hit = await cache.aget(CHAT, request_of(1))
        assert hit is not None
        assert hit.payload == payload_of(1)
        assert not await cache.aput(CHAT, b"[]", Reply(b"no key"))
        assert (cache.stats().requests, cache.stats().hits) == (2, 1)
        cache.check()


def test_a_child_process_has_no_open_misses() -> None:
    with small_cache() as cache:
        assert cache.get(CHAT, request_of(1)) is None
        before = cache._engine.open_misses
        cache._engine.after_fork()
        assert len(before) == 1
        assert len(cache._engine.open_misses) == 0
