"""A capacity plan as text: sentences and a table for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from knapcache.lab.plan import KNEE_SHARE, CapacityPlan
from knapcache.lab.projection import span_text
from knapcache.lab.sampling import Sample
from knapcache.lab.trace import USD, TraceStats
from knapcache.units import SIZES, counted, dollars, format_size, number, percent

COUNTED = frozenset({"seconds", "bytes", "misses"})
"""Units of cost that are words for what they count. Others are names of fields."""


def amount(value: float, unit: str) -> str:
    """Format a cost with its unit."""
    return dollars(value) if unit == USD else f"{number(value)} {unit_name(unit)}"


def unit_name(unit: str) -> str:
    """Return a unit of cost in words."""
    if unit == USD:
        return "dollars"
    return unit if unit in COUNTED else f"units of {unit or 'cost'}"


def price_unit(plan: CapacityPlan) -> tuple[int, str]:
    """Return the factor and name of the unit that prices are quoted for: MB, or kB or 1 for a small working set."""
    return next((unit for unit in SIZES[2:] if plan.stats.working_set >= unit[0]), SIZES[-1])


def sample_facts(sample: Sample) -> str:
    """Return what a log consists of and what is replayed, in words."""
    replayed = None if sample.whole else len(sample.trace)
    return stats_text(sample.stats, replayed, len(sample.slices), sample.rate)


def stats_text(stats: TraceStats, sampled: int | None, slices: int, rate: float) -> str:
    span = "without times" if stats.seconds is None else f"in {span_text(stats.seconds)}"
    requests, keys = counted(stats.requests, "request"), counted(stats.keys, "key")
    size = format_size(stats.working_set)
    cost = amount(stats.total_cost, stats.unit)
    if sampled is None:
        return f"{requests} for {keys} {span}, working set {size}. Without a cache they cost {cost}."
    return (
        f"{requests} for about {keys} {span}, working set about {size}. Without a cache they cost {cost}. "
        f"Replayed a sample by key: {counted(sampled, 'request')} in {counted(slices, 'slice')}, one key in "
        f"{number(1 / rate)}."
    )


def replay_table(rows: Sequence[Mapping[str, Any]], unit: str) -> list[dict[str, Any]]:
    """Return the rows of a replay for people: without what is the same in all rows, and with units."""
    suffix = "" if unit in ("", USD) else f"_{unit}"
    oracle = any(row["oracle_calls"] for row in rows)
    sampled = any(row["rate"] < 1.0 for row in rows)
    return [
        {
            "capacity": format_size(row["capacity"]),
            "policy": row["policy"],
            "hits": row["hits"],
            "hit_ratio": None if row["hits"] is None else percent(row["hits"] / row["requests"]),
            f"miss_cost{suffix}": cell(row["miss_cost"], unit),
            "cost_ratio": None if row["cost_ratio"] is None else f"{row['cost_ratio']:.4f}",
            **({"±": f"{row['cost_ratio_error'] or 0.0:.4f}"} if sampled else {}),
            "peak_size": None if row["peak_size"] is None else format_size(row["peak_size"]),
            **({"oracle_calls": row["oracle_calls"]} if oracle else {}),
            "run_time": f"{row['seconds']:,.3g} s" if row["seconds"] >= 1 else f"{1000 * row['seconds']:.3g} ms",
        }
        for row in rows
    ]


def facts(plan: CapacityPlan) -> str:
    """Return what was replayed, in words."""
    return stats_text(plan.stats, plan.sampled, plan.slices, plan.rate)


def recommendation(plan: CapacityPlan) -> str:
    """Return the recommendation, what it saves in the log's own span, and the projection, in words."""
    stats, found = plan.stats, plan.recommendation
    if not stats.largest_saving:
        return "A cache saves nothing on this log: no request that costs something is repeated."
    if found is None or plan.projection is None:
        return "No recommendation: none of the compared policies can run in a live cache."
    capacity = f"{format_size(found.capacity)} ({percent(found.capacity / stats.working_set)} of the working set)"
    text = f"a capacity of {capacity} with policy {found.policy}."
    if found.at_knee:
        text = f"Recommended: {text}"
    else:
        text = f"No capacity in this range saves {percent(KNEE_SHARE)} of the largest possible saving. Best: {text}"
    span = "" if stats.seconds is None else f" of {span_text(stats.seconds)}"
    saved = f"{amount(found.saved, stats.unit)}, {percent(found.saved / stats.largest_saving)} of the largest possible"
    return f"{text} On this log{span} it saves {saved} saving. {projection_text(plan)}"


def projection_text(plan: CapacityPlan) -> str:
    """Return the projection of the recommended saving with its range, or why there is none."""
    found, unit = plan.projection, plan.stats.unit
    if found is None:
        return ""
    if found.per_day is None or found.per_day_low is None or found.per_day_high is None:
        return found.method
    low, high = amount(found.per_day_low, unit), amount(found.per_day_high, unit)
    return f"Projected: {amount(found.per_day, unit)} a day, between {low} and {high} ({found.method.rstrip('.')})."


def legend(plan: CapacityPlan) -> str:
    """Return what the columns of the table mean."""
    names = " and ".join(filter(None, (", ".join(c.policy for c in plan.curves[:-1]), plan.curves[-1].policy)))
    text = f"{names}: cost with the cache / cost without, by policy."
    if plan.sampled is not None:
        text += " ±: the largest standard error of them."
    return f"{text} Saved: by {shown_policy(plan)}, over the log."


def shown_policy(plan: CapacityPlan) -> str:
    """Return the policy whose saving the table shows: the recommended one, or the first one without one."""
    return plan.recommendation.policy if plan.recommendation else plan.curves[0].policy


def table(plan: CapacityPlan, *, oracle: bool = False) -> list[dict[str, Any]]:
    """Return one row per capacity: the cost ratio of every policy, and the saving and price of one of them.

    oracle   add the Oracle's price
    """
    stats, (factor, unit) = plan.stats, price_unit(plan)
    shown = plan.curve(shown_policy(plan))
    suffix = "" if stats.unit in ("", USD) else f"_{stats.unit}"
    rows = []
    for k, capacity in enumerate(plan.capacities):
        row: dict[str, Any] = {
            "capacity": format_size(capacity),
            "share of_working_set": percent(capacity / stats.working_set),
        }
        ratios = [cost(plan, curve.policy, k) for curve in plan.curves]
        row |= {
            curve.policy: "" if ratio is None else f"{ratio:.3f}"
            for curve, (ratio, _) in zip(plan.curves, ratios, strict=True)
        }
        if plan.sampled is not None:
            row["±"] = f"{max(error or 0.0 for _, error in ratios):.3f}"
        row[f"saved{suffix}"] = cell(shown.saved[k], stats.unit)
        price = shown.prices[k]
        row[f"saved by_1 {unit} more{suffix}"] = "" if price is None else cell(price * factor, stats.unit)
        if oracle:
            row[f"Oracle's price_of 1 {unit}{suffix}"] = cell(plan.oracle_prices[k] * factor, stats.unit)
        rows.append(row)
    return rows


def cell(value: float, unit: str) -> str:
    """Format a cost for a table whose header names the unit, unless it is dollars."""
    return dollars(value) if unit == USD else number(value)


def cost(plan: CapacityPlan, policy: str, k: int) -> tuple[float | None, float | None]:
    """Return the cost ratio at the k-th capacity and its standard error; None where it is undefined or not
    estimated.
    """
    curve, whole = plan.curve(policy), plan.stats.total_cost
    if not whole:
        return None, None
    return 1.0 - curve.saved[k] / whole, None if curve.errors is None else curve.errors[k] / whole


def to_json(plan: CapacityPlan, log: str) -> str:
    """Return all numbers of the plan as JSON."""
    stats, projected = plan.stats, plan.projection
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
        "unit": stats.unit,
        "total_cost": stats.total_cost,
        "seconds": stats.seconds,
        "span": span_text(stats.seconds),
        "largest_saving": stats.largest_saving,
        "sampled": plan.sampled,
        "slices": plan.slices,
        "rate": plan.rate,
        "rows": rows,
        "oracle_prices": dict(zip(map(str, plan.capacities), plan.oracle_prices, strict=True)),
        "knees": {curve.policy: curve.knee for curve in plan.curves},
        "recommended": vars(plan.recommendation) if plan.recommendation else None,
        "projection": vars(projected) if projected else None,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
