"""Random worlds in the policy benchmark: replays, distribution of the ratios, targets, tables and a figure.

The ratio of a policy in a *cell*, a world and one of its capacities, is

    cost of all misses / cost of all misses with the best textbook policy of this cell

Both costs include the first miss of every key, which no policy can avoid. Without them, a cell whose keys all fit would
divide one small number by another. Textbook policies are the online policies of the registry, except those that come
from this project (`adaptive`, `horizon`), and except VSOCB and its variants, which are slow with thousands of keys.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from _results import Row, target

from knapcache.estimate.discount import HALF_LIVES
from knapcache.lab.executors import sweep
from knapcache.lab.figures import new_figure, style
from knapcache.lab.grid import GridCell, run_cell
from knapcache.lab.replay import replay
from knapcache.policy import registry
from knapcache.policy.adaptive.experts import EXPERT_COUNT
from knapcache.policy.adaptive.policy import Adaptive
from knapcache_experiments.worlds import DEVELOPMENT, HELD_OUT, UNRESTRICTED, World, draw_world

SETS = {"development": DEVELOPMENT, "held-out": HELD_OUT, "unrestricted": UNRESTRICTED}
"""Sets of worlds and their seeds. The unrestricted worlds have no targets; they run with "all"."""
CHOICES = ("development", "held-out", "all", "none")
NOT_TEXTBOOK = {"adaptive", "horizon", "vsocb", "vsocb-lazy", "vsocb-apx"}
EXPERTS = (*(f"half-life {h:,.0f}" for h in HALF_LIVES), "greedy-dual", "greedy-dual-size", "recency", "hazard")
"""Names of the experts of `adaptive`, in their order."""
MAX_WORST, MAX_P95, MEDIAN_BELOW = 1.05, 1.01, 1.0
WORST = 8
"""Number of worst cells that are reported with a description of their world."""


def textbook(names: Iterable[str]) -> list[str]:
    """Return the textbook policies among these names."""
    return [p for p in names if p in registry.SPECS and registry.SPECS[p].online and p not in NOT_TEXTBOOK]


def replay_world(policies: Sequence[str], unrestricted: bool, seed: int) -> list[Row]:
    """Return one row for each capacity of a world, with the cost ratio of every policy."""
    world = draw_world(seed, unrestricted=unrestricted)
    return [
        {
            "seed": seed, "share": share, "capacity": capacity, "description": world.description,
            "ratios": {p: run_cell([world.trace], GridCell(p, capacity, 0))["cost_ratio"] for p in policies},
        }
        for share, capacity in zip(world.shares, world.capacities, strict=True)
    ]  # fmt: skip


def measure(choice: str, policies: Sequence[str], jobs: int | None) -> list[Row]:
    """Replay the chosen worlds and return one row per cell. The first policy is the subject. Progress is on stderr."""
    found = []
    for name, seeds in SETS.items():
        if choice in (name, "all"):
            report = functools.partial(report_progress, name)
            shared = (policies, name == "unrestricted")
            rows = sweep(replay_world, seeds, shared=shared, jobs=jobs, title=f"{name} worlds", on_progress=report)
            found += [compare(row, policies[0]) | {"set": name} for world in rows for row in world]
    return found


def report_progress(name: str, done: int, total: int) -> None:
    if done % 20 == 0 or done == total:
        print(f"{name} worlds: {done} of {total} done", file=sys.stderr)


def compare(row: Row, subject: str) -> Row:
    """Add to a cell the best textbook policy, and the ratio of the subject to it."""
    cost = row["ratios"]
    best = min(textbook(p for p in cost if p != subject), key=cost.__getitem__)
    return row | {
        "subject": cost[subject], "best": cost[best], "best_name": best, "ratio": cost[subject] / cost[best],
    }  # fmt: skip


def replay_experts(seed: int, subject: str, rivals: Sequence[str]) -> list[Row]:
    """Return the costs at each capacity of a world: of the subject, of the best rival, and of every expert of
    `adaptive` that leads from beginning to end, the cheapest first.
    """
    world = draw_world(seed)
    rows: list[Row] = [{"rule": name} for name in (subject, "best textbook policy", *EXPERTS)]
    for share, capacity in zip(world.shares, world.capacities, strict=True):
        cost = {p: run_cell([world.trace], GridCell(p, capacity, 0))["cost_ratio"] for p in (subject, *rivals)}
        best = min(rivals, key=cost.__getitem__)
        costs = [cost[subject], cost[best], *(expert_cost(world, capacity, k) for k in range(EXPERT_COUNT))]
        for row, one in zip(rows, costs, strict=True):
            row |= {f"{share:.1%}": one, f"{share:.1%} / {best}": one / cost[best]}
    return sorted(rows, key=lambda row: row[f"{world.shares[0]:.1%}"])


def expert_cost(world: World, capacity: int, expert: int) -> float:
    """Return the cost ratio of `adaptive` with one expert as its leader from beginning to end."""
    policy = Adaptive.for_trace(capacity, world.trace)
    policy.head["leader"], policy.head["next_check"] = expert, np.iinfo(np.int64).max
    cost = replay(policy, world.trace).miss_cost
    assert policy.head["leader"][0] == expert
    return cost / world.trace.total_cost


def distribution(ratios: Sequence[float]) -> Row:
    """Summarize ratios. Percentiles are observed values, so that a cell can be named for each."""
    low, median, p95, worst = np.percentile(ratios, [0, 50, 95, 100], method="higher").tolist()
    better, worse = (np.asarray(ratios) < 1.0).mean(), (np.asarray(ratios) > 1.01).mean()
    return {
        "cells": len(ratios), "min": low, "median": median, "p95": p95, "worst": worst,
        "below_1": float(better), "above_1_01": float(worse),
    }  # fmt: skip


def summarize(cells: list[Row], subject: str) -> Row:
    """Return what the JSON file holds: distributions by set of worlds and by policy, the cells, and the worst of them.

    "all", the distributions by policy and the worst cells are without the unrestricted worlds. Only the worst cells
    have a description; `draw_world(seed).description` returns that of every world.
    """
    groups = {name: [c for c in cells if c["set"] == name] for name in dict.fromkeys(c["set"] for c in cells)}
    restricted = [c for c in cells if c["set"] != "unrestricted"]
    if "held-out" in groups and "development" in groups:
        groups["all"] = restricted
    by_policy = {p: distribution([c["ratios"][p] / c["best"] for c in restricted]) for p in cells[0]["ratios"]}
    worst = sorted(restricted, key=lambda c: -c["ratio"])[:WORST]
    return {
        "subject": subject,
        "textbook": textbook(p for p in cells[0]["ratios"] if p != subject),
        "distributions": {name: distribution([c["ratio"] for c in group]) for name, group in groups.items()},
        "by_policy": dict(sorted(by_policy.items(), key=lambda item: item[1]["p95"])),
        "worst": [{field: value for field, value in c.items() if field != "ratios"} for c in worst],
        "cells": [{k: v for k, v in c.items() if k not in ("ratios", "description")} for c in cells],
    }


def check_targets(record: Row) -> list[Row]:
    """Return the measured targets, for each set of worlds and for all together, without the unrestricted ones."""
    targets = []
    for name, d in record["distributions"].items():
        if name == "unrestricted":
            continue
        metric = f"{name} worlds, {d['cells']} cells, cost / best textbook policy"
        targets += [
            target(f"{metric}: worst", d["worst"], at_most=MAX_WORST, unit="×"),
            target(f"{metric}: 95th percentile", d["p95"], at_most=MAX_P95, unit="×"),
            target(f"{metric}: median", d["median"], below=MEDIAN_BELOW, unit="×"),
        ]
    return targets


def tables(record: Row) -> list[tuple[str, list[Row]]]:
    """Return titles and rows of the tables to print."""

    def numbers(d: Row) -> Row:
        shares = {"below_1": "< 1", "above_1_01": "> 1.01", "p95": "95 %"}
        return {shares.get(field, field): value for field, value in d.items()}

    fields = ("set", "seed", "share", "capacity", "subject", "best", "best_name", "ratio", "description")
    worst = [
        {record["subject"] if field == "subject" else field: c[field] for field in fields} for c in record["worst"]
    ]
    return [
        (
            f"random worlds: cost of {record['subject']} / best textbook policy",
            [{"worlds": name, **numbers(d)} for name, d in record["distributions"].items()],
        ),
        (
            "random worlds: cost / best textbook policy, by policy",
            [{"policy": name, **numbers(d)} for name, d in record["by_policy"].items()],
        ),
        ("random worlds: worst cells", worst),
    ]


def markdown(record: Row) -> list[str]:
    """Return the lines of the tables in docs/background/policies.md."""

    def line(name: str, d: Row) -> str:
        numbers = " | ".join(f"{d[field]:.3f}" for field in ("min", "median", "p95", "worst"))
        return f"| {name} | {numbers} | {d['below_1']:.0%} | {d['above_1_01']:.0%} |"

    columns = " | min | median | 95th percentile | worst | below 1 | above 1.01 |"
    text = [f"| worlds{columns}", "|---|---|---|---|---|---|---|"]
    text += [line(f"{name}, {d['cells']} cells", d) for name, d in record["distributions"].items()]
    text += ["", f"| policy{columns}", "|---|---|---|---|---|---|---|"]
    text += [line(f"`{name}`", d) for name, d in record["by_policy"].items()]
    text += ["", f"| seed | capacity | `{record['subject']}` | best textbook policy | ratio | world |"]
    text += ["|---|---|---|---|---|---|"]
    for c in record["worst"]:
        best = f"{c['best']:.4f} (`{c['best_name']}`)"
        text.append(
            f"| {c['seed']} | {c['share']:.1%} | {c['subject']:.4f} | {best} | {c['ratio']:.3f} | {c['description']} |"
        )
    return text


def draw(cells: list[Row], record: Row, path: Path) -> None:
    """Plot the empirical distribution of the ratios: the subject by set of worlds, and its closest rivals."""
    figure, (axes,) = new_figure(width=6.8, height=4.4)
    rivals = [p for p in record["by_policy"] if p in record["textbook"]][:2]
    rivals += [p for p in ("gdsf-cost", "lru") if p in record["textbook"] and p not in rivals]
    for name in rivals:
        x = np.sort([c["ratios"][name] / c["best"] for c in cells])
        axes.step(x, np.arange(1, len(x) + 1) / len(x), where="post", label=name, linewidth=1.0, **style(name))
    lines = (("development", "-", "#0072B2"), ("held-out", "--", "#D55E00"), ("unrestricted", ":", "#009E73"))
    for name, dash, colour in lines:
        x = np.sort([c["ratio"] for c in cells if c["set"] == name])
        if len(x):
            y = np.arange(1, len(x) + 1) / len(x)
            label = f"{record['subject']}, {name} worlds"
            axes.step(x, y, where="post", label=label, linewidth=2.2, color=colour, linestyle=dash, zorder=3)
    axes.axvline(1.0, color="#000000", linewidth=0.8)
    axes.axhline(0.95, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_xlim(0.75, 2.0)
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks = [0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("cost / best textbook policy of the cell")
    axes.set_ylabel("share of the cells at or below")
    axes.set_title("random worlds")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=140)
