"""Every experiment on a small workload: rows, figures, bounds, and reference values computed by hand."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.lab.synthetic import Workload
from knapcache_experiments.catalogue import EXPERIMENTS
from knapcache_experiments.experiment import Experiment, ExperimentResult
from knapcache_experiments.trials import AS_PRINTED, Trial, TrialResult, simulate, table_row

pytestmark = pytest.mark.tools

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"
SMALL: dict[str, dict[str, Any]] = {
    "figure-1": {},
    "table-2": {"arrivals": ("zipf:0.8", "power:0.5"), "units": (16, 64)},
    "figure-2": {},
    "errata": {},
    "confidence": {"gammas": (0.0, 1.0)},
    "alpha": {"alphas": (0.1, 1.0)},
    "long-run": {"fit_from": 50},
    "drift": {"changes": (0, 3)},
    "one-hits": {"shares": (0.0, 0.6)},
    "approximate": {"betas": (0.0, 1.0), "capacity": 30},
}
SWEPT = {"confidence": "gamma", "alpha": "alpha", "drift": "changes", "one-hits": "share", "approximate": "beta"}


def run(name: str, **choices: Any) -> tuple[Any, ExperimentResult]:
    """Run an experiment with few rounds and repeats; return its settings and result."""
    experiment = EXPERIMENTS[name]
    few = {"rounds": 400, "repeats": 2, "queries": 20}
    settings = experiment.choose({**few, **SMALL[name], **choices}, quick=True)
    return settings, experiment.run(settings, 1)


def call_bound(n: int, rounds: int, alpha: float) -> float:
    """Return N·(1 + log_{1+α} T) + log_{1+α} T."""
    log = math.log(rounds) / math.log(1 + alpha)
    return n * (1 + log) + log


def test_every_experiment_is_tested() -> None:
    elsewhere = {"gaps", "scaling", "live", "cluster"}  # test_gaps.py, test_live.py and test_cluster.py
    assert list(SMALL) == [name for name in EXPERIMENTS if name not in elsewhere]


@pytest.mark.parametrize("name", SMALL)
def test_rows_and_figure(name: str) -> None:
    settings, result = run(name)
    assert result.rows
    for r in result.rows:
        assert r["cost_mean"] > 0.0
        assert r["regret_se"] >= 0.0
        if r["policy"] != AS_PRINTED:
            assert 0 < r["peak_occupancy"] <= settings.capacity
            assert r["regret_mean"] >= 0.0  # no set that fits has a higher value than the best set
    json.dumps(result.rows, allow_nan=False)
    picture = io.BytesIO()
    result.figure.savefig(picture, format="png", dpi=30)
    assert picture.getvalue().startswith(b"\x89PNG\r\n\x1a\n")
    if name in SWEPT:
        swept = next(field for field in (f"{SWEPT[name]}s", SWEPT[name]) if hasattr(settings, field))
        policies = getattr(settings, "policies", ["vsocb"])
        assert len(result.rows) == len(getattr(settings, swept)) * len(policies)
        assert {r[SWEPT[name]] for r in result.rows} == set(getattr(settings, swept))


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_options_override_quick_and_quick_overrides_defaults(experiment: Experiment[Any]) -> None:
    plain = asdict(experiment.choose({}, quick=False))
    quick = asdict(experiment.choose({}, quick=True))
    assert plain == asdict(experiment.settings())
    assert quick == {**plain, **experiment.quick}
    if experiment.name in ("live", "cluster"):  # they have no rounds: one reads its record, the other traces
        return
    assert quick["rounds"] < plain["rounds"]
    assert asdict(experiment.choose({"rounds": 20_001}, quick=True)) == {**quick, "rounds": 20_001}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_committed_results_use_the_default_settings(experiment: Experiment[Any]) -> None:
    path = RESULTS / f"{experiment.name}.json"
    if not path.exists():
        pytest.skip(f"no {path.name} in experiments/results")
    record = json.loads(path.read_text())
    assert record["name"] == experiment.name
    del record["settings"]["knapcache"]
    assert record["settings"] == json.loads(json.dumps(asdict(experiment.settings())))
    assert (RESULTS / f"{experiment.name}.png").exists()


def test_errata_shows_overflow_and_wipes_and_that_repairs_remove_them() -> None:
    settings, result = run("errata", rounds=3_000, queries=100, repeats=1)
    rows = {r["repairs"]: r for r in result.rows if r["policy"] == AS_PRINTED}
    assert rows["none"]["peak_occupancy"] > settings.capacity
    assert rows["none"]["rounds_over"] > 0
    assert rows["none"]["wipes"] > 0
    assert rows["E1"]["peak_occupancy"] <= settings.capacity
    complete = min((r for r in result.rows if r["policy"] == AS_PRINTED), key=lambda r: r["regret_mean"])
    vsocb = next(r for r in result.rows if r["policy"] == "vsocb")
    assert complete["cost_mean"] == pytest.approx(vsocb["cost_mean"], rel=0.02)
    assert rows["E1"]["regret_mean"] > 2 * vsocb["regret_mean"]


@pytest.mark.parametrize("policy", ["vsocb", "vsocb-lazy", "vsocb-apx"])
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.5, 1.0, 3.0])
def test_oracle_calls_stay_within_their_bound(policy: str, alpha: float) -> None:
    for repeat in range(3):
        for queries, rounds in ((10, 3_000), (100, 2_000)):
            workload = Workload(queries=queries, rounds=rounds)
            result = simulate(
                Trial(policy=policy, workload=workload, capacity=queries, repeat=repeat, seed=0, alpha=alpha)
            )
            assert 0 < result.oracle_calls <= call_bound(queries, rounds, alpha)


def test_alpha_reports_the_bound() -> None:
    settings, result = run("alpha")
    for r in result.rows:
        assert r["oracle_calls_bound"] == pytest.approx(call_bound(settings.queries, settings.rounds, r["alpha"]))
        assert r["within_bound"]
        assert r["oracle_calls"] + r["oracle_calls_skipped"] <= r["oracle_calls_due_max"]


@pytest.mark.parametrize("policy", ["vsocb", "berkeley", "lru", "static"])
@pytest.mark.parametrize("choices", [{}, {"changes": 4}, {"one_hits": 0.4}], ids=["plain", "drift", "one-hits"])
def test_regret_is_expected_cost_above_the_clairvoyants(policy: str, choices: Mapping[str, Any]) -> None:
    """Observed cost and regret share only the hits, and must agree up to sampling noise."""
    workload = Workload(queries=40, rounds=6_000, **choices)
    result = simulate(Trial(policy=policy, workload=workload, capacity=30, repeat=0, seed=5))
    noise = 4 * 2.0 * math.sqrt(workload.rounds)  # four standard deviations; one request costs 0 … 4
    if policy == "static":  # chose its set with knowledge of the noise
        assert result.cost[-1] < result.clairvoyant_cost + result.regret[-1] + noise
    else:
        assert abs(result.cost[-1] - (result.clairvoyant_cost + result.regret[-1])) < noise
    assert (np.diff(result.regret) >= -1e-9).all()
    assert (np.diff(result.cost) >= 0.0).all()


def test_means_and_standard_errors_by_hand() -> None:
    def result(cost: float, calls: int, peak: int) -> TrialResult:
        trial = Trial(policy="lru", workload=Workload(rounds=1), capacity=5, repeat=0, seed=0, labels={"alpha": 3})
        return TrialResult(
            trial=trial,
            rounds=np.array([1]),
            regret=np.array([2.0]),
            cost=np.array([cost]),
            oracle_calls=calls,
            peak_size=peak,
            seconds=0.0,
            clairvoyant_cost=0.0,
            counters={"wipes": cost},
        )

    trials = [result(1.0, 3, 7), result(3.0, 4, 9), result(8.0, 5, 8)]
    assert table_row(trials, counters=("wipes", "absent"), extra="more") == {
        "policy": "lru",
        "alpha": 3,
        "regret_mean": 2.0,
        "regret_se": 0.0,
        "cost_mean": 4.0,
        "cost_se": pytest.approx(math.sqrt(13 / 3)),  # (9 + 1 + 16)/2 = 13 over 3 repeats
        "oracle_calls": 4.0,
        "peak_occupancy": 9,
        "wipes": 4.0,
        "extra": "more",
    }


def test_drift_without_changes_equals_figure_1() -> None:
    _, drift = run("drift", changes=(0,), policies=("vsocb", "lru"))
    _, figure = run("figure-1", arrivals="zipf:1", policies=("vsocb", "lru"))
    for with_drift, without in zip(drift.rows, figure.rows, strict=True):
        assert {k: with_drift[k] for k in without} == without


def test_table_2_savings_compare_mean_costs_per_combination() -> None:
    policies = ("berkeley", "vsocb", "gdsf-cost", "lru")
    settings, result = run("table-2", policies=policies)
    assert len(result.rows) == len(settings.arrivals) * len(settings.units) * len(policies)
    for arrivals in settings.arrivals:
        for unit in settings.units:
            rows = [r for r in result.rows if (r["arrivals"], r["unit"]) == (arrivals, unit)]
            cost = {r["policy"]: r["cost_mean"] for r in rows}
            assert set(cost) == set(policies)
            best = min(cost[p] for p in ("berkeley", "gdsf-cost", "lru"))
            for r in rows:
                assert r["saved_percent"] == pytest.approx(100 * (1 - r["cost_mean"] / cost["berkeley"]))
                assert r["saved_over_best_percent"] == pytest.approx(100 * (1 - r["cost_mean"] / best))
                assert r["saved_se"] >= 0.0


def test_table_2_without_baselines_has_no_savings() -> None:
    _, result = run("table-2", policies=("vsocb",))
    for r in result.rows:
        assert r["saved_percent"] is r["saved_se"] is r["saved_over_best_percent"] is None


def test_figure_2_is_one_combination_of_table_2() -> None:
    policies = ("berkeley", "vsocb")
    _, table = run("table-2", policies=policies, arrivals=("power:0.5", "zipf:0.8"), units=(16, 32))
    _, figure = run("figure-2", policies=policies)
    assert figure.rows == [r for r in table.rows if (r["arrivals"], r["unit"]) == ("zipf:0.8", 32)]


@pytest.mark.long
def test_the_full_figure_1() -> None:
    experiment = EXPERIMENTS["figure-1"]
    policies = ("vsocb", "vsocb-lazy", "offline", "berkeley")
    settings = experiment.choose({"policies": policies}, quick=False)
    assert (settings.rounds, settings.repeats, settings.queries, settings.capacity) == (20_000, 10, 100, 60)
    regret = {r["policy"]: r["regret_mean"] for r in experiment.run(settings, 2).rows}
    assert regret["vsocb"] <= 320
    assert regret["vsocb-lazy"] <= 200
    assert regret["berkeley"] >= 500
    assert regret["offline"] < regret["vsocb"]


@pytest.mark.long
def test_regret_grows_no_faster_than_the_square_root() -> None:
    experiment = EXPERIMENTS["long-run"]
    settings = experiment.choose({"policies": ("vsocb-lazy",)}, quick=False)
    (row,) = experiment.run(settings, 2).rows
    assert row["slope"] <= 0.55


@pytest.mark.long
def test_the_full_figure_2() -> None:
    experiment = EXPERIMENTS["figure-2"]
    settings = experiment.choose({"policies": ("berkeley", "vsocb")}, quick=False)
    saving = {r["policy"]: r["saved_percent"] for r in experiment.run(settings, 2).rows}
    assert saving["vsocb"] >= 11.0
