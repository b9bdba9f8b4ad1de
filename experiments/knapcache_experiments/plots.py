"""Plots that several experiments draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from knapcache.lab.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from knapcache_experiments.trials import TrialResult


def plot_rows(
    axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, quantity: str = "regret", *, scale: float = 1.0, **more: Any
) -> None:
    """Plot the means of one policy's rows over the column `x`, with bars of one standard error."""
    axes.errorbar(
        [r[x] for r in rows],
        [scale * r[f"{quantity}_mean"] for r in rows],
        [scale * (r[f"{quantity}_se"] or 0.0) for r in rows],
        **{"marker": "o", "markersize": 4, "label": rows[0]["policy"], **style(rows[0]["policy"]), **more},
    )


def plot_mean(axes: Axes, results: Sequence[TrialResult], quantity: str, label: str, **more: Any) -> None:
    """Plot the mean over repeats with a band of one standard error."""
    lines = np.array([getattr(r, quantity) for r in results])
    x, mean = results[0].rounds, lines.mean(axis=0)
    line_style = {**style(results[0].trial.policy), "linewidth": 1.8, **more}
    axes.plot(x, mean, label=label, **line_style)
    if len(lines) > 1:
        error = lines.std(axis=0, ddof=1) / np.sqrt(len(lines))
        axes.fill_between(x, mean - error, mean + error, color=line_style["color"], alpha=0.18, linewidth=0)
