"""The figure of `knapcache swap`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knapcache.lab.figures import as_png, new_figure

ANSWERS, LABELS, LOSS, LIMIT = "#0072B2", "#E69F00", "#C1121F", "#777777"


def figure_png(rows: Sequence[Mapping[str, Any]], allowed: float) -> bytes:
    """Return a figure: the bill of each cheaper model, and what its swapped answers lose. allowed: the mean loss."""
    names = [row["model"] for row in rows]
    places = range(len(rows))
    figure, (left, right) = new_figure(2, width=4.6, height=1.6 + 0.4 * len(rows))
    answers = [row["bill"] - row["labels"] for row in rows]
    left.barh(places, answers, color=ANSWERS, label="answers")
    left.barh(places, [row["labels"] for row in rows], left=answers, color=LABELS, label="labels")
    left.axvline(1.0, color=LIMIT, linestyle="--", label="the asked model alone")
    left.set_xlabel("bill")
    left.set_yticks(places, names)
    right.barh(places, [row["loss_of_swapped"] or 0.0 for row in rows], color=LOSS, label="of swapped answers")
    right.axvline(allowed, color=LIMIT, linestyle="--", label="allowed")
    right.set_xlabel("mean loss of score")
    right.set_yticks(places, [""] * len(rows))
    for axis in (left, right):
        axis.invert_yaxis()
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35 / (1.0 + 0.3 * len(rows)) - 0.12), ncols=1)
    return as_png(figure)
