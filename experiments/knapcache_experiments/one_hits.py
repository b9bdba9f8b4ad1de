"""A flood of queries that are asked once and never again: what it does to regret and to the number of Oracle
calls.

As printed, every new query calls the Oracle; the repair is to wait for its second miss.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.sim.executors import Jobs
from knapcache.sim.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.trials import AS_PRINTED, Trial, row, run_trials


@dataclass(frozen=True, kw_only=True)
class OneHitSettings(PaperSettings):
    """One-hit flood."""

    repeats: int = option(5, "independent repetitions, each with queries and requests of its own")
    shares: tuple[float, ...] = option((0.0, 0.2, 0.4, 0.6, 0.8), "shares of requests that are asked once")
    policies: tuple[str, ...] = option(
        ("adaptive", "vsocb", "vsocb-lazy", AS_PRINTED, "berkeley", "berkeley-multi", "gdsf-cost", "lfu", "lru"),
        "policies to compare",
    )


def run(settings: OneHitSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every share."""
    figure, (left, right) = new_figure(2, width=5.2)
    trials = [
        Trial(
            policy,
            settings.workload(one_hits=share),
            settings.capacity,
            repeat,
            settings.seed,
            settings.alpha,
            labels={"share": share},
        )
        for policy in settings.policies
        for share in settings.shares
        for repeat in range(settings.repeats)
    ]
    rows = [row(group) for group in run_trials(trials, jobs, EXPERIMENT.name)]
    for policy in settings.policies:
        mine = [r for r in rows if r["policy"] == policy]
        x = [100 * r["share"] for r in mine]
        # Below zero only for the printed algorithm, where it holds more than fits: no place for it on a log scale.
        regret = [r["regret_mean"] if r["regret_mean"] > 0 else float("nan") for r in mine]
        left.plot(x, regret, marker="o", markersize=4, label=policy, **style(policy))
        if any(r["oracle_calls"] for r in mine):
            right.plot(x, [r["oracle_calls"] for r in mine], marker="o", markersize=4, label=policy, **style(policy))
    left.set_ylabel(f"regret after {settings.rounds:,} rounds")
    right.set_ylabel("Oracle calls")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("requests that are asked once, %")
    left.legend(loc="center left", bbox_to_anchor=(0.0, 0.42), ncols=3)  # between the learners and the others
    right.legend()
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="one-hits",
    summary="a flood of queries asked once: regret and Oracle calls",
    text=__doc__ or "",
    settings=OneHitSettings,
    run=run,
    quick={"rounds": 4_000, "repeats": 2, "shares": (0.0, 0.6)},
)
