"""Theorem 1 (2) of the paper: how regret grows with the capacity M, the number of queries N and the rounds T.

The theorem gives Õ(√(N·l(M,Q)·T)): exponents of 1/2 for N, l and T. One of them is varied at a time, around
`capacity`, `queries` and `rounds`; `both` varies M and N together, and its exponent is that of N. Exponents are fitted
to the mean regret, with a 95 % interval over repeats, and compared with those of √(N·l(M,Q)·T) on the same workloads; l
grows with M and may also grow with N.

Two workloads. `paper` is the paper's simulation. It is not the worst case, which the theorem is about. `ties` comes
close to it: equal sizes and probabilities, and M queries that cost slightly more than the others. The difference is a
multiple of the standard error of a mean cost after T/N observations. Each of the `multiples` is run, and the one with
the largest mean regret counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure
from knapcache.lab.synthetic import Workload, draw_queries
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.fits import exponent_columns
from knapcache_experiments.gap_instances import C1, C2, NearTies
from knapcache_experiments.plots import plot_rows
from knapcache_experiments.trials import Trial, TrialResult, WorkloadSource, mean_and_error, repeated, run_trials
from knapcache_experiments.valid_sets import lengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Group = Sequence[TrialResult]
SYMBOLS = {"capacity": "M", "queries": "N", "rounds": "T"}
SWEEPS = {"capacity": ("capacity",), "queries": ("queries",), "both": ("queries", "capacity"), "rounds": ("rounds",)}
"""The settings that each sweep varies. The exponent is that of the first one."""
VARIANTS = (("vsocb", 1.0), ("vsocb", 0.0), ("vsocb-lazy", 0.3))
"""Policies and their confidence scale γ."""


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(PaperSettings):
    """Settings of the sweeps over M, N and T."""

    queries: int = option(400, "number of distinct queries, N")
    capacity: int = option(40, "capacity, M")
    factors: tuple[float, ...] = option((0.25, 0.5, 1.0, 2.0), "factors by which M, N and T are varied, one at a time")
    multiples: tuple[float, ...] = option((2.0, 4.0, 8.0, 12.0), "cost differences in `ties`, in standard errors")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.factors)) < 2 or min(self.factors) <= 0:
            raise InvalidInput(f"factors must be two or more different numbers above 0, not {self.factors}")
        if min(self.multiples) <= 0:
            raise InvalidInput(f"multiples must be above 0, not {min(self.multiples)}")
        if any(point["capacity"] < 1 or point["queries"] <= point["capacity"] for _, _, point in self.points()):
            raise InvalidInput(
                f"every capacity must be at least 1 and below the number of queries; factors {self.factors} of "
                f"capacity {self.capacity} and {self.queries} queries are not"
            )

    def points(self) -> Iterator[tuple[str, float, dict[str, int]]]:
        """Yield the name of a sweep, a factor, and M, N and T."""
        for sweep, varied in SWEEPS.items():
            for factor in self.factors:
                point = {name: getattr(self, name) for name in SYMBOLS}
                yield sweep, factor, point | {name: round(factor * point[name]) for name in varied}


def run(settings: ScalingSettings, jobs: Jobs) -> ExperimentResult:
    """Run all sweeps and fit the exponents."""
    groups = run_trials(list(trials(settings)), jobs, EXPERIMENT.name)
    worst: dict[tuple[Any, ...], Group] = {}
    for group in groups:  # of the multiples, the one with the largest mean regret
        labels = group[0].trial.labels
        key = (group[0].trial.policy, *(labels[k] for k in ("gamma", "workload", "varied", "factor")))
        if key not in worst or mean_regret(group) > mean_regret(worst[key]):
            worst[key] = group
    rows = [row(group) for group in worst.values()]
    fits = list(fit_rows(settings, worst))
    figure, axes = new_figure(4, rows=2, width=3.9, height=3.6)
    for panel, (workload, sweep) in zip(axes, ((w, s) for w in ("paper", "ties") for s in SWEEPS), strict=True):
        draw(panel, workload, sweep, rows, fits)
    return ExperimentResult([*rows, *fits], figure)


def trials(settings: ScalingSettings) -> Iterator[Trial]:
    """Every policy on both workloads at every point."""
    for varied, factor, point in settings.points():
        queries, rounds, capacity = point["queries"], point["rounds"], point["capacity"]
        error = (C2 - C1) / 2 * math.sqrt(queries / rounds)
        ties = [
            (multiple, NearTies(queries=queries, rounds=rounds, capacity=capacity, difference=difference))
            for multiple in settings.multiples
            if (difference := multiple * error) < C2 - C1
        ]
        paper = settings.workload(queries=queries, rounds=rounds)
        workloads: list[tuple[str, float | None, WorkloadSource]] = [
            ("paper", None, paper),
            *(("ties", multiple, workload) for multiple, workload in ties),
        ]
        for name, multiple, workload in workloads:
            labels = {"workload": name, "varied": varied, "factor": factor, **point, "multiple": multiple}
            for policy, gamma in VARIANTS:
                of_variant = {**labels, "gamma": gamma}
                yield from repeated(settings, policy, workload, capacity=capacity, gamma=gamma, labels=of_variant)


def mean_regret(group: Group) -> float:
    return float(np.mean([result.regret[-1] for result in group]))


def shape(result: TrialResult) -> float:
    """√(N·l(M,Q)·T) of a trial."""
    trial, workload = result.trial, result.trial.workload
    sizes = np.ones(workload.queries, np.int64)
    if isinstance(workload, Workload):
        sizes = draw_queries(workload, np.random.default_rng([trial.seed, trial.repeat])).sizes
    return math.sqrt(workload.queries * lengths(sizes, trial.capacity).l_mq * workload.rounds)


def row(group: Group) -> dict[str, Any]:
    trial = group[0].trial
    return {
        "policy": trial.policy,
        **{name: trial.labels[name] for name in ("gamma", "workload", "varied", *SYMBOLS, "multiple")},
        **mean_and_error("regret", [result.regret[-1] for result in group]),
        "shape": float(np.mean([shape(result) for result in group])),
        "share_max": max(result.regret[-1] / shape(result) for result in group),
    }


def fit_rows(settings: ScalingSettings, groups: dict[tuple[Any, ...], Group]) -> Iterator[dict[str, Any]]:
    """Yield the exponents of M, N and T."""
    for policy, gamma in VARIANTS:
        for workload in ("paper", "ties"):
            for varied, (quantity, *_) in SWEEPS.items():
                swept = [groups[policy, gamma, workload, varied, factor] for factor in settings.factors]
                x = [group[0].trial.labels[quantity] for group in swept]
                regret, bound = (
                    np.transpose([[value(r) for r in group] for group in swept])
                    for value in (lambda r: r.regret[-1], shape)
                )
                row = {"policy": policy, "gamma": gamma, "workload": workload, "varied": varied}
                yield {**row, **exponent_columns(x, regret, bound)}


def draw(axes: Axes, workload: str, sweep: str, rows: list[dict[str, Any]], fits: list[dict[str, Any]]) -> None:
    quantity = SWEEPS[sweep][0]
    for policy, gamma in VARIANTS:
        wanted = {"policy": policy, "gamma": gamma, "workload": workload, "varied": sweep}
        line = [r for r in rows if wanted.items() <= r.items()]
        (fit,) = (r for r in fits if wanted.items() <= r.items())
        label = f"{policy}, γ = {gamma:g}"
        if fit["exponent"] is not None:
            label += f": {SYMBOLS[quantity]}^{fit['exponent']:.2f}"
        plot_rows(axes, line, quantity, markersize=3, label=label, linestyle=":" if gamma == 0.0 else "-")
    # The paper gives no constant: the dashed line touches the highest point from above.
    scale = max(r["regret_mean"] / r["shape"] for r in rows if (r["workload"], r["varied"]) == (workload, sweep))
    x, y = [r[quantity] for r in line], [scale * r["shape"] for r in line]
    axes.plot(x, y, color="black", linestyle="--", linewidth=1, label="∝ √(N·l·T)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=6 * max(y))  # room for the legend
    axes.set_xticks(x, [f"{number:,}" for number in x])
    axes.set_xticks([], minor=True)
    axes.set_title(f"workload {workload}")
    axes.set_xlabel(f"{quantity} {SYMBOLS[quantity]}" + (", M in proportion" if sweep == "both" else ""))
    axes.set_ylabel("regret")
    axes.legend(fontsize=8, loc="upper left")


EXPERIMENT = Experiment(
    name="scaling",
    summary="exponents of regret in capacity, queries and rounds, against those of Theorem 1 (2)",
    text=__doc__ or "",
    settings=ScalingSettings,
    run=run,
    quick={
        "rounds": 4_000,
        "repeats": 3,
        "queries": 80,
        "capacity": 16,
        "factors": (0.5, 1.0, 2.0),
        "multiples": (2.0,),
    },
)
