"""Regret and Oracle calls when many queries occur only once.

The printed algorithm calls the Oracle for every new query; the repaired one waits for the second miss.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.trials import AS_PRINTED, repeated, run_trials, table_row


@dataclass(frozen=True, kw_only=True)
class OneHitSettings(PaperSettings):
    """Settings of the sweep over one-hit queries."""

    repeats: int = option(5, "independent repeats, each with its own queries and requests")
    shares: tuple[float, ...] = option((0.0, 0.2, 0.4, 0.6, 0.8), "shares of requests for queries that occur once")
    policies: tuple[str, ...] = option(
        ("adaptive", "vsocb", "vsocb-lazy", AS_PRINTED, "berkeley", "berkeley-multi", "gdsf-cost", "lfu", "lru"),
        "policies to compare",
    )


def run(settings: OneHitSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every share."""
    figure, (left, right) = new_figure(2, width=5.2)
    trials = [
        trial
        for policy in settings.policies
        for share in settings.shares
        for trial in repeated(settings, policy, settings.workload(one_hits=share), labels={"share": share})
    ]
    rows = [table_row(group) for group in run_trials(trials, jobs, EXPERIMENT.name)]
    for policy in settings.policies:
        selected = [r for r in rows if r["policy"] == policy]
        x = [100 * r["share"] for r in selected]
        # Only the printed algorithm, which exceeds its capacity, has negative regret; the log scale omits it.
        regret = [r["regret_mean"] if r["regret_mean"] > 0 else float("nan") for r in selected]
        left.plot(x, regret, marker="o", markersize=4, label=policy, **style(policy))
        if any(r["oracle_calls"] for r in selected):
            right.plot(
                x, [r["oracle_calls"] for r in selected], marker="o", markersize=4, label=policy, **style(policy)
            )
    left.set_ylabel(f"regret after {settings.rounds:,} rounds")
    right.set_ylabel("Oracle calls")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("requests for one-hit queries, %")
    left.legend(loc="center left", bbox_to_anchor=(0.0, 0.42), ncols=3)  # between the two groups of curves
    right.legend()
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="one-hits",
    summary="regret and Oracle calls when many queries occur once",
    text=__doc__ or "",
    settings=OneHitSettings,
    run=run,
    quick={"rounds": 4_000, "repeats": 2, "shares": (0.0, 0.6)},
)
