"""Workloads have the documented distributions. Seeds are fixed, so the tests are deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from knapcache.errors import InvalidInput
from knapcache.lab.synthetic import CHUNK, Inverse, Queries, Workload, popularity, truncated_normal
from knapcache.lab.trace import Trace

RARE = 1e-4
"""p-values below this fail a test."""


def draw(seed: int = 1, **choices: Any) -> tuple[Queries, Trace]:
    return Workload(**choices).draw(np.random.default_rng(seed))


def test_zipf() -> None:
    expected = [1 / rank**0.8 for rank in range(1, 101)]
    assert popularity("zipf:0.8", 100) == pytest.approx(np.array(expected) / sum(expected))
    assert popularity("zipf", 7) == pytest.approx(popularity("zipf:0.8", 7))
    assert popularity("uniform", 4).tolist() == [0.25] * 4


@pytest.mark.parametrize("a", [0.5, 2.0, 3.0])
def test_power_is_the_floor_of_a_power_of_a_uniform_number(a: float) -> None:
    """Compare with a direct simulation of floor(N·U^(1/a))."""
    rng = np.random.default_rng(3)
    simulated = np.floor(20 * rng.random(200_000) ** (1 / a)).astype(int)
    observed = np.bincount(simulated, minlength=20)
    assert stats.chisquare(observed, popularity(f"power:{a}", 20) * observed.sum()).pvalue > RARE


@pytest.mark.parametrize("arrivals", ["uniform", "zipf:0.8", "zipf:1.2", "power:2"])
def test_requests_follow_the_probabilities(arrivals: str) -> None:
    queries, trace = draw(queries=30, rounds=50_000, arrivals=arrivals)
    assert queries.probabilities.shape == (1, 30)
    assert sorted(queries.probabilities[0]) == pytest.approx(sorted(popularity(arrivals, 30)))
    observed = np.bincount(trace.keys, minlength=30)
    assert stats.chisquare(observed, queries.probabilities[0] * len(trace)).pvalue > RARE


def test_popularity_is_independent_of_the_id() -> None:
    """Otherwise ids would reveal the popularity to a policy."""
    queries, _ = draw(queries=1000)
    assert abs(stats.spearmanr(np.arange(1000), queries.probabilities[0]).statistic) < 0.1


def test_uniform_sizes() -> None:
    queries, _ = draw(queries=20_000, rounds=1, sizes="uniform:10")
    observed = np.bincount(queries.sizes, minlength=11)
    assert observed[0] == 0
    assert len(observed) == 11
    assert stats.chisquare(observed[1:]).pvalue > RARE


def test_lognormal_sizes() -> None:
    queries, _ = draw(queries=20_000, rounds=1, sizes="lognormal:50")
    logs = np.log(queries.sizes)
    assert np.exp(np.median(logs)) == pytest.approx(50, rel=0.03)
    assert logs.std() == pytest.approx(0.8, rel=0.03)


def test_proportional_sizes() -> None:
    queries, _ = draw(queries=5_000, rounds=1, sizes="proportional", costs="uniform:1:20")
    assert queries.sizes.mean() == pytest.approx(5.5, rel=0.02)
    assert np.abs(queries.sizes - 5.5 * queries.costs / queries.costs.mean()).max() <= 1.0  # rounded, and at least 1


def test_uniform_costs() -> None:
    queries, _ = draw(queries=20_000, rounds=1, costs="uniform:1:2")
    assert queries.cost_range == (1.0, 2.0)
    assert stats.kstest(queries.costs, stats.uniform(1, 1).cdf).pvalue > RARE


def test_two_costs() -> None:
    queries, _ = draw(queries=10_000, rounds=1, costs="two:1:101")
    assert queries.cost_range == (1.0, 101.0)
    values, counts = np.unique(queries.costs, return_counts=True)
    assert values.tolist() == [1.0, 101.0]
    assert stats.chisquare(counts).pvalue > RARE


def test_lognormal_costs_have_no_range() -> None:
    queries, _ = draw(queries=20_000, rounds=1, costs="lognormal:1.5")
    assert queries.cost_range is None
    assert stats.kstest(queries.costs, stats.lognorm(0.8, scale=1.5).cdf).pvalue > RARE


@pytest.mark.parametrize("sd", [0.3, 1.0, 20.0])
def test_the_cost_of_a_miss_is_a_truncated_normal(sd: float) -> None:
    """Compare with SciPy's normal truncated to [0, 2·C*]."""
    mean = 1.5
    costs = truncated_normal(np.full(40_000, mean), sd, np.random.default_rng(5))
    expected = stats.truncnorm(-mean / sd, mean / sd, loc=mean, scale=sd)
    assert costs.min() >= 0.0
    assert costs.max() <= 2 * mean
    assert abs(costs.mean() - mean) < 4 * expected.std() / np.sqrt(len(costs))
    assert stats.kstest(costs, expected.cdf).pvalue > RARE


def test_costs_of_each_query_average_to_its_mean() -> None:
    queries, trace = draw(queries=5, rounds=50_000, arrivals="uniform")
    for q in range(5):
        costs = trace.costs[trace.keys == q]
        assert abs(costs.mean() - queries.costs[q]) < 4 * costs.std() / np.sqrt(len(costs))
        assert costs.max() <= 2 * queries.costs[q]


def test_without_noise_a_miss_costs_the_mean() -> None:
    queries, trace = draw(noise=0.0, rounds=500)
    assert (trace.costs == queries.costs[trace.keys]).all()


def test_all_requests_of_a_query_have_its_size() -> None:
    queries, trace = draw(rounds=500)
    assert (trace.sizes == queries.sizes[trace.keys]).all()
    assert trace.ids == 100


def test_equal_seeds_give_equal_workloads() -> None:
    (q1, t1), (q2, t2), (q3, t3) = draw(7, rounds=300), draw(7, rounds=300), draw(8, rounds=300)
    assert (q1.costs == q2.costs).all()
    assert (t1.keys == t2.keys).all()
    assert (t1.costs == t2.costs).all()
    assert (q1.costs != q3.costs).any()
    assert (t1.keys != t3.keys).any()


def test_popularity_changes() -> None:
    workload = Workload(queries=20, rounds=40_000, arrivals="zipf:1", changes=3)
    assert workload.phases == [0, 10_000, 20_000, 30_000]
    queries, trace = workload.draw(np.random.default_rng(2))
    assert len({tuple(p) for p in queries.probabilities}) == 4
    for start, p in zip(workload.phases, queries.probabilities, strict=True):
        assert sorted(p) == pytest.approx(sorted(popularity("zipf:1", 20)))
        observed = np.bincount(trace.keys[start : start + 10_000], minlength=20)
        assert stats.chisquare(observed, p * 10_000).pvalue > RARE
    assert queries.values == pytest.approx(queries.probabilities * queries.costs)


def test_phases_that_do_not_divide_the_rounds() -> None:
    workload = Workload(queries=5, rounds=10, changes=2)
    assert workload.phases == [0, 3, 6]
    assert len(workload.draw(np.random.default_rng(0))[1]) == 10


def test_one_hits_occur_exactly_once() -> None:
    _, trace = draw(queries=10, rounds=20_000, one_hits=0.6)
    times = np.bincount(trace.keys, minlength=trace.ids)
    assert (times[10:] == 1).all()
    assert trace.ids == 10 + (trace.keys >= 10).sum()
    assert (trace.keys >= 10).mean() == pytest.approx(0.6, abs=4 * np.sqrt(0.24 / 20_000))
    assert set(trace.sizes[trace.keys >= 10]) == set(range(1, 11))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"queries": 0}, "queries must be at least 1, not 0"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"changes": -1}, "changes must be at least 0, not -1"),
        ({"rounds": 10, "changes": 10}, "changes must be fewer than the 10 rounds"),
        ({"noise": -1.0}, "noise must be .*not -1.0"),
        ({"noise": float("nan")}, "noise must be .*not nan"),
        ({"noise": float("inf")}, "noise must be .*not inf"),
        ({"one_hits": 1.0}, "one_hits must be at least 0 and below 1, not 1.0"),
        ({"one_hits": -0.1}, "one_hits"),
        ({"sizes": "uniform:0"}, "sizes 'uniform:0': .* above 0"),
        ({"sizes": "uniform:1.5"}, "sizes 'uniform:1.5': .*whole number"),
        ({"sizes": "uniform:1:2"}, "sizes 'uniform:1:2' cannot be read; .*uniform:10, lognormal:5.5, proportional"),
        ({"sizes": "lognormal:-1"}, "sizes 'lognormal:-1'"),
        ({"sizes": "proportional:1"}, "sizes 'proportional:1' cannot be read"),
        ({"sizes": ""}, "sizes '' cannot be read"),
        ({"arrivals": "nonsense"}, "arrivals 'nonsense' cannot be read; .*uniform, zipf:0.8, power:2"),
        ({"arrivals": "zipf:x"}, "arrivals 'zipf:x' cannot be read"),
        ({"arrivals": "zipf:nan"}, "arrivals 'zipf:nan' cannot be read"),
        ({"arrivals": "power:0"}, "arrivals 'power:0'"),
        ({"costs": "uniform:-1:2"}, "costs 'uniform:-1:2': .*above 0"),
        ({"costs": "uniform:0:2"}, "costs 'uniform:0:2': .*above 0"),
        ({"costs": "two:2:1"}, "costs 'two:2:1': .*increasing"),
        ({"costs": "uniform:1"}, "costs 'uniform:1' cannot be read"),
        ({"costs": "lognormal:0"}, "costs 'lognormal:0'"),
    ],
)
def test_bad_choices(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        Workload(**choices)
    assert "\n" not in str(caught.value)


def test_the_inverse_is_a_binary_search() -> None:
    rng = np.random.default_rng(1)
    for probabilities in (np.ones(1), np.array([0.5, 0.0, 0.5]), rng.permutation(popularity("zipf:1.2", 3000))):
        distribution = probabilities.cumsum() / probabilities.cumsum()[-1]
        draws = np.concatenate([rng.random(20_000), [0.0, 0.5, 1.0 - 2.0**-53], distribution[:-1]])
        expected = np.searchsorted(distribution, draws, side="right")
        assert np.array_equal(Inverse.of(probabilities).keys(draws), expected)


def test_chunks_have_the_distribution_of_the_workload() -> None:
    """Two phases whose border is inside a chunk, and queries that occur once, also in different chunks."""
    workload = Workload(queries=50, rounds=2 * CHUNK + 1000, changes=1, one_hits=0.1, noise=0.1)
    chunks = list(workload.chunks(np.random.default_rng(2)))
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, 1000]
    keys, costs = np.concatenate([c.keys for c in chunks]), np.concatenate([c.costs for c in chunks])
    once = keys[keys >= 50]
    assert len(once) == len(set(once.tolist())) == chunks[-1].ids - 50 == pytest.approx(0.1 * len(keys), rel=0.05)
    queries, _ = Workload(queries=50, changes=1).draw(np.random.default_rng(2))  # the queries are drawn first
    border = workload.phases[1]
    for part, p in zip((keys[:border], keys[border:]), queries.probabilities, strict=True):
        counts = np.bincount(part[part < 50], minlength=50)
        assert ((counts - counts.sum() * p) ** 2 / (counts.sum() * p)).sum() < 86  # χ² with 49 degrees, 1 in 1000
    assert costs[keys == 7].mean() == pytest.approx(queries.costs[7], rel=0.01)


def test_names_of_workloads() -> None:
    assert Workload.parse("synthetic:") == Workload()
    expected = Workload(queries=1000, rounds=10**6, arrivals="zipf:0.9", one_hits=0.1)
    assert Workload.parse("synthetic:queries=1e3,rounds=1e6,arrivals=zipf:0.9,one_hits=0.1") == expected
    for part in ("rounds", "rounds=many", "rounds=inf", "speed=3", "noise=x", "rounds=nan"):
        with pytest.raises(InvalidInput, match=f"'{part}' of 'synthetic:{part}' cannot be read"):
            Workload.parse(f"synthetic:{part}")
    with pytest.raises(InvalidInput, match="rounds must be at least 1"):
        Workload.parse("synthetic:rounds=0")
