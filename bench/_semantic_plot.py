"""The plot of bench/semantic.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from _results import Row
from matplotlib.artist import Artist

from knapcache.lab.figures import new_figure

TIER = "knapcache"
"""The name of the semantic tier among the rules."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot the share served against the error among hits, a panel for each stream.

    Labels beside the points would overlap, so a legend has the names.
    """
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    names = sorted({name_of(row) for row in rows if row["served"]}, key=lambda name: (not name.startswith(TIER), name))
    others = iter("xsD^v<>*P+dhp8")
    colours = iter(("#C1121F", "#E76F51", "#F4A261"))
    styles = {name: ("o", next(colours)) if name.startswith(TIER) else (next(others), "#555555") for name in names}
    figure, panels = new_figure(len(streams), width=3.6, height=3.6)
    for axes, stream in zip(panels, streams, strict=True):
        for row in rows:
            if row["stream"] == stream and row["served"]:
                marker, colour = styles[name_of(row)]
                point = row["served_rate"], 100 * row["error"]
                axes.plot(*point, marker=marker, color=colour, linestyle="", label=name_of(row))
        axes.set_xlim(0.0, 1.0)
        axes.set_ylim(bottom=-1.0)
        axes.set_xlabel("share of requests served by similarity")
        axes.set_title(stream)
    panels[0].set_ylabel("wrong answers among them, %")
    by_name: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        by_name |= dict(zip(labels, handles, strict=True))
    figure.legend(
        [by_name[name] for name in names], list(map(str, names)), loc="outside right center", fontsize=8, frameon=False
    )
    figure.savefig(path, dpi=140)


def name_of(row: Row) -> str:
    """Return the name of a rule in the legend."""
    return f"{TIER}, δ = {row['allowed']:g}" if row["rule"] == TIER else str(row["rule"])
