"""Targets: limits that a benchmark must meet, as table rows."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def target(
    metric: str,
    measured: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    unit: str = "",
    worst: float | None = None,
) -> Row:
    """Return the row of one target. Give one of `at_most`, `at_least` and `below`."""
    if at_most is not None:
        text, met = f"≤ {at_most:g} {unit}", measured <= at_most
    elif below is not None:
        text, met = f"< {below:g} {unit}", measured < below
    else:
        assert at_least is not None
        text, met = f"≥ {at_least:g} {unit}", measured >= at_least
    return {"metric": metric, "measured": measured, "worst": worst, "target": text.strip(), "met": bool(met)}
