"""Oracle calls, regret and cost for different α, compared with the bound N·(1 + log_{1+α} T) + log_{1+α} T.

The paper calls the number of calls logarithmic. The base of that logarithm is 1 + α, so a small α hides a factor of
1/α.

A due call that provably changes nothing is skipped (`oracle_calls_skipped`; the dotted line adds made and skipped
calls). This requires values that are constant between two requests for a query, which holds for vsocb with γ = 0. The
anytime confidence bound of vsocb-lazy changes all values in every round, so it makes every due call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.plots import plot_rows
from knapcache_experiments.theory import oracle_call_bound
from knapcache_experiments.trials import repeated, require_option, run_trials, table_row


@dataclass(frozen=True, kw_only=True)
class AlphaSettings(PaperSettings):
    """Settings of the α sweep."""

    alphas: tuple[float, ...] = option((0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0), "values of α")
    policies: tuple[str, ...] = option(("vsocb", "vsocb-lazy"), "policies with an α")


def run(settings: AlphaSettings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every α."""
    require_option("alpha", settings.policies, ("vsocb", "vsocb-lazy", "vsocb-apx"))
    figure, (left, right) = new_figure(2, width=5.2)
    workload = settings.workload()
    trials = [
        trial
        for policy in settings.policies
        for alpha in settings.alphas
        for trial in repeated(settings, policy, workload, alpha=alpha, labels={"alpha": alpha})
    ]
    rows = []
    for group in run_trials(trials, jobs, EXPERIMENT.name):
        bound = float(oracle_call_bound(settings.queries, settings.rounds, group[0].trial.labels["alpha"]))
        due = [result.oracle_calls + result.counters["oracle_calls_skipped"] for result in group]
        rows.append(
            table_row(
                group,
                ["oracle_calls_skipped"],
                oracle_calls_due_max=max(due),
                oracle_calls_bound=bound,
                within_bound=max(due) <= bound,
            )
        )
    for policy in settings.policies:
        selected = [r for r in rows if r["policy"] == policy]
        x = [r["alpha"] for r in selected]
        left.plot(x, [r["oracle_calls"] for r in selected], marker="o", markersize=4, label=policy, **style(policy))
        due = [r["oracle_calls"] + r["oracle_calls_skipped"] for r in selected]
        if due != [r["oracle_calls"] for r in selected]:
            # Drawn on top, because policies may have equally many due calls.
            line_style = {**style(policy), "linestyle": ":", "zorder": 5}
            left.plot(x, due, label=f"{policy}, with those skipped", **line_style)
        plot_rows(right, selected, "alpha")
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
    summary="Oracle calls and regret for different α, and the bound on the calls",
    text=__doc__ or "",
    settings=AlphaSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "alphas": (0.1, 0.5, 1.0)},
)
