"""A plan in words and numbers: sentences and a table for people, a record for scripts."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from knapcache.sim.plan import ENOUGH, Plan

UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "units"))


def readable(room: float) -> str:
    """An amount of room, to three digits."""
    factor, name = next((unit for unit in UNITS if room >= unit[0]), UNITS[-1])
    return f"{room / factor:.3g} {name}"


def percent(share: float) -> str:
    """A share, to three digits."""
    return f"{100.0 * share:.3g} %"


def number(value: float) -> str:
    """To four digits, and thousands whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def price_unit(plan: Plan) -> tuple[int, str]:
    """A MB, or where all fits into less than one a kB or a single unit: prices of more would say nothing."""
    return next((unit for unit in UNITS[2:] if plan.facts.working_set >= unit[0]), UNITS[-1])


def sentences(plan: Plan) -> list[str]:
    """What was looked at, and what to do."""
    facts = plan.facts
    span = "no times" if facts.days is None else f"{facts.days:.3g} days"
    what = f"{facts.requests:,} requests for {facts.keys:,} keys, {span}, working set {readable(facts.working_set)}."
    if plan.sampled is not None:
        what += f" Replayed: {plan.sampled:,} requests, sampled by key in {plan.slices} slices; ± is a standard error."
    return [what, recommendation(plan)]


def recommendation(plan: Plan) -> str:
    """The last word."""
    facts, advice = plan.facts, plan.advice
    if not facts.largest:
        return "No request that costs something comes twice: a cache saves nothing on this log."
    if advice is None:
        return "No policy that a cache can run was named, so none is recommended."
    share = advice.saved / facts.rate(facts.largest)
    room = f"{readable(advice.budget)} ({percent(advice.budget / facts.working_set)} of the working set)"
    saves = f"{percent(share)} of the largest possible saving, {number(advice.saved)} per {facts.per}"
    if advice.enough:
        return f"Recommended: {room} with {advice.policy}, which saves {saves}."
    return f"No budget here saves {percent(ENOUGH)} of what is possible; {room} with {advice.policy} saves {saves}."


def table(plan: Plan) -> list[dict[str, Any]]:
    """A row a budget: cost ratios of all policies; saving and price of the recommended one, or else of the first."""
    facts, (factor, unit) = plan.facts, price_unit(plan)
    shown = plan.curve(plan.advice.policy if plan.advice else plan.curves[0].policy)
    rows = []
    for k, budget in enumerate(plan.budgets):
        row: dict[str, Any] = {"budget": readable(budget), "share": percent(budget / facts.working_set)}
        row |= {f"cost_{curve.policy}": cost_text(plan, curve.policy, k) for curve in plan.curves}
        price = shown.prices[k]
        row[f"{shown.policy}_saved per_{facts.per}"] = shown.saved[k]
        row[f"{shown.policy}_price_of a {unit}"] = None if price is None else price * factor
        row[f"Oracle's_price of a {unit}"] = plan.oracle_prices[k] * factor
        rows.append(row)
    return rows


def cost_text(plan: Plan, policy: str, k: int) -> str:
    """A cost ratio with its error."""
    ratio, error = cost(plan, policy, k)
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if error is None else f"{ratio:.3f} ±{error:.3f}"


def cost(plan: Plan, policy: str, k: int) -> tuple[float | None, float | None]:
    """Cost ratio and its standard error."""
    facts, curve = plan.facts, plan.curve(policy)
    whole = facts.rate(facts.total_cost)
    if not whole:
        return None, None
    return 1.0 - curve.saved[k] / whole, None if curve.errors is None else curve.errors[k] / whole


def record(plan: Plan, log: str) -> str:
    """All numbers, as JSON."""
    facts = plan.facts
    rows = []
    for curve in plan.curves:
        for k, budget in enumerate(plan.budgets):
            ratio, error = cost(plan, curve.policy, k)
            rows.append(
                {
                    "policy": curve.policy,
                    "budget": budget,
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
        "requests": facts.requests,
        "keys": facts.keys,
        "working_set": facts.working_set,
        "total_cost": facts.total_cost,
        "days": facts.days,
        "per": facts.per,
        "largest_saving": facts.rate(facts.largest),
        "sampled": plan.sampled,
        "slices": plan.slices,
        "rows": rows,
        "oracle_prices": dict(zip(map(str, plan.budgets), plan.oracle_prices, strict=True)),
        "knees": {curve.policy: curve.knee for curve in plan.curves},
        "recommended": vars(plan.advice) if plan.advice else None,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
