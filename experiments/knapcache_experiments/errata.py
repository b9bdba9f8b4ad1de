"""Algorithm 1 as printed beside its repairs, added one by one: what each error costs.

peak occupancy above the capacity is an overflow; `rounds over` counts the rounds that end with one; `wipes`
counts Oracle calls that emptied a cache which held something. The repairs are explained in docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from knapcache_experiments.as_printed import REPAIRS
from knapcache_experiments.cells import AS_PRINTED, Cell, row, run_cells
from knapcache_experiments.figure_1 import PaperSettings
from knapcache_experiments.framework import Experiment, Outcome
from knapcache_experiments.plots import new_figure


@dataclass(frozen=True, kw_only=True)
class ErrataSettings(PaperSettings):
    """Errata."""


def run(settings: ErrataSettings, jobs: int | None) -> Outcome:
    """Run the printed algorithm with ever more repairs, then the repaired one."""
    figure, (left, right) = new_figure(2, width=5.2)
    workload = settings.workload()
    variants = [(AS_PRINTED, REPAIRS[:k]) for k in range(len(REPAIRS) + 1)] + [("vsocb", None), ("vsocb-lazy", None)]
    cells = [
        Cell(
            policy,
            workload,
            settings.capacity,
            repeat,
            settings.seed,
            settings.alpha,
            options={} if repairs is None else {"repairs": repairs},
            labels={"repairs": "all" if repairs is None else " ".join(repairs) or "none"},
        )
        for policy, repairs in variants
        for repeat in range(settings.repeats)
    ]
    rows = [row(group, notes=("wipes", "rounds_over")) for group in run_cells(cells, jobs, EXPERIMENT.name)]
    names = [f"{r['repairs']}" if r["policy"] == AS_PRINTED else r["policy"] for r in rows]
    names[0] = "as printed"
    bars = range(len(rows))
    colours = ["#D55E00"] + ["#E8A87C"] * (len(REPAIRS)) + ["#0072B2", "#009E73"]
    left.barh(bars, [r["regret_mean"] for r in rows], xerr=[r["regret_se"] for r in rows], color=colours)
    left.set_yticks(bars, names)
    left.invert_yaxis()
    left.set_xlabel(f"regret after {settings.rounds:,} rounds")
    right.barh(bars, [r["peak_occupancy"] for r in rows], color=colours)
    right.axvline(settings.capacity, color="black", linestyle="--", linewidth=1)
    right.annotate(
        "capacity", (settings.capacity, len(rows) - 0.6), textcoords="offset points", xytext=(6, 0), fontsize=9
    )
    right.set_yticks(bars, [""] * len(rows))
    right.invert_yaxis()
    right.set_xlabel("peak occupancy")
    figure.suptitle("Algorithm 1 as printed, and its repairs added one by one", fontsize=11)
    return Outcome(rows, figure)


EXPERIMENT = Experiment(
    name="errata",
    summary="Algorithm 1 as printed beside its repairs: overflow, wiped caches, cost",
    text=__doc__ or "",
    settings=ErrataSettings,
    run=run,
    quick={"rounds": 5_000, "repeats": 3},
)
