"""Caches on one engine: who decides, what survives an outage, and what a purge reaches."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from knapcache import Cache
from knapcache.store.redis.store import RedisStore
from tests.support.redis_servers import EngineServer, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A server that the tests may stop."""
    with EngineServer(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture
def url(server: EngineServer, request: pytest.FixtureRequest) -> str:
    return f"{server.url}?prefix={request.node.name[:60]}&near=100kB"


def open_cache(url: str) -> Cache:
    return Cache("2MB", path=url, policy="lru")


def store_of(cache: Cache) -> RedisStore:
    store = cache._coordinator.store
    assert isinstance(store, RedisStore)
    return store


def answer(cache: Cache, key: object, new: object) -> object:
    return cache.get_or_call(key, lambda: new)


def test_caches_share_answers(url: str) -> None:
    with open_cache(url) as first, open_cache(url) as second:
        assert (first.owner, second.owner) == (True, False)
        assert answer(second, "key", 1) == 1
        assert answer(second, "key", 2) == 1, "not in the nursery"
        first.maintain()
        assert answer(first, "key", 3) == 1, "not collected"
        second.maintain()
        first.maintain()
        assert first.stats()["reported_hits"] == 1
        first.close()
        second.maintain()
        assert second.owner
        assert answer(second, "key", 4) == 1
        second.check()


def test_a_replaced_owner_reads_on(url: str, server: EngineServer) -> None:
    with open_cache(url) as first, open_cache(url) as second:
        assert answer(first, "key", 1) == 1
        first.maintain()
        with server.client() as client:  # as if the first had been stopped for longer than its lease
            client.delete(store_of(first)._member.attachment().names.owner)
        second.maintain()
        assert second.owner
        assert answer(first, "late", 1) == 1
        wait_until(lambda: not first.owner)
        first.maintain()
        assert first.stats()["ownership_lost"] == 1
        assert answer(first, "key", 2) == 1
        assert answer(first, "new", 3) == 3
        second.maintain()
        assert answer(second, "new", 4) == 3
        second.check()


def test_an_outage_makes_misses_and_forgets_no_entry(url: str, server: EngineServer) -> None:
    with open_cache(url) as cache:
        for key in range(20):
            answer(cache, key, key)
        cache.maintain()
        server.signal(signal.SIGSTOP)
        try:
            assert [answer(cache, key, "new") for key in range(5)] == ["new"] * 5
        finally:
            server.signal(signal.SIGCONT)
        wait_until(lambda: not store_of(cache).write_backlog_full)
        assert [answer(cache, key, "new") for key in range(5, 20)] == list(range(5, 20))
        assert "missing_entries" not in cache.stats()
        cache.check()


def test_a_purge_reaches_near_caches_and_undecided_answers(url: str) -> None:
    with open_cache(url) as owner, open_cache(url) as reader:
        answer(owner, "decided", 1)
        wait_until(lambda: store_of(reader)._near.subscribed)
        assert [answer(reader, key, 1) for key in ("decided", "undecided", "undecided")] == [1, 1, 1]
        assert owner.purge() == 2
        wait_until(lambda: answer(reader, "decided", 2) == 2, 5)
        assert answer(reader, "undecided", 2) == 2
