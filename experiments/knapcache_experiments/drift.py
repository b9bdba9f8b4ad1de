"""Excess cost when popularity is redrawn K times, relative to a clairvoyant cache that holds the best set of each
phase.

VSOCB and the Berkeley policies never forget, so their estimates stay biased after each change. LRU and GDSF forget, and
`adaptive` learns how fast to forget.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.plots import plot_rows
from knapcache_experiments.trials import TrialResult, mean_and_error, repeated, run_trials, table_row


@dataclass(frozen=True, kw_only=True)
class DriftSettings(PaperSettings):
    """Settings of the sweep over changes of popularity."""

    arrivals: str = option("zipf:1", "arrival distribution: uniform, zipf:A or power:A")
    changes: tuple[int, ...] = option((0, 1, 3, 10, 30), "numbers of changes, K")
    policies: tuple[str, ...] = option(
        ("adaptive", "vsocb", "vsocb-lazy", "berkeley", "berkeley-multi", "gdsf-cost", "lfu", "lru", "static"),
        "policies to compare",
    )


def excess_cost(group: list[TrialResult]) -> dict[str, float | None]:
    """Return mean and standard error of the cost above the clairvoyant's, as a share of the clairvoyant's."""
    if any(result.clairvoyant_cost <= 0 for result in group):
        raise InvalidInput("drift needs a capacity at which not everything fits: lower the capacity")
    # Regret is the expected excess: unlike the observed cost it has no sampling noise.
    shares = [float(result.regret[-1] / result.clairvoyant_cost) for result in group]
    return mean_and_error("excess", shares)


def run(settings: DriftSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every number of changes."""
    figure, (axes,) = new_figure()
    trials = [
        trial
        for policy in settings.policies
        for changes in settings.changes
        for trial in repeated(settings, policy, settings.workload(changes=changes), labels={"changes": changes})
    ]
    rows = [{**table_row(group), **excess_cost(group)} for group in run_trials(trials, jobs, EXPERIMENT.name)]
    for policy in settings.policies:
        plot_rows(axes, [r for r in rows if r["policy"] == policy], "changes", "excess", scale=100)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(settings.changes, [str(k) for k in settings.changes])
    axes.set_yscale("log")
    axes.set_xlabel(f"changes of popularity in {settings.rounds:,} rounds")
    axes.set_ylabel("excess over the clairvoyant, %")
    axes.legend(ncols=2)
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="drift",
    summary="excess cost when popularity changes K times",
    text=__doc__ or "",
    settings=DriftSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "changes": (0, 3)},
)
