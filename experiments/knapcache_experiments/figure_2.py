"""Figure 2 of the paper: cumulative cost over 20,000 requests for 100 OpenAssistant prompts, with latency as cost and
capacity 100, mean of 5 repeats with a band of one standard error. The totals correspond to one setting of its Table 2.

Latencies are measured (measured.py). The paper leaves open arrivals and the unit of size. Here they are Zipf 0.8 and 32
tokens, at which about 13 of the 100 answers fit, similar to Figure 1 (capacity 60, sizes 1 … 10). Both were fixed
before the measurements. `table-2` shows other choices.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure, style
from knapcache_experiments.experiment import Experiment, ExperimentResult, option
from knapcache_experiments.plots import plot_mean
from knapcache_experiments.table_2 import MeasuredSettings, label, savings_rows
from knapcache_experiments.trials import run_trials


@dataclass(frozen=True, kw_only=True)
class Figure2Settings(MeasuredSettings):
    """Settings of Figure 2."""

    arrivals: str = option("zipf:0.8", "arrival distribution: uniform, zipf:A or power:A")
    unit: int = option(32, "tokens per unit of size")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.workload(self.arrivals, self.unit)  # raises InvalidInput on bad values


def run(settings: Figure2Settings, jobs: Jobs) -> ExperimentResult:
    """Run every policy, plot cumulative cost and compare totals."""
    figure, (left, right) = new_figure(2, width=5.8)
    groups = run_trials(list(settings.trials(settings.arrivals, settings.unit)), jobs, EXPERIMENT.name)
    rows = savings_rows(groups)
    order = sorted(range(len(groups)), key=lambda k: -rows[k]["cost_mean"])
    for k in order:
        plot_mean(left, groups[k], "cost", label(rows[k]))
    left.set_xlim(0, settings.rounds)
    left.set_ylim(bottom=0)
    left.set_xlabel("request")
    left.set_ylabel("cumulative cost, seconds")
    left.legend(ncols=2)
    bars = range(len(order))
    right.barh(
        bars,
        [rows[k]["cost_mean"] for k in order],
        xerr=[rows[k]["cost_se"] or 0.0 for k in order],
        color=[style(rows[k]["policy"])["color"] for k in order],
    )
    right.set_yticks(bars, [label(rows[k]) for k in order])
    right.grid(visible=False, axis="y")
    right.set_xlabel("total cost, seconds")
    for bar, k in zip(bars, order, strict=True):
        saved, end = rows[k]["saved_percent"], rows[k]["cost_mean"] + (rows[k]["cost_se"] or 0.0)
        if saved is not None:
            text = "baseline" if rows[k]["policy"] == "berkeley" else f"{-saved:+.1f} %"
            right.annotate(text, (end, bar), textcoords="offset points", xytext=(4, -3), fontsize=9)
    right.set_xlim(right=1.14 * max(r["cost_mean"] + (r["cost_se"] or 0.0) for r in rows))
    capacity = f"M = {settings.capacity} × {settings.unit} tokens"
    figure.suptitle(
        f"{settings.queries} prompts, latencies of {settings.calls}, {capacity}, arrivals {settings.arrivals}"
    )
    return ExperimentResult(rows, figure)


EXPERIMENT = Experiment(
    name="figure-2",
    summary="cumulative cost on OpenAssistant prompts with measured latency (the paper's Figure 2)",
    text=__doc__ or "",
    settings=Figure2Settings,
    run=run,
    quick={"rounds": 5_000, "repeats": 2},
)
