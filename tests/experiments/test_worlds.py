"""Random worlds have the documented properties, and policies accept the sizes that change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.lab.replay import replay
from knapcache.lab.trace import Floats, Ints, Trace
from knapcache.policy import registry
from knapcache_experiments import worlds

pytestmark = pytest.mark.tools

REQUESTS = 5000


def component(
    name: str, seed: int = 0, requests: int = REQUESTS, size_noise: float = 0.0, *, growing_sizes: bool = False
) -> Trace:
    """Return a trace of one component."""
    rng = np.random.default_rng(seed)
    own, turns, _ = worlds.KINDS[name](rng, requests)
    distinct, keys = np.unique(own, return_inverse=True)
    sizes, costs, _ = worlds.KeyAmounts(
        sizes=rng.uniform(100, 200, len(distinct)),
        costs=rng.uniform(1, 2, len(distinct)),
        noise=0.0,
        text="",
        size_noise=size_noise,
    ).of_requests(rng, keys, turns, growing_sizes=growing_sizes)
    return Trace(keys, sizes, costs, len(distinct))


def by_key(trace: Trace, column: Ints | Floats) -> tuple[Floats, Floats]:
    """Return the values of consecutive requests of the same key: the earlier and the later ones."""
    order = np.argsort(trace.keys, kind="stable")
    same = np.diff(trace.keys[order]) == 0
    values = column[order].astype(np.float64)
    return values[:-1][same], values[1:][same]


@given(seed=st.integers(0, 10**6), requests=st.integers(1, 2000))
@settings(max_examples=60, deadline=None)
def test_a_world_is_valid_and_depends_only_on_its_seed(seed: int, requests: int) -> None:
    world, again = (worlds.draw_world(seed, requests=requests) for _ in range(2))
    trace = world.trace
    assert len(trace) == requests
    assert len(np.unique(trace.keys)) == trace.ids, "every id is requested"
    assert trace.sizes.min() >= 1
    assert trace.costs.min() > 0
    assert np.isfinite(trace.total_cost)
    assert (world.capacities, world.description) == (again.capacities, again.description)
    for field in ("keys", "sizes", "costs"):
        assert np.array_equal(getattr(trace, field), getattr(again.trace, field))
    assert len(world.capacities) == len(worlds.SHARES)
    assert 1 <= world.capacities[0] <= world.capacities[-1] <= max(1, trace.working_set // 2)


def test_worlds_differ_and_have_the_documented_lengths() -> None:
    drawn = [worlds.draw_world(seed) for seed in range(5000, 5012)]
    assert len({world.description for world in drawn}) == len(drawn)
    assert all(worlds.REQUESTS[0] <= len(world.trace) <= worlds.REQUESTS[1] for world in drawn)
    for world in drawn:
        for share, capacity, (low, high) in zip(world.shares, world.capacities, worlds.SHARES, strict=True):
            assert low <= share <= high
            assert capacity == int(share * worlds.returning_working_set(world.trace))


def test_many_worlds_contain_every_kind_relation_and_share() -> None:
    texts = " ".join(worlds.draw_world(seed, requests=2000).description for seed in range(5000, 5150))
    for kind in worlds.KINDS:
        assert f"{kind}(" in texts
    for word in ("costs independent", "costs proportional", "costs inverse", "diurnal", " from ", "bursts", "tenants"):
        assert word in texts


def test_held_out_seeds_are_apart() -> None:
    sets = (worlds.DEVELOPMENT, worlds.HELD_OUT, worlds.UNRESTRICTED)
    assert len(set().union(*sets)) == sum(len(seeds) for seeds in sets)
    assert len(worlds.DEVELOPMENT) + len(worlds.HELD_OUT) >= 200


def test_bad_numbers() -> None:
    with pytest.raises(InvalidInput, match="seed must be at least 0 and requests at least 1, not -1 and None"):
        worlds.draw_world(-1)
    with pytest.raises(InvalidInput, match="not 0 and 0"):
        worlds.draw_world(0, requests=0)


def test_occurrence_counts_earlier_requests() -> None:
    keys = np.array([3, 1, 3, 3, 1, 0])
    assert worlds.occurrence(keys).tolist() == [0, 0, 1, 2, 1, 0]


@pytest.mark.parametrize("seed", range(4))
def test_the_cost_of_a_context_grows_with_every_turn_and_its_size_is_that_of_the_last(seed: int) -> None:
    trace = component("contexts", seed)
    before, after = by_key(trace, trace.costs)
    assert len(before) > REQUESTS / 2
    assert (after > before).all()
    before, after = by_key(trace, trace.sizes)
    assert (before == after).all()
    longest, shortest = np.argmax(np.bincount(trace.keys)), np.argmin(np.bincount(trace.keys))
    assert trace.sizes[trace.keys == longest][0] > trace.sizes[trace.keys == shortest][0]


@pytest.mark.parametrize("seed", range(4))
def test_contexts_of_unrestricted_worlds_grow_in_size_and_cost(seed: int) -> None:
    trace = component("contexts", seed, growing_sizes=True)
    for column in (trace.sizes, trace.costs):
        before, after = by_key(trace, column)
        assert len(before) > REQUESTS / 2
        assert (after > before).mean() > 0.9
        assert (after >= before).all()
    # The last turns have the same size in both forms.
    last = {int(key): int(size) for key, size in zip(trace.keys, trace.sizes, strict=True)}
    constant = component("contexts", seed)
    assert all(last[int(key)] == size for key, size in zip(constant.keys, constant.sizes, strict=True))


def test_an_unrestricted_world_is_its_first_draw() -> None:
    """Some first draws have fewer effective keys than other worlds may have."""
    fewest = [worlds.effective_keys(worlds.draw_world(seed, unrestricted=True).trace) for seed in range(5000, 5030)]
    assert min(fewest) < worlds.MIN_EFFECTIVE_KEYS


def test_with_size_noise_every_answer_to_a_key_has_another_size() -> None:
    rng = np.random.default_rng(4)
    amounts = worlds.KeyAmounts(sizes=np.full(2, 1e6), costs=np.ones(2), noise=0.0, text="", size_noise=0.3)
    sizes, _, _ = amounts.of_requests(rng, np.arange(4000) % 2, np.zeros(4000, np.int64))
    assert len(np.unique(sizes)) > 3900
    assert abs(np.log(sizes).std() - 0.3) < 0.02
    assert abs(sizes.mean() / 1e6 - 1.0) < 0.03


def test_the_cost_of_a_world_is_not_decided_by_a_few_keys() -> None:
    trace = Trace(np.array([0, 1, 1, 2]), np.ones(4, np.int64), np.array([2.0, 1.0, 1.0, 2.0]), 3)
    assert worlds.effective_keys(trace) == 3.0
    few = Trace(np.array([0, 1]), np.ones(2, np.int64), np.array([1e6, 1.0]), 2)
    assert worlds.effective_keys(few) < 1.01
    assert min(worlds.effective_keys(worlds.draw_world(seed).trace) for seed in range(5000, 5030)) >= 30


@pytest.mark.parametrize("seed", range(4))
def test_later_turns_of_a_session_are_other_keys_with_larger_answers(seed: int) -> None:
    keys, turns, _ = worlds.turns(np.random.default_rng(seed), REQUESTS)
    sessions = keys // (1 + turns.max())
    order = np.lexsort((np.arange(len(keys)), sessions))
    same = np.diff(sessions[order]) == 0
    steps = np.diff(turns[order])[same]
    assert set(steps.tolist()) == {0, 1}
    assert ((np.diff(keys[order])[same] != 0) == (steps == 1)).all()
    trace = component("turns", seed)
    before, after = by_key(trace, trace.sizes)
    assert (before == after).all(), "a turn has one size"
    largest = [trace.sizes[turns == turn].min() for turn in (0, turns.max())]
    assert largest[1] > largest[0]


@pytest.mark.parametrize("name", worlds.NEVER_RETURN)
def test_keys_of_scans_and_floods_occur_once(name: str) -> None:
    assert component(name).ids == REQUESTS


@pytest.mark.parametrize("name", sorted(set(worlds.KINDS) - set(worlds.NEVER_RETURN)))
def test_keys_of_other_kinds_return(name: str) -> None:
    assert component(name, requests=20_000).ids < 18_000


@pytest.mark.parametrize("name", worlds.KINDS)
def test_without_size_noise_a_key_has_one_size(name: str) -> None:
    trace = component(name)
    before, after = by_key(trace, trace.sizes)
    assert (before == after).all()


def test_churn_replaces_keys() -> None:
    """A key's requests lie in a part of the trace, and together they cover the whole trace."""
    rng = np.random.default_rng(3)
    keys, _, text = worlds.churn(rng, 20_000)
    lives = float(text.rsplit(" ", 1)[1])
    times = np.arange(len(keys))
    spans = np.zeros(keys.max() + 1)
    np.maximum.at(spans, keys, times)
    first = np.full(keys.max() + 1, len(keys))
    np.minimum.at(first, keys, times)
    requested = np.bincount(keys) > 0
    assert (spans - first)[requested].max() <= len(keys) / lives + 1


def shares(form: str, *, flood: bool = False) -> Floats:
    """Return the first drawn share of this form."""
    for seed in range(100):
        weights, text = worlds.draw_share(np.random.default_rng(seed), 10_000, flood=flood)
        if text.startswith(form):
            return weights
    raise AssertionError(f"no share of the form {form} in 100")


def test_the_weight_of_a_diurnal_component_rises_and_falls() -> None:
    weights = shares("diurnal")
    assert weights.min() >= 0
    assert weights.max() > 2 * weights.min()
    assert (np.diff(weights) > 0).any()
    assert (np.diff(weights) < 0).any()


@pytest.mark.parametrize(("form", "flood"), [("from", False), ("in", True)])
def test_a_window_and_a_flood_have_no_weight_outside(form: str, flood: bool) -> None:
    weights = shares(form, flood=flood)
    assert set(np.unique(weights).tolist()) == {0.0, weights.max()}


def test_components_are_interleaved_by_their_weights() -> None:
    first = np.concatenate([np.full(5000, 3.0), np.zeros(5000)])
    which = worlds.interleave(np.random.default_rng(0), [first, np.ones(10_000)])
    assert (which[:5000] == 0).mean() == pytest.approx(0.75, abs=0.03)
    assert (which[5000:] == 1).all()


@pytest.mark.parametrize("relation", ["proportional", "inverse", "independent"])
def test_costs_relate_to_sizes_as_described(relation: str) -> None:
    found = 0
    for seed in range(60):
        amounts = worlds.draw_amounts(np.random.default_rng(seed), 2000)
        if f"costs {relation}" not in amounts.text or "× constant" in amounts.text:
            continue
        if relation == "independent" and amounts.text.count("constant"):
            continue
        correlation = np.corrcoef(np.log(amounts.sizes), np.log(amounts.costs))[0, 1]
        expected = {"proportional": (0.8, 1.01), "inverse": (-1.01, -0.99), "independent": (-0.1, 0.1)}[relation]
        assert expected[0] < correlation < expected[1], amounts.text
        found += 1
    assert found > 5


def test_tenants_differ_in_size_by_large_factors() -> None:
    spread = [
        np.log(worlds.draw_amounts(np.random.default_rng(seed), 500, tenants=tenants).sizes).std()
        for tenants in (1, 5)
        for seed in range(40)
    ]
    assert np.median(spread[40:]) > 1.3 * np.median(spread[:40])


def test_capacities_are_shares_of_the_keys_that_return() -> None:
    trace = Trace(np.array([0, 1, 0, 2]), np.array([10, 7, 30, 9]), np.ones(4), 3)
    assert worlds.returning_working_set(trace) == 30
    once = Trace(np.array([0, 1]), np.array([10, 7]), np.ones(2), 2)
    assert worlds.returning_working_set(once) == 17


@pytest.mark.parametrize("name", ["adaptive", "lru", "gdsf-cost", "camp", "w-tinylfu"])
def test_policies_accept_sizes_that_change(name: str) -> None:
    """An answer that is settled again with another size is charged the new one."""
    trace = component("contexts", 2, size_noise=0.5, growing_sizes=True)
    policy = registry.find(name).build_for(worlds.returning_working_set(trace) // 50, trace, seed=0)
    run = replay(policy, trace)
    policy.check()
    assert run.peak <= policy.capacity
    assert 0 < run.hits.sum() < len(trace)
    resident = sorted(policy.residents)
    settled = np.flatnonzero(~run.hits)
    last = {int(trace.keys[k]): int(trace.sizes[k]) for k in settled}
    assert policy.rows["entry_size"][resident].tolist() == [last[i] for i in resident]
