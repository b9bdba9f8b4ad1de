"""A namespace never exceeds its quota, and only its own entries are evicted for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, InvalidInput, Reply
from knapcache.errors import CorruptState
from tests.support.caches import (
    CHAT,
    Upstream,
    admission_of,
    is_answer,
    keyed,
    request_of,
    residents,
    small_cache,
    store_of,
)

QUOTA = 40_000


def fetch(cache: Cache, name: int, tenant: str, n: int = 4000, **more: Any) -> str:
    answer = cache.fetch(CHAT, request_of(name), Upstream()(name, n, **more), namespace=tenant)
    assert is_answer(answer.payload, name)
    return answer.outcome


def used_bytes(cache: Cache, tenant: str) -> int:
    found = cache.stats().tenant_bytes.get(tenant, 0)
    assert found == sum(row.size for row in cache.entries(tenant=tenant, limit=1000).rows)
    return int(found)


@pytest.mark.parametrize("policy", ["lru", "gdsf-cost", "adaptive"])
def test_the_quota_holds(policy: str, tmp_path: Path) -> None:
    for path in (None, tmp_path / f"{policy}.db"):
        with small_cache(policy=policy, quotas={"a": QUOTA, "c": 0}, path=path) as cache:
            rng = random.Random(1)
            for k in range(300):
                fetch(cache, rng.randrange(60), "abc"[k % 3], rng.randrange(100, 20_000), cost=rng.random())
                found = cache.stats().tenant_bytes
                assert found.get("a", 0) <= QUOTA
                assert "c" not in found
            cache.check()
            assert used_bytes(cache, "a") > QUOTA // 2
            assert used_bytes(cache, "b") > QUOTA
            assert cache.stats().rejected_over_quota == 100


def test_its_own_least_valuable_entries_are_evicted_first() -> None:
    with small_cache(policy="gdsf-cost", quotas={"a": QUOTA}) as cache:
        for name in range(20):
            fetch(cache, name, "b", cost=0.001)
        for name in range(7):
            fetch(cache, name, "a", cost=10.0 - name)
            fetch(cache, name, "a")
        for name in range(100, 120):
            fetch(cache, name, "a", cost=0.5)
        costs = sorted((row.cost for row in cache.entries(tenant="a").rows), reverse=True)
        assert costs[:6] == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]
        assert costs[-1] == 0.5
        assert cache.entries(tenant="b").total == 20, "other namespaces keep their entries"
        cache.check()


def test_an_entry_that_was_requested_since_the_last_ranking_stays() -> None:
    with small_cache(policy="gdsf-cost", quotas={"a": 70 * 6000}, capacity="2MiB") as cache:
        for name in range(100):
            fetch(cache, name, "a", cost=1.0)  # some are evicted by now, and the next victims are ranked
        admission = admission_of(cache)
        (next_victim, _), *_ = admission.quotas._victims["a"]
        assert next_victim in admission.policy.residents
        name = next(k for k in range(100) if key_of(cache, k) == admission.ids.keys[next_victim])
        assert fetch(cache, name, "a") == "hit"
        for other in range(200, 220):
            fetch(cache, other, "a", cost=1.0)
        assert next_victim not in [victim for victim, _ in admission.quotas._victims["a"]]
        assert fetch(cache, name, "a") == "hit"
        cache.check()


def test_an_entry_of_exactly_the_quota_is_admitted_and_one_byte_more_is_not() -> None:
    with small_cache() as cache:
        fetch(cache, 1, "a")
        size = used_bytes(cache, "a")
    for quota, expected in ((size, "hit"), (size - 1, "miss")):
        with small_cache(quotas={"a": quota}) as cache:
            fetch(cache, 1, "a")
            assert fetch(cache, 1, "a") == expected
            cache.check()


@pytest.mark.parametrize("entries", [10, 70, 900])
def test_of_equal_entries_the_oldest_are_evicted_first(entries: int) -> None:
    """Whatever their ids are: the times of creation are shuffled."""
    times = list(range(2 * entries))
    random.Random(entries).shuffle(times)
    created = {100_000 + k: times[k] for k in range(entries)} | {200_000 + k: 10_000 + k for k in range(entries // 2)}
    now = [0]
    with small_cache(quotas={"a": 10**8}, capacity="64MiB", clock=lambda: float(now[0])) as cache:
        for name, now[0] in created.items():
            if name == 200_000:
                admission_of(cache).quotas.limits["a"] = used_bytes(cache, "a")
            fetch(cache, name, "a")
        newest = sorted(created, key=created.__getitem__)[-entries:]
        assert residents(cache) == {key_of(cache, name) for name in newest}
        cache.check()


@pytest.mark.parametrize(("entries", "ahead"), [(31, 2), (32, 3), (1007, 63), (1008, 64), (1100, 64)])
def test_one_in_sixteen_entries_is_ranked_ahead_and_at_most_64(entries: int, ahead: int) -> None:
    with small_cache(quotas={"a": 10**8}) as cache:
        admission = admission_of(cache)
        for i in range(entries):
            admission.quotas.add(i, "a", 1)
        admission.policy.rows["entry_size"][:entries] = 1
        assert len(admission.quotas._ranked("a", newcomer=-1)) == ahead
        for i in range(entries):
            admission.quotas.remove(i)


def key_of(cache: Cache, name: int) -> bytes:
    return keyed(cache, request_of(name), namespace="a").key.digest


def test_an_answer_above_the_quota_evicts_the_older_one() -> None:
    with small_cache(quotas={"a": QUOTA}) as cache:
        fetch(cache, 1, "a")
        cache.fetch(CHAT, request_of(1), Upstream()(1, 50_000), namespace="a", refresh=True)
        assert used_bytes(cache, "a") == 0
        assert cache.stats().rejected_over_quota == 1
        assert fetch(cache, 1, "b", 50_000) == "miss"
        assert fetch(cache, 1, "b", 50_000) == "hit"
        cache.check()


def test_a_smaller_quota_after_a_restart(path: Path) -> None:
    with small_cache(path=path, policy="adaptive") as cache:
        for name in range(30):
            fetch(cache, name, "a", cost=float(name))
        assert used_bytes(cache, "a") > QUOTA
    with small_cache(path=path, policy="adaptive", quotas={"a": QUOTA}) as cache:
        assert 0 < used_bytes(cache, "a") <= QUOTA
        store_of(cache).flush()
        cache.check()
        assert min(row.cost for row in cache.entries(tenant="a").rows) > 15.0
    with small_cache(path=path, policy="adaptive", quotas={"a": 0}) as cache:
        assert used_bytes(cache, "a") == 0


def test_check_finds_wrong_sums_and_an_exceeded_quota() -> None:
    with small_cache(quotas={"a": QUOTA}) as cache:
        fetch(cache, 1, "a")
        quotas, size = admission_of(cache).quotas, used_bytes(cache, "a")
        cache.check()
        for wrong in (size - 1, size + 1):
            quotas._used["a"] = wrong
            with pytest.raises(CorruptState, match="counted were"):
                cache.check()
        quotas._used["a"] = quotas.limits["a"] = size
        cache.check()
        quotas.limits["a"] = size - 1
        with pytest.raises(CorruptState, match="above its quota"):
            cache.check()
        quotas.limits["a"] = QUOTA


def test_entries_that_the_policy_evicts_leave_the_quota() -> None:
    with small_cache(quotas={"a": QUOTA}) as cache:
        fetch(cache, 1, "a")
        quotas = admission_of(cache).quotas
        for name in range(100, 400):
            fetch(cache, name, "b")
        assert used_bytes(cache, "a") == quotas._used["a"] == 0
        assert not quotas._tenants.any()
        cache.check()


def test_an_entry_whose_id_is_reused_leaves_the_quota() -> None:
    """Also if the answer that got the id is not stored."""
    with small_cache(ids=2, quotas={"a": QUOTA}) as cache:
        fetch(cache, 1, "a")
        fetch(cache, 2, "a")
        both = used_bytes(cache, "a")
        with pytest.raises(ConnectionError):
            cache.fetch(CHAT, request_of(3), failing, namespace="b")
        assert used_bytes(cache, "a") == admission_of(cache).quotas._used["a"] < both
        cache.check()


def failing() -> Reply:
    raise ConnectionError


@pytest.mark.parametrize("quotas", [{"a": -1}, {"a": 1.5}, {"a": True}, {1: 5}, {"a": "50MB"}, [("a", 1)]])
def test_bad_quotas(quotas: Any) -> None:
    with pytest.raises(InvalidInput, match="quota"):
        small_cache(quotas=quotas)
