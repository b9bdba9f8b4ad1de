"""How often the Oracle must be asked: calls, regret and cost against α, beside the bound N·(1 + log_{1+α} T) +
log_{1+α} T.

The paper calls the number of calls logarithmic; the base of that logarithm is 1 + α, and a small α hides a
factor 1/α.

Calls that are due but provably change nothing are not made (`oracle_calls_skipped`; dotted: calls made and skipped
together). That needs values that stand still between two requests for a query, as they do for vsocb with γ = 0; the
anytime confidence bound of vsocb-lazy moves all values in every round, so it makes every call that is due.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knapcache.sim.executors import Jobs
from knapcache.sim.figures import new_figure, style
from knapcache.sim.theory import oracle_call_bound
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.trials import Trial, require_option, row, run_trials


@dataclass(frozen=True, kw_only=True)
class AlphaSettings(PaperSettings):
    """α sweep."""

    alphas: tuple[float, ...] = option((0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0), "values of α to try")
    policies: tuple[str, ...] = option(("vsocb", "vsocb-lazy"), "policies that have an α")


def run(settings: AlphaSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every α."""
    require_option("alpha", settings.policies, ("vsocb", "vsocb-lazy", "vsocb-apx"))
    figure, (left, right) = new_figure(2, width=5.2)
    workload = settings.workload()
    trials = [
        Trial(policy, workload, settings.capacity, repeat, settings.seed, alpha, labels={"alpha": alpha})
        for policy in settings.policies
        for alpha in settings.alphas
        for repeat in range(settings.repeats)
    ]
    rows = []
    for group in run_trials(trials, jobs, EXPERIMENT.name):
        bound = float(oracle_call_bound(settings.queries, settings.rounds, group[0].trial.labels["alpha"]))
        due = [result.oracle_calls + result.notes["oracle_calls_skipped"] for result in group]
        rows.append(
            row(
                group,
                ["oracle_calls_skipped"],
                oracle_calls_due_max=max(due),
                oracle_calls_bound=bound,
                within_bound=max(due) <= bound,
            )
        )
    for policy in settings.policies:
        mine = [r for r in rows if r["policy"] == policy]
        x = [r["alpha"] for r in mine]
        left.plot(x, [r["oracle_calls"] for r in mine], marker="o", markersize=4, label=policy, **style(policy))
        due = [r["oracle_calls"] + r["oracle_calls_skipped"] for r in mine]
        if due != [r["oracle_calls"] for r in mine]:
            looks = {**style(policy), "linestyle": ":", "zorder": 5}  # on top: policies may be due as often
            left.plot(x, due, label=f"{policy}, with those skipped", **looks)
        right.errorbar(
            x,
            [r["regret_mean"] for r in mine],
            [(r["regret_se"] or 0.0) for r in mine],
            marker="o",
            markersize=4,
            label=policy,
            **style(policy),
        )
    dense = np.geomspace(min(settings.alphas), max(settings.alphas), 100)
    bounds = [float(oracle_call_bound(settings.queries, settings.rounds, a)) for a in dense]
    left.plot(dense, bounds, color="black", linewidth=1, linestyle="--", label="bound")
    left.axhline(settings.rounds, color="#999999", linewidth=1, linestyle=":", label="a call every round")
    left.set_yscale("log")
    left.set_ylabel(f"Oracle calls in {settings.rounds:,} rounds")
    right.set_ylabel(f"regret after {settings.rounds:,} rounds")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("α")
        axes.legend()
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="alpha",
    summary="Oracle calls against regret and against their bound",
    text=__doc__ or "",
    settings=AlphaSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "alphas": (0.1, 0.5, 1.0)},
)
