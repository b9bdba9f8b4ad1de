"""Results of a replay of rules: rows, a sentence about the trace, and a bar chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from knapcache.features.prefix.lab.read import PrefixTrace
from knapcache.features.prefix.lab.replay import LEARNED, RuleBill
from knapcache.features.prefix.tariff import Tariff
from knapcache.lab.figures import as_png, new_figure
from knapcache.units import counted

COLOURS = {"none": "#999999", "last": "#56B4E9", "system2": "#E69F00", LEARNED: "#C1121F"}
"""By family of rules."""


def rows(bills: Sequence[RuleBill]) -> list[dict[str, Any]]:
    """Return the bills as rows of a table or of JSON."""
    return [asdict(bill) for bill in bills]


def facts(trace: PrefixTrace, tariff: Tariff, *, upgrades: bool) -> str:
    """Return a sentence about the trace and the provider."""
    count, tokens = len(trace.requests), trace.input_tokens
    hours = (trace.requests[-1].time - trace.requests[0].time) / 3600.0
    text = (
        f"{counted(count, 'request')} in {hours:,.1f} hours with {counted(tokens, 'input token')}. Tariff {tariff.name}"
    )
    if tariff.long > tariff.short:
        text += ", which honours" if upgrades else ", which does not honour"
        text += " upgrades to the long time to live"
    return text + ". Bills are in plain input tokens."


def figure_png(bills: Sequence[RuleBill], title: str) -> bytes:
    """Return a bar chart of the ratios."""
    figure, (axes,) = new_figure(height=0.9 + 0.38 * len(bills))
    names = [bill.rule for bill in bills]
    ratios = [bill.ratio for bill in bills]
    colours = [COLOURS.get(name.partition("-")[0], COLOURS[LEARNED]) for name in names]
    bars = axes.barh(names, ratios, color=colours)
    axes.bar_label(bars, [f"{ratio:.3f}" for ratio in ratios], padding=3, fontsize=9)
    axes.axvline(1.0, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_xlim(0.0, 1.12 * max(1.0, *ratios))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("bill ÷ bill without marks")
    axes.set_title(title)
    return as_png(figure)
