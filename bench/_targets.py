"""Bars: what a benchmark must show, as lines of a table. Shared by the benchmarks."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def bar(metric: str, measured: float, wanted: float, unit: str, *, most: bool, worst: float | None = None) -> Row:
    """A line of the table of bars."""
    return {
        "metric": metric, "measured": measured, "worst": worst, "target": f"{'≤' if most else '≥'} {wanted:g} {unit}",
        "met": bool(measured <= wanted if most else measured >= wanted),
    }  # fmt: skip
