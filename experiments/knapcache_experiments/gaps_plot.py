"""The figure of the `gaps` experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knapcache.lab.figures import new_figure
from knapcache_experiments.plots import plot_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
BOUND: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1}


def draw_gaps(
    rows: Sequence[Row], gaps: Sequence[float], rounds: int, approximate_gap: float, beta_share: float
) -> Figure:
    """Draw regret over T, regret over Δ, and β-regret over T, each with its bound.

    gaps: the Δ_min of the instances for Theorem 1. rounds: the largest T. approximate_gap, beta_share: Δ_min and β of
    the third picture.
    """
    figure, (over_rounds, over_gap, approximate) = new_figure(3, width=4.6)
    exact = [r for r in rows if r["claim"] == "Theorem 1 (1)" and "fit" not in r]
    gap = sorted(gaps)[len(gaps) // 2]
    draw_lines(over_rounds, [r for r in exact if r["gap"] == gap], "rounds")
    over_rounds.set_title(f"Theorem 1 (1), Δ_min = {gap:g}")
    over_rounds.set_xlabel("rounds T")
    over_rounds.set_ylabel("regret")
    draw_lines(over_gap, [r for r in exact if r["rounds"] == rounds], "gap")
    over_gap.set_title(f"Theorem 1 (1), T = {rounds:,}")
    over_gap.set_xlabel("smallest gap Δ_min")
    over_gap.set_ylabel("regret")
    draw_lines(approximate, [r for r in rows if r.get("beta_share") == beta_share], "rounds")
    approximate.set_title(f"Theorem 2 (1), Δ_min = {approximate_gap:g}, β = {beta_share:g}·Δ_min ÷ cost(M*)", size=9)
    approximate.set_xlabel("rounds T")
    approximate.set_ylabel("β-regret")
    for axes in (over_rounds, over_gap):
        axes.set_yscale("log")
        axes.set_ylim(top=100 * axes.get_ylim()[1])  # room for the legend
    approximate.set_yscale("symlog", linthresh=100)
    for axes in (over_rounds, over_gap, approximate):
        axes.set_xscale("log")
        axes.legend()
    return figure


def draw_lines(axes: Axes, rows: Sequence[Row], x: str) -> None:
    """Draw one line per policy and γ, and the bound of these rows."""
    names = list(dict.fromkeys((r["policy"], r["gamma"]) for r in rows))
    for policy, gamma in names:
        line = sorted((r for r in rows if (r["policy"], r["gamma"]) == (policy, gamma)), key=lambda r: float(r[x]))
        dash = ":" if gamma == 0.0 else "-"
        plot_rows(axes, line, x, markersize=3, label=f"{policy}, γ = {gamma:g}", linestyle=dash)
    first = sorted((r for r in rows if (r["policy"], r["gamma"]) == names[0]), key=lambda r: float(r[x]))
    axes.plot([r[x] for r in first], [r["bound"] for r in first], label="bound, constant 1", **BOUND)
