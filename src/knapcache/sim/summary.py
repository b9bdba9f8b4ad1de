"""A capacity plan as text: sentences and a table for people, JSON for scripts."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from knapcache.sim.plan import KNEE_SHARE, CapacityPlan

UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "units"))


def format_size(size: float) -> str:
    """Format a size or capacity to three digits: `64 MB`."""
    factor, name = next((unit for unit in UNITS if size >= unit[0]), UNITS[-1])
    return f"{size / factor:.3g} {name}"


def percent(share: float) -> str:
    """Format a share to three digits: `12.5 %`."""
    return f"{100.0 * share:.3g} %"


def number(value: float) -> str:
    """Format a number to four digits, or as a whole number from 1,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def price_unit(plan: CapacityPlan) -> tuple[int, str]:
    """Return the factor and name of the unit that prices are quoted for: MB, or kB or 1 for a small working set."""
    return next((unit for unit in UNITS[2:] if plan.stats.working_set >= unit[0]), UNITS[-1])


def sentences(plan: CapacityPlan) -> list[str]:
    """Return two texts: what was replayed, and the recommendation."""
    stats = plan.stats
    span = "no times" if stats.days is None else f"{stats.days:.3g} days"
    text = f"{stats.requests:,} requests for {stats.keys:,} keys, {span}, working set {format_size(stats.working_set)}."
    if plan.sampled is not None:
        text += (
            f" Replayed a sample by key: {plan.sampled:,} requests in {plan.slices} slices. ± is the standard error."
        )
    return [text, recommendation_text(plan)]


def recommendation_text(plan: CapacityPlan) -> str:
    stats, recommended = plan.stats, plan.recommendation
    if not stats.largest_saving:
        return "A cache saves nothing on this log: no request that costs something is repeated."
    if recommended is None:
        return "No recommendation: none of the compared policies can run in a live cache."
    share = recommended.saved / stats.rate(stats.largest_saving)
    capacity = (
        f"{format_size(recommended.capacity)} ({percent(recommended.capacity / stats.working_set)} of the working set)"
    )
    choice = f"a capacity of {capacity} with policy {recommended.policy}"
    saves = f"{percent(share)} of the largest possible saving: {number(recommended.saved)} per {stats.per}"
    if recommended.at_knee:
        return f"Recommended: {choice}. It saves {saves}."
    none = f"No capacity in this range saves {percent(KNEE_SHARE)} of the largest possible saving."
    return f"{none} Best: {choice}. It saves {saves}."


def table(plan: CapacityPlan) -> list[dict[str, Any]]:
    """Return one row per capacity, with the cost ratio of every policy.

    Saving and price are those of the recommended policy, or of the first one if none is recommended.
    """
    stats, (factor, unit) = plan.stats, price_unit(plan)
    shown = plan.curve(plan.recommendation.policy if plan.recommendation else plan.curves[0].policy)
    rows = []
    for k, capacity in enumerate(plan.capacities):
        row: dict[str, Any] = {
            "capacity": format_size(capacity),
            "share of_working set": percent(capacity / stats.working_set),
        }
        row |= {f"cost ratio_{curve.policy}": cost_text(plan, curve.policy, k) for curve in plan.curves}
        price = shown.prices[k]
        row[f"{shown.policy}_saved per_{stats.per}"] = shown.saved[k]
        row[f"{shown.policy}_price_per {unit}"] = None if price is None else price * factor
        row[f"Oracle_price_per {unit}"] = plan.oracle_prices[k] * factor
        rows.append(row)
    return rows


def cost_text(plan: CapacityPlan, policy: str, k: int) -> str:
    """Format a cost ratio with its standard error."""
    ratio, error = cost(plan, policy, k)
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if error is None else f"{ratio:.3f} ±{error:.3f}"


def cost(plan: CapacityPlan, policy: str, k: int) -> tuple[float | None, float | None]:
    """Return the cost ratio at the k-th capacity and its standard error; None where it is undefined or not
    estimated.
    """
    stats, curve = plan.stats, plan.curve(policy)
    whole = stats.rate(stats.total_cost)
    if not whole:
        return None, None
    return 1.0 - curve.saved[k] / whole, None if curve.errors is None else curve.errors[k] / whole


def to_json(plan: CapacityPlan, log: str) -> str:
    """Return all numbers of the plan as JSON."""
    stats = plan.stats
    rows = []
    for curve in plan.curves:
        for k, capacity in enumerate(plan.capacities):
            ratio, error = cost(plan, curve.policy, k)
            rows.append(
                {
                    "policy": curve.policy,
                    "capacity": capacity,
                    "cost_ratio": ratio,
                    "cost_ratio_error": error,
                    "saved": curve.saved[k],
                    "saved_error": None if curve.errors is None else curve.errors[k],
                    "price": curve.prices[k],
                }
            )
    content = {
        "knapcache": version("knapcache"),
        "log": log,
        "requests": stats.requests,
        "keys": stats.keys,
        "working_set": stats.working_set,
        "total_cost": stats.total_cost,
        "days": stats.days,
        "per": stats.per,
        "largest_saving": stats.rate(stats.largest_saving),
        "sampled": plan.sampled,
        "slices": plan.slices,
        "rows": rows,
        "oracle_prices": dict(zip(map(str, plan.capacities), plan.oracle_prices, strict=True)),
        "knees": {curve.policy: curve.knee for curve in plan.curves},
        "recommended": vars(plan.recommendation) if plan.recommendation else None,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
