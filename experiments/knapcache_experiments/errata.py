"""The cost of each error of Algorithm 1: the algorithm as printed, with its repairs added one by one, and with all
repairs but one.

A `peak_occupancy` above the capacity is an overflow. `rounds_over` counts the rounds that end over capacity, and
`wipes` counts Oracle calls that emptied a non-empty cache. docs/background/algorithm.md explains the repairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure
from knapcache_experiments.as_printed import REPAIRS
from knapcache_experiments.experiment import Experiment, ExperimentResult
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.trials import AS_PRINTED, repeated, run_trials, table_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ErrataSettings(PaperSettings):
    """Settings of the errata experiment."""


def run(settings: ErrataSettings, jobs: Jobs) -> ExperimentResult:
    """Run the printed algorithm with different repairs, then the repaired policies."""
    figure, (left, right) = new_figure(2, width=5.2)
    workload = settings.workload()
    variants: list[tuple[str, str, tuple[str, ...]]] = [
        *((AS_PRINTED, " ".join(REPAIRS[:k]) or "none", REPAIRS[:k]) for k in range(len(REPAIRS) + 1)),
        *((AS_PRINTED, f"all but {omitted}", tuple(r for r in REPAIRS if r != omitted)) for omitted in REPAIRS[:-1]),
        ("vsocb", "all", ()),
        ("vsocb-lazy", "all", ()),
    ]
    trials = [
        trial
        for policy, label, repairs in variants
        for trial in repeated(
            settings,
            policy,
            workload,
            options={"repairs": repairs} if policy == AS_PRINTED else {},
            labels={"repairs": label},
        )
    ]
    rows = [table_row(group, counters=("wipes", "rounds_over")) for group in run_trials(trials, jobs, EXPERIMENT.name)]
    _draw(figure, left, right, rows, settings)
    return ExperimentResult(rows, figure)


def _draw(figure: Figure, left: Axes, right: Axes, rows: list[dict[str, Any]], settings: ErrataSettings) -> None:
    names = [r["repairs"] if r["policy"] == AS_PRINTED else r["policy"] for r in rows]
    names[0] = "as printed"
    colours = ["#D55E00" if name == "as printed" else "#E8A87C" for name in names[:-2]] + ["#0072B2", "#009E73"]
    bars = range(len(rows))
    left.barh(bars, [r["regret_mean"] for r in rows], xerr=[(r["regret_se"] or 0.0) for r in rows], color=colours)
    if rows[0]["regret_mean"] < 0:
        left.annotate("negative: over capacity", (0, 0), textcoords="offset points", xytext=(6, -3), fontsize=9)
    left.set_xlabel(f"regret after {settings.rounds:,} rounds")
    right.barh(bars, [r["peak_occupancy"] for r in rows], color=colours)
    right.axvline(settings.capacity, color="black", linestyle="--", linewidth=1)
    right.annotate(
        "capacity", (settings.capacity, len(rows) - 0.6), textcoords="offset points", xytext=(6, 0), fontsize=9
    )
    right.set_xlabel("peak occupancy")
    left.set_yticks(bars, names)
    right.set_yticks(bars, [""] * len(rows))
    for axes in (left, right):
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
    figure.suptitle("Algorithm 1 as printed, its repairs added one by one, and all but one", fontsize=11)


EXPERIMENT = Experiment(
    name="errata",
    summary="Algorithm 1 as printed and with its repairs: overflow, wiped caches, cost",
    text=__doc__ or "",
    settings=ErrataSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 3},
)
