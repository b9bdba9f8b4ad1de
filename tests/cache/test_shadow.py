"""Shadows decide and pay like policies that see one request at a time, whatever the batches."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, InvalidInput
from knapcache.cache.entry_index import EntryIndex
from knapcache.cache.ids import IdTable
from knapcache.cache.shadow import BATCH, Shadows, parse_shadow
from knapcache.policy import registry
from tests.support.caches import CHAT, Upstream, request_of

NAMES = ("lru", "gdsf-cost")


def shadows_of(names: tuple[str, ...], capacity: int, ids: int) -> Shadows:
    live = registry.find("lru").build(capacity, ids)
    return Shadows(names, live, IdTable(live), EntryIndex(ids))


@pytest.mark.parametrize("many", [1, BATCH - 1, BATCH, 3 * BATCH + 7])
def test_batches_change_nothing(many: int) -> None:
    rng = random.Random(many)
    shadows = shadows_of(NAMES, 5000, 60)
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
    shadows = shadows_of(("lru", "lru@2x", "lru@0.5x"), 5000, 60)
    alone = {times: shadows_of(("lru",), int(5000 * times), 60) for times in (1, 2, 0.5)}
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
    shadows = shadows_of((), 10, 10)
    shadows.observe(1, 1, 2.5)
    assert shadows.spent() == {"none": 2.5}


# A sample of the keys.


class SampledTraffic:
    """Requests for random keys to an `lru` cache with shadows, as the controller shows them."""

    def __init__(self, names: tuple[str, ...], *, entries: int, ids: int, seed: int = 1) -> None:
        self.live = registry.find("lru").build(1000 * entries, ids)
        self.ids, self.index = IdTable(self.live), EntryIndex(ids)
        self.shadows = Shadows(names, self.live, self.ids, self.index)
        self.rng, self.spent = random.Random(seed), 0.0

    def ask(self, name: int, cost: float = 1.0) -> None:
        key = hashlib.sha256(b"%d" % name).digest()
        i = self.ids.find(key)
        if i < 0:
            i, recycled, _ = self.ids.intern(key)
            if recycled:
                self.shadows.recycle(i)
        if self.live.arrive(i):
            self.shadows.observe(i, 1000, cost)
            return
        self.spent += cost
        self.live.settle(i, 1000, cost)
        self.index.records["cost"][i] = cost
        self.shadows.settle(i, 1000, cost)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.cache.shadow.MAX_EXACT_IDS", 4000)
    monkeypatch.setattr("knapcache.cache.shadow.MIN_ENTRIES", 1000)


@pytest.mark.usefixtures("small_limits")
def test_a_sampled_shadow_estimates_what_it_would_have_spent() -> None:
    """The same policy at the same capacity, and others, within a few percent of an exact simulation."""
    sampled = SampledTraffic(("lru", "lru@2x", "gdsf-cost"), entries=2000, ids=20_000)
    exact = {name: shadows_of((name,), 2_000_000, 20_000) for name in sampled.shadows.names}
    rng = random.Random(5)
    total = 0.0
    for k in range(60_000):
        i = int(12_000 * rng.random() ** 3)
        cost = 1.0 + i % 3
        total += cost
        sampled.ask(i, cost)
        for shadows in exact.values():
            shadows.observe(i, 1000, cost)
        if k % 20_000 == 0:
            sampled.shadows.check()
    assert sampled.shadows.rate == 8
    found = sampled.shadows.spent()
    assert found["none"] == pytest.approx(total)
    for name, shadows in exact.items():
        assert found[name] == pytest.approx(shadows.spent()[name], abs=0.03 * total), name
    assert found["lru"] == pytest.approx(sampled.spent, abs=0.03 * total)
    assert found["lru@2x"] < found["lru"]
    sampled.shadows.check()


@pytest.mark.usefixtures("small_limits")
def test_a_sample_begins_with_the_first_id_above_the_limit() -> None:
    """Until then, nothing is estimated. While nothing is evicted, a sampled shadow pays exactly what the cache pays."""
    traffic = SampledTraffic(("lru",), entries=100_000, ids=20_000)
    for name in range(4000):
        traffic.ask(name)
        traffic.ask(name)
    assert traffic.shadows.rate == 1
    assert traffic.shadows.spent() == {"none": 8000.0, "lru": 4000.0}
    for name in range(6000):
        traffic.ask(name)
    assert traffic.shadows.rate == 8
    assert traffic.shadows.spent() == {"none": 14_000.0, "lru": 6000.0}
    traffic.shadows.check()


@pytest.mark.usefixtures("small_limits")
def test_a_cache_of_few_entries_does_not_sample() -> None:
    traffic = SampledTraffic(("lru",), entries=500, ids=20_000)
    for name in range(9000):
        traffic.ask(name)
    assert traffic.shadows.rate == 1
    traffic.shadows.compiled = False
    traffic.live.head["capacity"] = 10**9
    for name in range(9000, 13_000):
        traffic.ask(name)
    assert traffic.shadows.rate == 1, "the loops are not compiled: showing them the entries would take long"
    traffic.shadows.compiled = True
    traffic.ask(13_000)
    assert traffic.shadows.rate == 8


@pytest.mark.usefixtures("small_limits")
def test_sampled_shadows_forget_and_take_imports_without_paying() -> None:
    traffic = SampledTraffic(("lru",), entries=100_000, ids=5000)
    for name in range(5000):
        traffic.ask(name)
    shadows = traffic.shadows
    assert shadows.rate == 8
    assert shadows.spent() == {"none": 5000.0, "lru": 5000.0}
    for i in range(5000):
        shadows.forget(i)
    shadows.check()
    assert not shadows._policies["lru"].residents
    for i in range(5000):
        shadows.settle(i, 1000, 1.0, imported=True)
        shadows.observe(i, 1000, 1.0)
    assert shadows.spent() == {"none": 10_000.0, "lru": 5000.0}, "no shadow pays for what was imported"
    for name in range(5000, 20_000):  # ids are recycled: the numbers of their old keys are used again
        traffic.ask(name)
    assert shadows.spent() == {"none": 25_000.0, "lru": 20_000.0}
    shadows.check()


@pytest.mark.usefixtures("small_limits")
def test_a_large_store_is_sampled_from_the_start(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cost": "seconds", "policy": "lru", "shadows": ("lru", "gdsf-cost")}
    for outcome in ("miss", "hit"):
        with Cache("64MiB", path=tmp_path / "cache.db", **options) as cache:
            outcomes = {cache.fetch(CHAT, request_of(name), Upstream()(name)).outcome for name in range(4100)}
            stats = cache.stats()
            assert (outcomes, stats.evictions, stats.shadow_rate) == ({outcome}, 0, 8)
            spent = 4100.0 if outcome == "miss" else 0.0
            assert stats.shadows == {"none": 4100.0, "lru": spent, "gdsf-cost": spent}
            cache.check()
