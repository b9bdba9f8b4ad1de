"""Regret, work and time of VSOCB with an approximate Oracle, for different tolerances β.

With tolerance β the Oracle may return a set whose complement costs up to 1 + β times the best complement (the paper's
Algorithm 3). `work_per_call` counts the states that the solver visited, and `seconds` is the time of a whole VSOCB run.
β-regret is measured as in the paper, against 1 + β times the best complement; it is negative if the cache is better
than the guarantee. The workload has more queries than the paper's simulation, because with 100 queries the exact Oracle
has almost no work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.plots import plot_rows
from knapcache_experiments.trials import TrialResult, repeated, run_trials, table_row


@dataclass(frozen=True, kw_only=True)
class ApproximateSettings(PaperSettings):
    """Settings of the β sweep."""

    queries: int = option(1_000, "number of distinct queries, N")
    capacity: int = option(600, "capacity, M")
    betas: tuple[float, ...] = option((0.0, 0.0001, 0.001, 0.01, 0.05, 0.2, 1.0), "tolerances β; 0 is the exact Oracle")


def extra_columns(group: list[TrialResult], beta: float) -> dict[str, float]:
    """Return β-regret, work per Oracle call and median run time."""
    beta_regret = np.array([r.regret[-1] - beta * r.clairvoyant_cost for r in group])
    return {
        "beta_regret_mean": float(beta_regret.mean()),
        "work_per_call": float(np.mean([r.counters["oracle_work"] / r.oracle_calls for r in group])),
        "seconds": float(np.median([r.seconds for r in group])),
    }


def run(settings: ApproximateSettings, jobs: Jobs) -> ExperimentResult:
    """Run VSOCB with every β."""
    figure, (left, right) = new_figure(2, width=5.2)
    workload = settings.workload()
    trials = [
        trial
        for beta in settings.betas
        for trial in repeated(
            settings, "vsocb-apx" if beta else "vsocb", workload, options={"beta": beta}, labels={"beta": beta}
        )
    ]
    rows = [
        {**table_row(group), **extra_columns(group, group[0].trial.labels["beta"])}
        for group in run_trials(trials, jobs, EXPERIMENT.name)
    ]
    x = [r["beta"] for r in rows]
    line_style = {"marker": "o", "markersize": 4, **style("vsocb-apx")}
    plot_rows(left, rows, "beta", **line_style)
    left.set_ylim(bottom=0)
    left.set_ylabel(f"regret after {settings.rounds:,} rounds")
    right.plot(x, [r["work_per_call"] for r in rows], **line_style)
    right.set_ylim(bottom=0)
    right.set_ylabel("states visited per Oracle call")
    for axes in (left, right):
        axes.set_xscale("symlog", linthresh=min((b for b in settings.betas if b > 0), default=1.0))
        axes.set_xlim(left=0)
        axes.set_xlabel("β (0: exact)")
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="approximate",
    summary="regret, work and time for different tolerances β of the Oracle",
    text=__doc__ or "",
    settings=ApproximateSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "betas": (0.0, 0.01, 1.0)},
)
