"""How much caution pays: the confidence scale γ from 0 (plain means) to 1 (the paper's radii).

`vsocb` has γ on both radii, as the paper; `vsocb-lazy` on the cost alone; the two Berkeley rules on the cost,
the only radius they have.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.sim.executors import Jobs
from knapcache.sim.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.trials import Trial, require_option, row, run_trials


@dataclass(frozen=True, kw_only=True)
class ConfidenceSettings(PaperSettings):
    """γ sweep."""

    gammas: tuple[float, ...] = option((0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "confidence scales γ to try")
    policies: tuple[str, ...] = option(("vsocb", "vsocb-lazy", "berkeley", "berkeley-multi"), "policies that have a γ")


def run(settings: ConfidenceSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every γ."""
    require_option(
        "gamma", settings.policies, ("vsocb", "vsocb-lazy", "vsocb-apx", "offline", "berkeley", "berkeley-multi")
    )
    figure, (axes,) = new_figure()
    workload = settings.workload()
    trials = [
        Trial(
            policy, workload, settings.capacity, repeat, settings.seed, settings.alpha, gamma, labels={"gamma": gamma}
        )
        for policy in settings.policies
        for gamma in settings.gammas
        for repeat in range(settings.repeats)
    ]
    rows = [row(group) for group in run_trials(trials, jobs, EXPERIMENT.name)]
    for policy in settings.policies:
        mine = [r for r in rows if r["policy"] == policy]
        axes.errorbar(
            [r["gamma"] for r in mine],
            [r["regret_mean"] for r in mine],
            [(r["regret_se"] or 0.0) for r in mine],
            marker="o",
            markersize=4,
            label=policy,
            **style(policy),
        )
    positive = [g for g in settings.gammas if g > 0]
    axes.set_xscale("symlog", linthresh=min(positive, default=1.0))
    axes.set_yscale("log")
    axes.set_xlabel("confidence scale γ (0: plain means, 1: the paper)")
    axes.set_ylabel(f"regret after {settings.rounds:,} rounds")
    axes.legend()
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="confidence",
    summary="regret against the confidence scale γ",
    text=__doc__ or "",
    settings=ConfidenceSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "gammas": (0.0, 0.1, 1.0)},
)
