"""A namespace has no more than its quota, ever, and what it gives up for that is its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, InvalidInput
from tests.support.caches import CHAT, Upstream, is_answer, request_of, small_cache, store_of

QUOTA = 40_000


def ask(cache: Cache, name: int, tenant: str, n: int = 4000, **more: Any) -> str:
    answer = cache.fetch(CHAT, request_of(name), Upstream()(name, n, **more), namespace=tenant)
    assert is_answer(answer.payload, name)
    return answer.outcome


def room(cache: Cache, tenant: str) -> int:
    found = cache.stats()["tenant_bytes"].get(tenant, 0)
    assert found == sum(row["size"] for row in cache.entries(tenant=tenant, limit=1000)["rows"])
    return int(found)


@pytest.mark.parametrize("policy", ["lru", "gdsf-cost", "adaptive"])
def test_the_quota_holds(policy: str, ram_path: Path) -> None:
    for path in (None, ram_path / f"{policy}.db"):
        with small_cache(policy=policy, quotas={"a": QUOTA, "c": 0}, path=path) as cache:
            rng = random.Random(1)
            for k in range(300):
                ask(cache, rng.randrange(60), "abc"[k % 3], rng.randrange(100, 20_000), cost=rng.random())
                assert room(cache, "a") <= QUOTA
                assert room(cache, "c") == 0
            cache.check()
            assert room(cache, "a") > QUOTA // 2
            assert room(cache, "b") > QUOTA
            assert cache.stats()["rejected_over_quota"] == 100


def test_its_own_least_valuable_go_first() -> None:
    with small_cache(policy="gdsf-cost", quotas={"a": QUOTA}) as cache:
        for name in range(20):
            ask(cache, name, "b", cost=0.001)
        for name in range(7):
            ask(cache, name, "a", cost=10.0 - name)
            ask(cache, name, "a")
        for name in range(100, 120):
            ask(cache, name, "a", cost=0.5)
        costs = sorted((row["cost"] for row in cache.entries(tenant="a")["rows"]), reverse=True)
        assert costs[:6] == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]
        assert costs[-1] == 0.5
        assert cache.entries(tenant="b")["total"] == 20, "others have nothing to do with it"
        cache.check()


def test_what_was_asked_for_since_the_last_look_stays() -> None:
    with small_cache(policy="gdsf-cost", quotas={"a": 70 * 6000}, capacity="2MiB") as cache:
        for name in range(100):
            ask(cache, name, "a", cost=1.0)  # by now some have gone, and those who go next are noted
        (first, *_) = sorted(cache.entries(tenant="a", limit=100)["rows"], key=lambda row: row["age"], reverse=True)
        name = next(k for k in range(100) if cache.lookup(CHAT, request_of(k), namespace="a").key == first["key"])
        assert ask(cache, name, "a") == "hit"
        for other in range(200, 220):
            ask(cache, other, "a", cost=1.0)
        assert ask(cache, name, "a") == "hit"
        cache.check()


def test_too_large_for_it_and_the_old_one_goes() -> None:
    with small_cache(quotas={"a": QUOTA}) as cache:
        ask(cache, 1, "a")
        cache.fetch(CHAT, request_of(1), Upstream()(1, 50_000), namespace="a", refresh=True)
        assert room(cache, "a") == 0
        assert cache.stats()["rejected_over_quota"] == 1
        assert ask(cache, 1, "b", 50_000) == "miss"
        assert ask(cache, 1, "b", 50_000) == "hit"
        cache.check()


def test_a_smaller_quota_after_a_restart(ram_path: Path) -> None:
    path = ram_path / "answers.db"
    with small_cache(path=path, policy="adaptive") as cache:
        for name in range(30):
            ask(cache, name, "a", cost=float(name))
        assert room(cache, "a") > QUOTA
    with small_cache(path=path, policy="adaptive", quotas={"a": QUOTA}) as cache:
        assert 0 < room(cache, "a") <= QUOTA
        store_of(cache).flush()
        cache.check()
        assert min(row["cost"] for row in cache.entries(tenant="a")["rows"]) > 15.0


@pytest.mark.parametrize("quotas", [{"a": -1}, {"a": 1.5}, {"a": True}, {1: 5}, {"a": "50MB"}, [("a", 1)]])
def test_bad_quotas(quotas: Any) -> None:
    with pytest.raises(InvalidInput, match="quota"):
        small_cache(quotas=quotas)
