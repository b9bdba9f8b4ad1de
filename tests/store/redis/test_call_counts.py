"""Counters of calls in the server: on every topology, with a life time, and after the server has lost them."""

from __future__ import annotations

from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.features.limits.core import CallAmounts, Charge, LimitValues, Read, Reserve, Scope
from knapcache.features.limits.redis_counts import RedisCounts
from knapcache.store.redis.call_counts import MAX_OPERATIONS
from knapcache.store.redis.store import RedisStore
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until

NOW = 1_780_000_000.0
TEAM = (Scope("team", LimitValues(requests_per_minute=100, usd_per_day=9.0)),)
CALL = CallAmounts(1, 0.25, 10.0)


def is_attached(store: RedisStore) -> bool:
    """Return whether the store has found its engine. On a busy machine that may take longer than its timeout."""
    try:
        store._member.attachment()
    except StoreError:
        return False
    return True


def exercise(first: RedisStore, second: RedisStore) -> None:
    one, two = (RedisCounts(store.call_counts, name, b"s") for store, name in ((first, "a"), (second, "b")))
    wait_until(lambda: is_attached(first) and is_attached(second), "the server")
    found = one.apply([Reserve(TEAM, CALL)] * (MAX_OPERATIONS + 5), NOW)
    refused = [result.refusal.limit for result in found if result.refusal is not None]
    assert refused == ["usd_per_day"] * (MAX_OPERATIONS + 5 - 36)
    one.apply([Charge(TEAM, CALL, CallAmounts(0, 0.1, 5.0))] * 36, NOW)
    (usage,) = two.apply([Read(TEAM)], NOW)[0].usages
    assert usage.usd_day == usage.usd_month == pytest.approx(3.6)
    assert (sum(usage.requests), sum(usage.tokens), usage.in_flight) == (36, 180, CallAmounts())
    two.beat({"team": CALL}, NOW)
    (usage,) = one.apply([Read(TEAM)], NOW)[0].usages
    assert usage.in_flight == CALL


def test_processes_count_together(url: str, open_store: OpenStore) -> None:
    exercise(open_store(url), open_store(url))


def test_counters_have_a_life_time_and_no_readable_names(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    exercise(store, store)
    with engine.client() as client:
        names = client.keys(f"{{{store.address.prefix}:o}}:u:*")
        assert len(names) == 5
        assert all(client.ttl(name) > 0 for name in names), "every counter has a life time"
        assert not any(b"team" in name for name in names), "names of tenants are not readable"


def test_an_engine_that_stops_raises_a_store_error(tmp_path: Path, open_store: OpenStore) -> None:
    with RedisProcess(tmp_path) as server:
        counts = RedisCounts(open_store(server.url).call_counts, "a", b"s")
        counts.apply([Read(TEAM)], NOW)
    with pytest.raises(StoreError):
        counts.apply([Read(TEAM)], NOW)
