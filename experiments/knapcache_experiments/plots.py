"""Curves of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from knapcache.sim.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from knapcache_experiments.trials import TrialResult


def curve(axes: Axes, results: Sequence[TrialResult], what: str, label: str, **more: Any) -> None:
    """A mean over repeats with a band of one standard error."""
    lines = np.array([getattr(r, what) for r in results])
    x, mean = results[0].rounds, lines.mean(axis=0)
    looks = {**style(results[0].trial.policy), "linewidth": 1.8, **more}
    axes.plot(x, mean, label=label, **looks)
    if len(lines) > 1:
        error = lines.std(axis=0, ddof=1) / np.sqrt(len(lines))
        axes.fill_between(x, mean - error, mean + error, color=looks["color"], alpha=0.18, linewidth=0)
