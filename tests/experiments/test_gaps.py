"""`gaps` and `scaling`: instances with a prescribed gap, the worst approximate Oracle, bounds, fits and rows."""

from __future__ import annotations

import io
import json
import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.estimate.statistics import Confidence
from knapcache.lab.replay import replay
from knapcache.lab.synthetic import Workload
from knapcache.policy.vsocb.policy import VSOCB
from knapcache_experiments import gap_instances
from knapcache_experiments.catalogue import EXPERIMENTS
from knapcache_experiments.experiment import ExperimentResult
from knapcache_experiments.fits import fit_exponent
from knapcache_experiments.gap_instances import C1, C2, GapWorkload, NearTies, with_gap
from knapcache_experiments.gaps import GapsSettings
from knapcache_experiments.scaling import ScalingSettings
from knapcache_experiments.theory import gaps, optimal_cache
from knapcache_experiments.valid_sets import BanditInstance
from knapcache_experiments.worst_solver import WorstSolverVSOCB, worst_within
from tests.support.bandit_instances import HAND, naive_valid

pytestmark = pytest.mark.tools

SMALL: dict[str, dict[str, Any]] = {
    "gaps": {"rounds": 3_000, "repeats": 2, "queries": 7, "capacity": 12, "gaps": (0.01, 0.03)},
    "scaling": {"rounds": 400, "repeats": 2, "queries": 20, "capacity": 4},
}


def run(name: str, **choices: Any) -> tuple[Any, ExperimentResult]:
    settings = EXPERIMENTS[name].choose({**SMALL[name], **choices}, quick=True)
    return settings, EXPERIMENTS[name].run(settings, 1)


@pytest.fixture(scope="module")
def gaps_run() -> tuple[GapsSettings, ExperimentResult]:
    return run("gaps")


@pytest.fixture(scope="module")
def scaling_run() -> tuple[ScalingSettings, ExperimentResult]:
    return run("scaling")


def workload(gap: float = 0.01, rounds: int = 500) -> GapWorkload:
    return GapWorkload(
        queries=10, rounds=rounds, capacity=20, sizes="uniform:10", arrivals="zipf:0.8", gap=gap, reach=0.03
    )


# Instances


@pytest.mark.parametrize("gap", [0.001, 0.01, 0.03])
def test_instances_have_the_prescribed_gap(gap: float) -> None:
    for seed in range(10):
        instance = workload(gap).instance(np.random.default_rng(seed))
        valid = naive_valid(instance.sizes.tolist(), instance.capacity)
        by_value = sorted((sum(instance.values[q] for q in held) for held in valid), reverse=True)
        assert by_value[0] - by_value[1] == pytest.approx(gap, rel=1e-6)
        assert C1 <= instance.costs.min() <= instance.costs.max() <= C2


def test_instances_with_other_gaps_differ_in_their_mean_costs_only() -> None:
    one, other = (workload(gap).instance(np.random.default_rng(3)) for gap in (0.001, 0.03))
    assert one.sizes.tolist() == other.sizes.tolist()
    assert one.probabilities.tolist() == other.probabilities.tolist()
    best = optimal_cache(one)
    assert best.tolist() == optimal_cache(other).tolist()
    moved = other.costs - one.costs
    assert np.ptp(moved[best]) < 1e-12
    assert moved[best][0] > 0
    assert moved[~best] == pytest.approx(-moved[best][0])


def test_impossible_gaps_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_gap(HAND, 10.0, reach=0.0) is None
    assert with_gap(HAND, 0.01, reach=10.0) is None
    only_one_set = BanditInstance(HAND.probabilities, HAND.costs, HAND.sizes, 100)
    assert with_gap(only_one_set, 0.01, reach=0.0) is None
    monkeypatch.setattr(gap_instances, "MAX_DRAWS", 20)
    with pytest.raises(InvalidInput, match=r"no gap of 5\.0 in 20 instances of 10 queries and capacity 20;"):
        workload(gap=5.0).instance(np.random.default_rng(0))


@pytest.mark.parametrize(
    "drawn", [workload(rounds=60_000), NearTies(queries=10, rounds=60_000, capacity=3, difference=0.4)]
)
def test_costs_are_at_the_ends_of_their_range_and_have_the_stated_mean(drawn: GapWorkload | NearTies) -> None:
    queries, trace = drawn.draw(np.random.default_rng(1))
    assert set(trace.costs.tolist()) == {C1, C2}
    assert queries.cost_range == (C1, C2)
    for q in range(10):
        seen = trace.costs[trace.keys == q]
        assert seen.mean() == pytest.approx(queries.costs[q], abs=4 * (C2 - C1) / 2 / math.sqrt(len(seen)))
    again = drawn.draw(np.random.default_rng(1))[1]
    assert again.keys.tolist() == trace.keys.tolist()
    assert again.costs.tolist() == trace.costs.tolist()


def test_near_ties_have_as_many_expensive_queries_as_fit() -> None:
    queries, _ = NearTies(queries=10, rounds=5, capacity=3, difference=0.4).draw(np.random.default_rng(1))
    assert sorted(queries.costs.tolist()) == pytest.approx([1.3] * 7 + [1.7] * 3)


# The worst approximate Oracle


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 5.0])
def test_the_worst_set_within_the_tolerance(beta: float) -> None:
    rng = np.random.default_rng(7)
    for n in (1, 2, 5, 9):
        for capacity in (0, 6, 12, 100):
            sizes, values = np.sort(rng.integers(1, 11, n)), rng.random(n)
            left_out = {
                held: sum(v for q, v in enumerate(values) if q not in held)
                for held in naive_valid(sizes.tolist(), capacity)
            }
            allowed = [x for x in left_out.values() if x <= (1 + beta) * min(left_out.values()) + 1e-12]
            mask = int(worst_within(values, sizes, capacity, beta))
            assert left_out[frozenset(q for q in range(n) if mask >> q & 1)] == pytest.approx(max(allowed))


def test_with_tolerance_0_it_decides_like_vsocb() -> None:
    for seed in range(3):
        # Costs of a continuous distribution, so that no two sets have equal estimates.
        _, trace = Workload(queries=10, rounds=4_000).draw(np.random.default_rng(seed))
        confidence = Confidence(gamma=0.0, T=4_000, N=10, c1=0.0, c2=4.0)
        worst = WorstSolverVSOCB(20, 10, alpha=0.5, beta=0.0, confidence=confidence)
        exact = VSOCB(20, 10, confidence=confidence, skip=False)
        assert replay(worst, trace).hits.tolist() == replay(exact, trace).hits.tolist()
        assert worst.oracle_calls == exact.oracle_calls
        worst.check()


def test_bad_arguments_of_the_worst_oracle() -> None:
    with pytest.raises(InvalidInput, match="21 queries are too many to enumerate; at most 20 are allowed"):
        WorstSolverVSOCB(5, 21, alpha=0.5, beta=0.0, confidence=Confidence())
    with pytest.raises(InvalidInput, match="alpha must be above 0 and finite, not 0"):
        WorstSolverVSOCB(5, 5, alpha=0, beta=0.0, confidence=Confidence())
    with pytest.raises(InvalidInput, match="beta must not be negative and must be finite, not -1"):
        WorstSolverVSOCB(5, 5, alpha=0.5, beta=-1, confidence=Confidence())


# Fits


def test_an_exact_power_law_has_its_exponent_and_no_interval() -> None:
    x = np.array([1.0, 10.0, 100.0])
    fit = fit_exponent(x, np.outer([1.0, 2.0, 5.0], x**0.7))
    assert fit == pytest.approx((0.7, 0.7, 0.7))


def test_the_interval_covers_the_exponent() -> None:
    rng = np.random.default_rng(0)
    x = np.geomspace(1, 100, 5)
    covered = 0
    for _ in range(40):
        fit = fit_exponent(x, 3 * x**0.5 * rng.lognormal(0.0, 0.5, (20, 5)))
        assert fit is not None
        assert fit.low <= fit.estimate <= fit.high
        covered += fit.low <= 0.5 <= fit.high
    assert covered >= 32  # 38 are expected


def test_no_exponent_without_two_points_two_repeats_and_positive_means() -> None:
    assert fit_exponent([1.0], [[1.0], [2.0]]) is None
    assert fit_exponent([1.0, 2.0], [[1.0, 2.0]]) is None
    assert fit_exponent([1.0, 2.0], [[1.0, -2.0], [1.0, 1.0]]) is None


# The experiments


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_json_and_the_figure_is_a_picture(name: str, request: pytest.FixtureRequest) -> None:
    _, result = request.getfixturevalue(f"{name}_run")
    json.dumps(result.rows, allow_nan=False)
    picture = io.BytesIO()
    result.figure.savefig(picture, format="png", dpi=30)
    assert picture.getvalue().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("name", SMALL)
def test_equal_seeds_give_equal_rows(name: str, request: pytest.FixtureRequest) -> None:
    _, result = request.getfixturevalue(f"{name}_run")
    assert run(name)[1].rows == result.rows
    assert run(name, seed=1)[1].rows != result.rows


def naive_bound(instance: BanditInstance, rounds: int) -> float:
    """Σ_{q∈M*} P(q)·N·l(M,Q)/Δ_q · ln(16·T·N·T), transcribed."""
    n = instance.n
    valid = [
        frozenset(held)
        for k in range(n + 1)
        for held in combinations(range(n), k)
        if (used := sum(instance.sizes[q] for q in held)) <= instance.capacity
        and all(used + instance.sizes[q] > instance.capacity for q in range(n) if q not in held)
    ]
    value = {held: sum(instance.values[q] for q in held) for held in valid}
    best = max(valid, key=lambda held: value[held])
    l = min(max(map(len, valid)), n - min(map(len, valid)))

    def gap(q: int) -> float:
        return min((value[best] - value[held] for held in valid if q not in held and held != best), default=math.inf)

    return float(sum(instance.probabilities[q] * n * l / gap(q) for q in best) * math.log(16 * rounds * n * rounds))


def test_rows_of_theorem_1(gaps_run: tuple[GapsSettings, ExperimentResult]) -> None:
    settings, result = gaps_run
    rows = [r for r in result.rows if r["claim"] == "Theorem 1 (1)" and "fit" not in r]
    assert settings.horizons == [300, 948, 3000]
    assert len(rows) == len(settings.gaps) * len(settings.horizons) * 4
    for gap in settings.gaps:
        instances = [settings.instance(gap, repeat) for repeat in range(settings.repeats)]
        for r in (r for r in rows if r["gap"] == gap):
            assert r["bound"] == pytest.approx(np.mean([naive_bound(x, r["rounds"]) for x in instances]))
            assert 0 < r["share_mean"] <= r["share_max"]
            assert r["regret_mean"] > 0.3 * r["first_misses"] > 0
            assert 0 <= r["wrong_at_end"] <= 1
    fits = [r for r in result.rows if r.get("fit")]
    assert [r["fit"] for r in fits] == [*(["T"] * len(settings.gaps)), "Δ"] * 4
    assert all(r["exponent_low"] <= r["exponent"] <= r["exponent_high"] for r in fits)
    assert all(r["exponent_of_bound"] < 0 for r in fits if r["fit"] == "Δ")


def test_rows_of_theorem_2(gaps_run: tuple[GapsSettings, ExperimentResult]) -> None:
    settings, result = gaps_run
    rows = [r for r in result.rows if r["claim"] == "Theorem 2 (1)"]
    assert len(rows) == (len(settings.beta_shares) + len(settings.betas)) * 2 * 3
    instances = [settings.instance(settings.approximate_gap, repeat) for repeat in range(settings.repeats)]
    for r in rows:
        if r["beta_share"] is None:
            assert r["beta"] in settings.betas
            assert r["premise"] == np.mean([gaps(x, r["beta"]).minimum > 0 for x in instances])
        else:
            assert r["premise"] == 1
            assert r["printed_bound_negative"] == 0


def test_when_everything_fits_the_bound_is_0_and_the_regret_is_not(
    gaps_run: tuple[GapsSettings, ExperimentResult],
) -> None:
    _, result = gaps_run
    rows = [r for r in result.rows if r["claim"] == "Theorem 1, all fits"]
    assert len(rows) == 4
    for r in rows:
        assert r["bound"] == 0
        assert r["regret_mean"] > 0.3 * r["first_misses"] > 0


def test_rows_of_scaling(scaling_run: tuple[ScalingSettings, ExperimentResult]) -> None:
    settings, result = scaling_run
    points = [r for r in result.rows if "exponent" not in r]
    fits = [r for r in result.rows if "exponent" in r]
    assert len(points) == 4 * len(settings.factors) * 2 * 3  # sweeps, factors, workloads, policies
    assert len(fits) == 4 * 2 * 3
    for r in points:
        assert r["regret_mean"] > 0
        if r["workload"] == "ties":  # equal sizes: l(M,Q) = min(M, N − M)
            l = min(r["capacity"], r["queries"] - r["capacity"])
            assert r["shape"] == pytest.approx(math.sqrt(r["queries"] * l * r["rounds"]))
    for r in fits:
        assert r["exponent_low"] <= r["exponent"] <= r["exponent_high"]
        if r["varied"] == "rounds" or r["workload"] == "ties":  # M and N together: N·l ∝ N²
            assert r["exponent_of_bound"] == pytest.approx(1.0 if r["varied"] == "both" else 0.5)


def test_scaling_reports_the_largest_regret_of_all_multiples() -> None:
    _, both = run("scaling", multiples=(1.0, 4.0), factors=(0.5, 1.0))
    each = [run("scaling", multiples=(m,), factors=(0.5, 1.0))[1].rows for m in (1.0, 4.0)]
    for k, r in enumerate(both.rows):
        if r["workload"] == "ties" and "exponent" not in r:
            assert r["regret_mean"] == max(rows[k]["regret_mean"] for rows in each)


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("gaps", {"queries": 21}, "queries must be between 2 and 20, not 21"),
        ("gaps", {"gaps": (0.01, 0.0)}, "gaps must be above 0, not 0.0"),
        ("gaps", {"beta_shares": (0.5, 1.0)}, "beta_shares must be between 0 and 1, not 0.5, 1.0"),
        ("gaps", {"alpha": 0.0}, "alpha must be above 0 and finite, not 0.0"),
        ("gaps", {"rounds": 9}, "rounds must be at least 10, not 9"),
        ("gaps", {"sizes": "cubes"}, "sizes 'cubes' cannot be read"),
        ("gaps", {"betas": (-0.5,)}, "betas must not be negative, not -0.5"),
        ("scaling", {"factors": (1.0,)}, r"factors must be two or more different numbers above 0, not \(1.0,\)"),
        ("scaling", {"multiples": (0.0,)}, "multiples must be above 0, not 0.0"),
        ("scaling", {"capacity": 399}, "every capacity must be at least 1 and below the number of queries"),
    ],
)
def test_bad_settings(name: str, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        EXPERIMENTS[name].choose(choices, quick=False)
