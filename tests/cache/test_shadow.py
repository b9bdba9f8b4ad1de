"""Shadows decide and pay like policies that see one request at a time, whatever the batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, InvalidInput
from knapcache.cache.shadow import BATCH, Shadows, parse_shadow
from knapcache.policy import registry
from tests.support.caches import CHAT, Upstream, request_of

NAMES = ("lru", "gdsf-cost")


@pytest.mark.parametrize("many", [1, BATCH - 1, BATCH, 3 * BATCH + 7])
def test_batches_change_nothing(many: int) -> None:
    rng = random.Random(many)
    shadows = Shadows(NAMES, 5000, 60)
    policies = {name: registry.find(name).build(5000, 60) for name in NAMES}
    spent = dict.fromkeys(("none", *NAMES), 0.0)
    for _ in range(many):
        i, size, cost = rng.randrange(60), rng.randrange(1, 900), rng.random()
        if rng.random() < 0.1:
            shadows.forget(i)
            for policy in policies.values():
                policy.forget(i)
            continue
        shadows.observe(i, size, cost)
        spent["none"] += cost
        for name, policy in policies.items():
            if not policy.arrive(i):
                spent[name] += cost
                policy.settle(i, size, cost)
    assert shadows.spent() == pytest.approx(spent)
    assert shadows.spent() == shadows.spent()
    shadows.check()
    for name, policy in policies.items():
        assert shadows._policies[name].residents == policy.residents


def test_a_shadow_with_another_capacity() -> None:
    """A name with a factor is the policy with that multiple of the capacity."""
    rng = random.Random(3)
    shadows = Shadows(("lru", "lru@2x", "lru@0.5x"), 5000, 60)
    alone = {times: Shadows(("lru",), int(5000 * times), 60) for times in (1, 2, 0.5)}
    for _ in range(BATCH + 100):
        i, size, cost = rng.randrange(60), rng.randrange(1, 900), rng.random()
        for shadow in (shadows, *alone.values()):
            shadow.observe(i, size, cost)
    spent = shadows.spent()
    assert [spent[name] for name in ("lru", "lru@2x", "lru@0.5x")] == [s.spent()["lru"] for s in alone.values()]
    assert spent["lru@2x"] < spent["lru"] < spent["lru@0.5x"] < spent["none"]
    shadows.check()


@pytest.mark.parametrize(
    "name", ["lru@", "lru@2", "lru@x", "lru@0x", "lru@-1x", "lru@1e3x", "lru@nanx", "lru@9999999x"]
)
def test_bad_shadows(name: str) -> None:
    with pytest.raises(InvalidInput, match="adaptive@2x"):
        parse_shadow(name)
    with pytest.raises(InvalidInput, match="adaptive@2x"):
        Cache("1MiB", cost="seconds", policy="lru", shadows=(name,))


def test_a_shadow_is_an_online_policy() -> None:
    with pytest.raises(InvalidInput, match="unknown policy 'nosuch'"):
        parse_shadow("nosuch@2x")
    with pytest.raises(InvalidInput, match="needs to know future requests"):
        parse_shadow("belady@2x")


def test_a_shadow_starts_with_the_entries_of_the_cache(tmp_path: Path) -> None:
    def ask(cache: Cache, name: int) -> str:
        return cache.fetch(CHAT, request_of(name), Upstream()(name)).outcome

    options: dict[str, Any] = {"cost": "seconds", "policy": "lru", "shadows": ("lru", "lru@2x", "gdsf-cost")}
    with Cache("2MiB", path=tmp_path / "cache.db", **options) as cache:
        for name in range(20):
            ask(cache, name)
    with Cache("2MiB", path=tmp_path / "cache.db", **options) as cache:
        assert {ask(cache, name) for name in range(20)} == {"hit"}
        ask(cache, 20)
        stats = cache.stats()
        assert stats.evictions == 0
        assert stats.shadows == {"none": 21.0, "lru": 1.0, "lru@2x": 1.0, "gdsf-cost": 1.0}
        cache.check()


def test_what_expired_is_forgotten_by_shadows_too() -> None:
    now = 1000.0
    with Cache("1MiB", cost="seconds", policy="lru", shadows=("lru",), ttl=10.0, clock=lambda: now) as cache:
        for now in (1000.0, 1005.0, 1020.0):  # noqa: B007 - the cache's clock
            cache.fetch(CHAT, request_of(1), Upstream()(1))
        stats = cache.stats()
        assert (stats.hits, stats.misses) == (1, 2)
        assert stats.shadows == {"none": 3.0, "lru": 2.0}


def test_no_shadows() -> None:
    shadows = Shadows((), 10, 10)
    shadows.observe(1, 1, 2.5)
    assert shadows.spent() == {"none": 2.5}
