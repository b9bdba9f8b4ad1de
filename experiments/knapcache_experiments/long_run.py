"""Regret over a million rounds on log-log axes; the slope is the exponent of T.

The paper proves √T up to logarithms: a slope of 1/2. The slope is fitted over the rounds from `fit_from` on. The dashed
line has the shape of the paper's second bound, √(N·l(M,Q)·T). The paper gives no constants, so the line is scaled to
meet the lazy policy at the start of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.plots import plot_mean
from knapcache_experiments.trials import TrialResult, repeated, run_trials, table_row


@dataclass(frozen=True, kw_only=True)
class LongRunSettings(PaperSettings):
    """Settings of the long run."""

    rounds: int = option(1_000_000, "number of requests, T")
    fit_from: int = option(20_000, "first round of the fit of the slope")
    policies: tuple[str, ...] = option(("vsocb-lazy", "vsocb", "berkeley-multi", "berkeley"), "policies to compare")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.fit_from <= self.rounds // 2:
            raise InvalidInput(f"fit_from must be between 1 and half of the {self.rounds} rounds, not {self.fit_from}")


def slope(group: list[TrialResult], fit_from: int) -> float | None:
    """Return the exponent of T by least squares of log mean regret on log T, or None without positive regret."""
    rounds = group[0].rounds
    mean = np.mean([result.regret for result in group], axis=0)
    tail = (rounds >= fit_from) & (mean > 0)
    if tail.sum() < 2:
        return None
    return float(np.polyfit(np.log(rounds[tail]), np.log(mean[tail]), 1)[0])


def run(settings: LongRunSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy and fit the slopes."""
    figure, (axes,) = new_figure()
    workload = settings.workload()
    trials = [trial for policy in settings.policies for trial in repeated(settings, policy, workload)]
    groups = run_trials(trials, jobs, EXPERIMENT.name)
    rows = []
    for group in groups:
        exponent = slope(group, settings.fit_from)
        rows.append(table_row(group, slope=exponent, fit_from=settings.fit_from))
        label = group[0].trial.policy + (f", slope {exponent:.2f}" if exponent is not None else "")
        plot_mean(axes, group, "regret", label)
    anchor = groups[0]
    rounds = anchor[0].rounds
    at = int(np.searchsorted(rounds, settings.fit_from))
    height = float(np.mean([result.regret[at] for result in anchor]))
    axes.plot(rounds, height * np.sqrt(rounds / rounds[at]), color="black", linestyle="--", linewidth=1, label="√T")
    axes.axvline(settings.fit_from, color="#999999", linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(100, settings.rounds)
    axes.set_ylim(bottom=10)
    axes.set_xlabel("round")
    axes.set_ylabel("cumulative regret")
    axes.legend()
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="long-run",
    summary="regret over a million rounds and its exponent",
    text=__doc__ or "",
    settings=LongRunSettings,
    run=run,
    quick={"rounds": 100_000, "repeats": 2, "fit_from": 5_000},
)
