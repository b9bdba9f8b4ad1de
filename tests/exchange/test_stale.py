"""Stale answers are served while a fresh one is fetched, or because none can be fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from knapcache import Answer, Cache
from knapcache.cache.cache import internal_of
from knapcache.cache.internal import InternalCache
from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange
from knapcache.exchange.fetcher import Fetcher
from knapcache.exchange.stale import StaleAnswer, StaleFetcher, extend_ttl, stale_seconds
from tests.exchange.conftest import JSON, SSE, Provider, ScriptedResponse, blocks_of, exchange, failure, plain
from tests.support.clock import Clock

TTL, WHILE_REVALIDATE, IF_ERROR = 10.0, 5.0, 60.0


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def cache(clock: Clock) -> Iterator[InternalCache]:
    with Cache("4MB", policy="lru", shadows=(), ttl=TTL, clock=clock) as opened:
        cache = internal_of(opened)
        yield cache
        assert len(cache.engine.single_flight) == 0, "a flight was not ended"
        cache.check()


@pytest.fixture
def stale(cache: InternalCache) -> StaleFetcher:
    return StaleFetcher(Fetcher(cache), cache, ttl=TTL, while_revalidate=WHILE_REVALIDATE, if_error=IF_ERROR)


async def served(stale: StaleFetcher, provider: Provider, request: Exchange | None = None) -> tuple[str, bytes]:
    """Return the outcome and the text of a response."""
    fetched = await stale.fetch(request or exchange(), "provider", provider.send)
    assert fetched is not None
    await fetched.drain()
    assert isinstance(fetched.body, bytes)
    return dict(fetched.headers)["x-knapcache"], fetched.body


async def test_a_stale_answer_is_served_and_refreshed_in_the_background(
    stale: StaleFetcher, clock: Clock, cache: InternalCache
) -> None:
    provider = Provider(plain("old"), plain("new"))
    assert (await served(stale, provider))[0] == "miss"
    clock.now += TTL
    assert (await served(stale, provider))[0] == "hit"
    clock.now += WHILE_REVALIDATE
    outcome, body = await served(stale, provider)
    assert (outcome, b"old" in body) == ("stale", True)
    await stale.drain(5.0)
    outcome, body = await served(stale, provider)
    assert (outcome, b"new" in body) == ("hit", True)
    assert len(provider.requests) == 2
    assert cache.stats()["misses"] == 2


async def test_concurrent_stale_requests_start_one_refresh(
    stale: StaleFetcher, clock: Clock, cache: InternalCache, gate: asyncio.Event
) -> None:
    provider = Provider(plain("old"), ScriptedResponse(200, JSON, gate, failure()), plain("new"))
    await served(stale, provider)
    clock.now += TTL + 1
    requests = [stale.fetch(exchange(), "provider", provider.send) for _ in range(50)]
    fetched = await asyncio.gather(*requests)
    assert [dict(each.headers)["x-knapcache"] for each in fetched if each] == ["stale"] * 50
    started = [each.refresh for each in fetched if isinstance(each, StaleAnswer) and each.refresh]
    assert len(started) == 1
    gate.set()
    await stale.drain(5.0)
    assert len(provider.requests) == 2
    assert cache.stats()["coalesced"] == 0
    assert (await served(stale, provider))[0] == "stale", "a failed refresh changes nothing, and is tried again"
    await stale.drain(5.0)
    assert b"new" in (await served(stale, provider))[1]


async def test_a_stream_is_refreshed_to_its_end_though_nobody_reads_it(clock: Clock, cache: InternalCache) -> None:
    fetcher = Fetcher(cache, finish_abandoned=False)
    stale = StaleFetcher(fetcher, cache, ttl=TTL, while_revalidate=WHILE_REVALIDATE, if_error=IF_ERROR)
    provider = Provider(*(ScriptedResponse(200, SSE, *blocks_of(text)) for text in ("old", "new")))
    for seconds, outcome in ((0.0, "miss"), (TTL + 1, "stale")):
        clock.now += seconds
        fetched = await stale.fetch(exchange(stream=True), "provider", provider.send)
        assert fetched is not None
        assert dict(fetched.headers)["x-knapcache"] == outcome
        await fetched.drain()
    await stale.drain(5.0)
    assert b"new" in (await served(stale, provider))[1]


@pytest.mark.parametrize("error", [failure(), 500, 429])
async def test_a_stale_answer_is_served_if_the_provider_fails(
    stale: StaleFetcher, clock: Clock, error: UpstreamFailed | int
) -> None:
    broken = ScriptedResponse(error, JSON, b"{}") if isinstance(error, int) else error
    provider = Provider(plain("old"), broken, plain("new"))
    await served(stale, provider)
    clock.now += TTL + WHILE_REVALIDATE + 1
    outcome, body = await served(stale, provider)
    assert (outcome, b"old" in body) == ("stale", True)
    outcome, body = await served(stale, provider)
    assert (outcome, b"new" in body) == ("miss", True)


async def test_errors_of_the_request_are_passed_on(stale: StaleFetcher, clock: Clock) -> None:
    provider = Provider(plain("old"), ScriptedResponse(404, JSON, b"{}"))
    await served(stale, provider)
    clock.now += TTL + WHILE_REVALIDATE + 1
    fetched = await stale.fetch(exchange(), "provider", provider.send)
    assert fetched is not None
    await fetched.finish()
    assert fetched.status == 404


@pytest.mark.parametrize("late", [31.0, IF_ERROR + 1])
async def test_after_the_window_failures_are_passed_on(
    stale: StaleFetcher, cache: InternalCache, clock: Clock, late: float
) -> None:
    """The window may have become shorter since the answer was stored."""
    provider = Provider(plain("old"), failure(), ScriptedResponse(500, JSON, b"{}"))
    await served(stale, provider)
    clock.now += TTL + late
    shorter = StaleFetcher(Fetcher(cache), cache, ttl=TTL, while_revalidate=0.0, if_error=30.0)
    with pytest.raises(UpstreamFailed):
        await served(shorter, provider)
    assert await served(shorter, provider) == ("miss", b"{}")


async def test_directives_are_obeyed(stale: StaleFetcher, clock: Clock) -> None:
    provider = Provider(plain("old"), plain("new"))
    await served(stale, provider)
    clock.now += TTL + 1
    no_store = exchange({"cache-control": "no-store"})
    assert (await served(stale, provider, no_store))[0] == "stale"
    await stale.drain(5.0)
    assert len(provider.requests) == 1, "an answer that may not be stored is not worth a call"
    only = exchange({"cache-control": "only-if-cached"})
    assert (await served(stale, provider, only))[0] == "stale"
    await stale.drain(5.0)
    assert len(provider.requests) == 2


async def test_a_refresh_that_is_cancelled_ends_its_flight(stale: StaleFetcher, clock: Clock) -> None:
    provider = Provider(plain("old"), plain("new"))
    await served(stale, provider)
    clock.now += TTL + 1
    fetched = await stale.fetch(exchange(), "provider", provider.send)
    assert isinstance(fetched, StaleAnswer)
    assert fetched.refresh is not None
    fetched.refresh.cancel()  # before it began
    await stale.drain(5.0)


@pytest.mark.parametrize(
    ("ttl", "own", "expected"),
    [(None, None, (None, None)), (10.0, None, (10.0, 70.0)), (10.0, "3", (3.0, 63.0)), (None, "3", (3.0, 63.0))],
)
def test_an_answer_is_stored_until_the_end_of_the_window(ttl: float | None, own: str | None, expected: Any) -> None:
    request = exchange({"cf-aig-cache-ttl": own} if own else {})
    extended = extend_ttl(request, ttl, 60.0)
    assert (extended.fresh_for, extended.control.ttl) == expected


@pytest.mark.parametrize(
    ("outcome", "meta", "seconds"),
    [
        ("hit", {"fresh": 10.0}, 2.0),
        ("hit", {}, 0.0),
        ("coalesced", {"fresh": 10.0}, 0.0),
        ("hit", {"fresh": 20}, -8.0),
    ],
)
def test_only_hits_are_stale(outcome: Any, meta: dict[str, Any], seconds: float) -> None:
    assert stale_seconds(Answer(b"", meta, outcome, "", 12.0, None, "m")) == seconds
