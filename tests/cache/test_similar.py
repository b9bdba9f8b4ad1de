"""What the semantic tier reads of a cache, and the counts that a request takes over from one that means the same."""

from __future__ import annotations

import pytest

from knapcache import Cache, Reply
from tests.support.caches import CHAT, keyed, request_of


def key_of(cache: Cache, text: str) -> bytes:
    return keyed(cache, request_of(text)).key.digest


def ask(cache: Cache, text: str) -> None:
    cache.fetch(CHAT, request_of(text), lambda: Reply(b"x" * 100, cost=1.0))


@pytest.mark.parametrize("policy", ["gdsf-cost-history", "adaptive"])
def test_a_newcomer_starts_with_the_count_of_a_request_that_means_the_same(policy: str) -> None:
    with Cache("1MB", policy=policy, shadows=()) as cache:
        for _ in range(6):
            ask(cache, "popular")
        for text in ("alone", "newcomer"):
            ask(cache, text)
            cache.purge(key=key_of(cache, text))
        cache._internal.similar.inherit(key_of(cache, "newcomer"), key_of(cache, "popular"))
        for text in ("alone", "newcomer"):
            ask(cache, text)
        counts = {row.key: row.requests for row in cache.entries().rows}
        alone, popular, newcomer = (counts[key_of(cache, text).hex()] for text in ("alone", "popular", "newcomer"))
        assert newcomer > 2.0 * alone
        assert newcomer == pytest.approx(popular, abs=1.5)
        cache.check()


def test_a_stored_entry_and_an_unknown_key_inherit_nothing() -> None:
    with Cache("1MB", policy="gdsf-cost", shadows=()) as cache:
        for _ in range(6):
            ask(cache, "popular")
        ask(cache, "other")
        cache._internal.similar.inherit(key_of(cache, "other"), key_of(cache, "popular"))
        cache._internal.similar.inherit(key_of(cache, "unknown"), key_of(cache, "popular"))
        assert sorted(row.requests for row in cache.entries().rows) == [1, 6]


def test_a_policy_that_does_not_count_inherits_nothing() -> None:
    with Cache("1MB", policy="lru", shadows=()) as cache:
        ask(cache, "a")
        cache._internal.similar.inherit(key_of(cache, "b"), key_of(cache, "a"))
        cache.check()


def test_entries_are_read_without_counting_a_request() -> None:
    now = [1000.0]
    with Cache("1MB", policy="lru", shadows=(), ttl=60.0, clock=lambda: now[0]) as cache:
        ask(cache, "a")
        a, b = key_of(cache, "a"), key_of(cache, "b")
        entry = cache._internal.similar.entry(a)
        assert entry is not None
        assert entry.key == a
        assert cache._internal.similar.entry(b) is None
        assert cache._internal.similar.missing([a, b]) == [b]
        assert cache.stats().requests == 1
        now[0] += 61.0
        assert cache._internal.similar.entry(a) is None
