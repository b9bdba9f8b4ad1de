"""Table 2 of the paper: total cost of 20,000 requests for 100 OpenAssistant prompts, with latency as cost and capacity
100. The latencies are measured: each miss draws one of the timed calls of its prompt.

The paper specifies neither the arrivals nor the unit in which a capacity of 100 is counted, and both decide the result.
Both are swept, and every combination is shown. Arrivals: uniform; power:A, the query ⌊N·U^(1/A)⌋ of a uniform U;
zipf:A, P ∝ rank^−A. Units: tokens per unit of size (measured.py).

`saved_percent` is relative to the paper's baseline, `berkeley`. `saved_over_best_percent` is relative to the cheapest
baseline of that combination: `berkeley`, `berkeley-multi` (several evictions) with and without its confidence bound,
GDSF with cost, LFU and LRU. `saved_se` is the standard error of the saving over repeats. There are 20 repeats instead
of the paper's 5, because with 5 the standard error is as large as the differences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, ExperimentSettings, option
from knapcache_experiments.measured import MeasuredWorkload
from knapcache_experiments.trials import Trial, TrialResult, mean_and_error, repeated, run_trials, table_row

# The baseline has the bound of its paper, γ = 1. The stronger baseline also runs with γ = 0, the default of VSOCB.
GAMMAS: dict[str, tuple[float | None, ...]] = {
    "berkeley": (1.0,),
    "berkeley-multi": (1.0, 0.0),
    **dict.fromkeys(("vsocb", "vsocb-apx"), (0.0,)),
    "vsocb-lazy": (0.3,),
}
BASELINES = ("berkeley", "berkeley-multi", "gdsf-cost", "lfu", "lru")
POLICIES = ("adaptive", "vsocb", "vsocb-apx", "vsocb-lazy", *BASELINES, "static")
ARRIVALS = ("uniform", "power:0.8", "power:0.5", "power:0.2", "zipf:0.6", "zipf:0.8", "zipf:1", "zipf:1.2")


@dataclass(frozen=True, kw_only=True)
class MeasuredSettings(ExperimentSettings):
    """Settings of both Table 2 and Figure 2."""

    calls: str = option("t5-3b-h200", "timed calls: the name of an included table, or a CSV file")
    queries: int = option(100, "number of prompts, N")
    capacity: int = option(100, "capacity in units, M")
    rounds: int = option(20_000, "number of requests, T")
    repeats: int = option(5, "independent repeats, each with its own popularity and requests")
    alpha: float = option(0.5, "VSOCB's α: relative growth of counts before the next Oracle call")
    policies: tuple[str, ...] = option(POLICIES, "comma-separated policies to compare")

    def workload(self, arrivals: str, unit: int) -> MeasuredWorkload:
        return MeasuredWorkload(self.calls, self.queries, self.rounds, arrivals, unit)

    def trials(self, arrivals: str, unit: int) -> Iterable[Trial]:
        """Yield the trials of all policies on the same requests."""
        workload = self.workload(arrivals, unit)
        for policy in self.policies:
            for gamma in GAMMAS.get(policy, (None,)):
                labels = {"gamma": gamma, "arrivals": arrivals, "unit": unit}
                yield from repeated(self, policy, workload, gamma=gamma, labels=labels)


@dataclass(frozen=True, kw_only=True)
class Table2Settings(MeasuredSettings):
    """Settings of Table 2."""

    repeats: int = option(20, "independent repeats, each with its own popularity and requests")
    arrivals: tuple[str, ...] = option(ARRIVALS, "arrival distributions: uniform, zipf:A or power:A")
    units: tuple[int, ...] = option((8, 16, 32, 64), "tokens per unit of size")

    def __post_init__(self) -> None:
        super().__post_init__()
        for arrivals, unit in itertools.product(self.arrivals, self.units):
            self.workload(arrivals, unit)  # raises InvalidInput on bad values


def label(row: dict[str, Any]) -> str:
    """Return the policy of a row, and its γ if it has one."""
    return str(row["policy"]) + (f", γ = {row['gamma']:g}" if row["gamma"] is not None else "")


def savings_rows(groups: list[list[TrialResult]]) -> list[dict[str, Any]]:
    """Return the rows of one combination of arrivals and unit: costs and savings."""
    costs = [np.array([result.cost[-1] for result in group]) for group in groups]
    policies = [group[0].trial.policy for group in groups]
    baseline = next((c for c, p in zip(costs, policies, strict=True) if p == "berkeley"), None)
    best = min((c.mean() for c, p in zip(costs, policies, strict=True) if p in BASELINES), default=None)
    rows = []
    for group, own in zip(groups, costs, strict=True):
        saved: dict[str, Any] = {"saved_percent": None, "saved_se": None}
        if baseline is not None:
            saved["saved_percent"] = float(100.0 * (1.0 - own.mean() / baseline.mean()))
            saved["saved_se"] = mean_and_error("saved", 100.0 * (1.0 - own / baseline))["saved_se"]
        over_best = None if best is None else float(100.0 * (1.0 - own.mean() / best))
        rows.append(table_row(group, **saved, saved_over_best_percent=over_best))
    return rows


def run(settings: Table2Settings, jobs: Jobs) -> ExperimentResult:
    """Run every policy with every combination of arrivals and unit, and plot the savings."""
    figure, axes = new_figure(2, rows=-(-len(settings.units) // 2), width=5.8, height=4.0)
    for unused in axes[len(settings.units) :]:
        unused.remove()
    sweep = list(itertools.product(settings.units, settings.arrivals))
    trials = [trial for unit, arrivals in sweep for trial in settings.trials(arrivals, unit)]
    groups = run_trials(trials, jobs, EXPERIMENT.name)
    width = len(groups) // len(sweep)
    rows = [r for k in range(len(sweep)) for r in savings_rows(groups[k * width : (k + 1) * width])]
    x = range(len(settings.arrivals))
    for panel, unit in zip(axes, settings.units, strict=False):
        of_unit = [r for r in rows if r["unit"] == unit]
        for first in of_unit[:width]:
            selected = [r for r in of_unit if label(r) == label(first)]
            if selected[0]["saved_percent"] is None or selected[0]["policy"] == "berkeley":
                continue
            line_style = style(first["policy"]) | ({"alpha": 0.5} if first["gamma"] == 1.0 else {})
            panel.errorbar(
                x,
                [r["saved_percent"] for r in selected],
                [r["saved_se"] or 0.0 for r in selected],
                marker="o",
                markersize=3.5,
                label=label(first),
                **line_style,
            )
        panel.axhline(0.0, color="#000000", linewidth=0.8)
        panel.set_xticks(x, settings.arrivals, rotation=45, ha="right")
        panel.set_title(f"a unit is {unit} tokens")
        panel.set_ylabel("saved against the paper's baseline, %")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, ncols=4, loc="outside lower center")
    figure.suptitle(f"{settings.queries} prompts, M = {settings.capacity} units, latencies of {settings.calls}")
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="table-2",
    summary="total cost on OpenAssistant prompts with measured latency (the paper's Table 2)",
    text=__doc__ or "",
    settings=Table2Settings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2, "arrivals": ("power:0.5", "zipf:0.8"), "units": (32,)},
)
