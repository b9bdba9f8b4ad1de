"""An answer to a question in another wording: how it is served, counted and credited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from knapcache import Cache
from knapcache.cache.cache import internal_of
from knapcache.cache.internal import InternalCache
from knapcache.cache.values import SimilarMatch
from knapcache.exchange.exchange import Exchange
from knapcache.exchange.fetched import Fetched
from knapcache.exchange.fetcher import Fetcher
from knapcache.keys import KeyedRequest
from knapcache.store.base import Entry
from tests.exchange.conftest import Provider, answer_of, exchange, plain
from tests.support.caches import store_of

OTHER = [{"role": "user", "content": "Hello there?"}]


class Finder:
    """Finds one entry, for every request."""

    def __init__(self, entry: Entry | None, *, wait: float = 0.0, error: Exception | None = None) -> None:
        self.entry, self.asked, self.wait, self.error = entry, 0, wait, error

    async def find(self, request: KeyedRequest) -> tuple[Entry, SimilarMatch] | None:
        self.asked += 1
        await asyncio.sleep(self.wait)
        if self.error is not None:
            raise self.error
        if self.entry is None:
            return None
        assert request.key.digest != self.entry.key
        return self.entry, SimilarMatch(self.entry.key, 0.91234, 0.0087, "m1")


@pytest.fixture
def cache() -> Iterator[InternalCache]:
    with Cache("4MB", policy="gdsf-cost", shadows=()) as opened:
        cache = internal_of(opened)
        yield cache
        assert len(cache.engine.single_flight) == 0, "a flight was not ended"
        cache.check()


async def stored(cache: InternalCache, provider: Provider) -> Entry:
    fetched = await Fetcher(cache).fetch(exchange(), "provider", provider.send)
    assert fetched is not None
    (answer,) = await fetched.finish()
    entry = store_of(cache).get(bytes.fromhex(answer.key))
    assert entry is not None
    return entry


def similar(finder: Finder, **body: Any) -> Exchange:
    return exchange(messages=OTHER, **body)._replace(finder=finder)


async def fetch(cache: InternalCache, provider: Provider, asked: Exchange) -> Fetched:
    fetched = await Fetcher(cache).fetch(asked, "provider", provider.send)
    assert fetched is not None
    return fetched


async def test_the_entry_of_another_question_answers(cache: InternalCache) -> None:
    provider = Provider(plain())
    entry = await stored(cache, provider)
    fetched = await fetch(cache, provider, similar(Finder(entry)))
    headers = dict(fetched.headers)
    assert (fetched.status, fetched.body, headers["x-knapcache"]) == (200, answer_of("Hi"), "similar")
    assert headers["cache-status"] == "knapcache; hit; detail=similar"
    assert headers["x-knapcache-matched-key"] == entry.key.hex() != headers["x-knapcache-key"]
    assert (headers["x-knapcache-similarity"], headers["x-knapcache-bound"]) == ("0.9123", "0.0087")
    assert headers["x-knapcache-match"] == "m1"
    assert len(provider.requests) == 1
    stats = cache.stats()
    assert (stats["requests"], stats["similar"], stats["misses"], stats["hits"]) == (2, 1, 1, 0)


async def test_the_policy_counts_a_request_for_the_entry_that_answered(cache: InternalCache) -> None:
    provider = Provider(plain())
    entry = await stored(cache, provider)
    (before,) = cache.entries()["rows"]
    await fetch(cache, provider, similar(Finder(entry)))
    (after,) = cache.entries()["rows"]
    assert after["requests"] == before["requests"] + 1


async def test_requests_that_wait_get_the_same_answer_and_its_headers(cache: InternalCache) -> None:
    provider = Provider(plain())
    finder = Finder(await stored(cache, provider), wait=0.05)
    found = await asyncio.gather(*(fetch(cache, provider, similar(finder)) for _ in range(5)))
    assert {dict(each.headers)["x-knapcache"] for each in found} == {"similar"}
    assert {dict(each.headers)["x-knapcache-match"] for each in found} == {"m1"}
    assert (finder.asked, len(provider.requests), cache.stats()["similar"]) == (1, 1, 5)


async def test_it_is_served_as_a_stream(cache: InternalCache) -> None:
    provider = Provider(plain())
    fetched = await fetch(cache, provider, similar(Finder(await stored(cache, provider)), stream=True))
    assert b"[DONE]" in b"".join(fetched.body)  # type: ignore[arg-type]
    assert dict(fetched.headers)["x-knapcache"] == "similar"


async def test_without_a_match_the_request_is_sent(cache: InternalCache) -> None:
    provider = Provider(plain(), plain())
    await stored(cache, provider)
    fetched = await fetch(cache, provider, similar(Finder(None)))
    assert dict(fetched.headers)["x-knapcache"] == "miss"
    await fetched.finish()


async def test_a_hit_and_a_refresh_do_not_look_for_another_question(cache: InternalCache) -> None:
    provider = Provider(plain(), plain())
    finder = Finder(await stored(cache, provider))
    hit = await fetch(cache, provider, exchange()._replace(finder=finder))
    assert dict(hit.headers)["x-knapcache"] == "hit"
    asked = similar(finder)
    asked = asked._replace(control=type(asked.control)(refresh=True))
    await (await fetch(cache, provider, asked)).finish()
    assert finder.asked == 0


async def test_a_finder_that_fails_releases_the_waiters(cache: InternalCache) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await fetch(cache, Provider(plain()), similar(Finder(None, error=RuntimeError("broken"))))
