"""Popularity is dealt anew K times: the excess cost over a clairvoyant that holds the best set of each phase.

VSOCB and Berkeley's rules never forget, so every change leaves them with the past; LRU and GDSF do forget; `adaptive`
learns how fast to.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.errors import InvalidInput
from knapcache.sim.executors import Jobs
from knapcache.sim.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.trials import Trial, TrialResult, mean_and_error, row, run_trials


@dataclass(frozen=True, kw_only=True)
class DriftSettings(PaperSettings):
    """Changes of popularity."""

    arrivals: str = option("zipf:1", "arrivals: uniform, zipf:A or power:A")
    changes: tuple[int, ...] = option((0, 1, 3, 10, 30), "numbers of changes K to try")
    policies: tuple[str, ...] = option(
        ("adaptive", "vsocb", "vsocb-lazy", "berkeley", "berkeley-multi", "gdsf-cost", "lfu", "lru", "static"),
        "policies to compare",
    )


def excess(group: list[TrialResult]) -> dict[str, float | None]:
    """Cost above the clairvoyant's, as a share of it: mean and standard error."""
    if any(result.clairvoyant <= 0 for result in group):
        raise InvalidInput("drift compares with the best set, and here everything fits: lower the capacity")
    # Expected cost on both sides: regret is the expected excess, free of the luck of the draw.
    shares = [float(result.regret[-1] / result.clairvoyant) for result in group]
    return mean_and_error("excess", shares)


def run(settings: DriftSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every number of changes."""
    figure, (axes,) = new_figure()
    trials = [
        Trial(
            policy,
            settings.workload(changes=changes),
            settings.capacity,
            repeat,
            settings.seed,
            settings.alpha,
            labels={"changes": changes},
        )
        for policy in settings.policies
        for changes in settings.changes
        for repeat in range(settings.repeats)
    ]
    rows = [{**row(group), **excess(group)} for group in run_trials(trials, jobs, EXPERIMENT.name)]
    for policy in settings.policies:
        mine = [r for r in rows if r["policy"] == policy]
        axes.errorbar(
            [r["changes"] for r in mine],
            [100 * r["excess_mean"] for r in mine],
            [100 * (r["excess_se"] or 0.0) for r in mine],
            marker="o",
            markersize=4,
            label=policy,
            **style(policy),
        )
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(settings.changes, [str(k) for k in settings.changes])
    axes.set_yscale("log")
    axes.set_xlabel(f"changes of popularity in {settings.rounds:,} rounds")
    axes.set_ylabel("excess over the clairvoyant, %")
    axes.legend(ncols=2)
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="drift",
    summary="cost when popularity changes K times",
    text=__doc__ or "",
    settings=DriftSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "changes": (0, 3)},
)
