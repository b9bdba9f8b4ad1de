"""Regret for different confidence scales γ, from 0 (plain means) to 1 (the paper's radii).

`vsocb` applies γ to the radii of arrival and cost, as the paper does; `vsocb-lazy` to the cost only. The two Berkeley
policies have only a radius of the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.plots import plot_rows
from knapcache_experiments.trials import repeated, require_option, run_trials, table_row


@dataclass(frozen=True, kw_only=True)
class ConfidenceSettings(PaperSettings):
    """Settings of the γ sweep."""

    gammas: tuple[float, ...] = option((0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "confidence scales γ")
    policies: tuple[str, ...] = option(("vsocb", "vsocb-lazy", "berkeley", "berkeley-multi"), "policies with a γ")


def run(settings: ConfidenceSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every γ."""
    require_option(
        "gamma", settings.policies, ("vsocb", "vsocb-lazy", "vsocb-apx", "offline", "berkeley", "berkeley-multi")
    )
    figure, (axes,) = new_figure()
    workload = settings.workload()
    trials = [
        trial
        for policy in settings.policies
        for gamma in settings.gammas
        for trial in repeated(settings, policy, workload, gamma=gamma, labels={"gamma": gamma})
    ]
    rows = [table_row(group) for group in run_trials(trials, jobs, EXPERIMENT.name)]
    for policy in settings.policies:
        plot_rows(axes, [r for r in rows if r["policy"] == policy], "gamma")
    positive = [g for g in settings.gammas if g > 0]
    axes.set_xscale("symlog", linthresh=min(positive, default=1.0))
    axes.set_yscale("log")
    axes.set_xlabel("confidence scale γ (0: plain means, 1: the paper)")
    axes.set_ylabel(f"regret after {settings.rounds:,} rounds")
    axes.legend()
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="confidence",
    summary="regret for different confidence scales γ",
    text=__doc__ or "",
    settings=ConfidenceSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "gammas": (0.0, 0.1, 1.0)},
)
