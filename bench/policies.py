"""Benchmark of policy quality: the cost of every online policy on public traces and synthetic traffic, with references.

    python bench/policies.py [--out DIR] [--traces LIST] [--capacities LIST] [--policies LIST] [--worlds SET] [--jobs N]
    python bench/policies.py --markdown FILE

The cost ratio is the cost of all misses divided by the cost without a cache. A *cell* is a trace and a capacity, given
as a share of the working set. The references know the future: the best fixed set (`static`), Belady's rule (`belady`),
and the PFOO-L bound (`pfoo`), which no cache can beat. The share of the gap that a policy closes is

    (lru − policy) / (lru − pfoo)        over several cells: ratio of the sums, because some cells have almost no gap

Public traces are read from $KNAPCACHE_TRACES, by default ../shared/data; missing ones are reported and skipped.
Synthetic traffic (lab/traffic.py) and random worlds (knapcache_experiments/worlds.py, _worlds.py) guard against a
policy tuned to a few files. One policy, the --subject, has targets. Worlds of the held-out seeds are for final
results: while you develop a policy, run --worlds development. A mixture of two traces in one cache is compared with a
cache for each (_mixture.py).

Prints tables; writes policies.json, policies.png and policies_worlds.png to DIR. The file holds no times: equal
decisions give an equal file. --markdown prints the tables of docs/background/policies.md from such a file and runs
nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _mixture
import _worlds
import numpy as np
from _results import Row, options_for, print_targets, run_or_show, target, write_result

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.lab import traffic
from knapcache.lab.figures import new_figure, style
from knapcache.lab.grid import check_arguments, replay_grid
from knapcache.lab.trace import Trace
from knapcache.lab.traces import read_trace
from knapcache.policy import registry
from knapcache_experiments.measured import traces_directory

ANSWERS = ("1%", "5%", "10%", "30%")
PUBLIC_TRACES = {
    "oasst_zipf_0.6": ANSWERS, "oasst_zipf_1.0": ANSWERS, "mooncake_conversation": ANSWERS, "adaptsize_camp": ANSWERS,
    "agent_contexts": ("1%", "2%", "5%", "10%"),
}  # fmt: skip
"""Public traces and the capacities that they are replayed at. Few sessions are active at once, so caches for whole
contexts of sessions are small."""
SESSIONS = "agent_contexts"
"""The means over cells are of the other traces: `adaptive` had targets on them before this one was added."""
SYNTHETIC_CAPACITIES = ("0.1%", "1%", "10%", "50%")
ONLINE = [name for name, spec in registry.SPECS.items() if spec.online]
REFERENCES = ["static", "belady", "pfoo"]
SLOW_WITH_MANY_KEYS = {"vsocb", "vsocb-lazy", "vsocb-apx"}
"""Take up to a minute per cell of synthetic traffic, which has tens of thousands of keys. --policies runs them too."""
MAX_RATIO_TO_BEST = 1.01
MAX_MEAN_RATIO = {"gdsf-cost": 0.94, "lru": 0.85}
LLM_CAPACITY, MAX_LLM_RATIO = "10%", 0.925
Ratios = dict[str, dict[str, dict[str, float]]]
"""Cost ratios by trace, capacity and policy."""


def public_traces(names: Iterable[str]) -> Iterator[tuple[str, Trace]]:
    """Yield the traces whose files exist; report the others."""
    for name in names:
        path = traces_directory() / f"{name}.csv.gz"
        if path.exists():
            yield name, read_trace(path)
        else:
            print(f"{name}: skipped, {path} does not exist; set KNAPCACHE_TRACES to another directory", file=sys.stderr)


def measure(traces: Iterable[tuple[str, Trace, Sequence[str]]], policies: Sequence[str], jobs: int | None) -> Ratios:
    """Replay every trace with every policy at each of its capacities."""
    ratios: Ratios = {}
    for name, trace, capacities in traces:
        rows = iter(replay_grid(trace, policies, capacities, jobs=jobs))
        ratios[name] = {capacity: {p: next(rows)["cost_ratio"] for p in policies} for capacity in capacities}
        print(f"{name}: done", file=sys.stderr)
    return ratios


def cells(ratios: Ratios, subject: str) -> list[Row]:
    """Return one row per cell: the subject, the best other online policy, and the references."""
    rows = []
    for trace, by_capacity in ratios.items():
        for capacity, ratio in by_capacity.items():
            best = min((p for p in ratio if p in ONLINE and p != subject), key=ratio.__getitem__, default=None)
            row: Row = {"trace": trace, "capacity": capacity, "subject": ratio.get(subject)}
            row |= {"best_other": best and ratio[best], "best_other_name": best}
            row |= {name: ratio[name] for name in ("gdsf-cost", "lru", *REFERENCES) if name in ratio}
            if best and subject in ratio:
                row["ratio_to_best_other"] = ratio[subject] / ratio[best]
            if {subject, "lru", "pfoo"} <= set(ratio) and ratio["lru"] > ratio["pfoo"]:
                row["gap_closed"] = (ratio["lru"] - ratio[subject]) / (ratio["lru"] - ratio["pfoo"])
            rows.append(row)
    return rows


def check_targets(rows: list[Row]) -> list[Row]:
    """Return the measured targets on the public traces."""
    targets = []
    if with_best := [c for c in rows if "ratio_to_best_other" in c]:
        worst = max(with_best, key=lambda c: c["ratio_to_best_other"])
        metric = f"worst of {len(with_best)} cells, cost / best other policy"
        targets.append(target(metric, worst["ratio_to_best_other"], at_most=MAX_RATIO_TO_BEST, unit="×"))
    answers = [c for c in rows if c["subject"] is not None and c["trace"] != SESSIONS]
    for other, limit in MAX_MEAN_RATIO.items():
        if to_other := [c["subject"] / c[other] for c in answers if other in c]:
            metric = f"mean of {len(to_other)} cells without {SESSIONS}, cost / {other}"
            targets.append(target(metric, float(np.mean(to_other)), at_most=limit, unit="×", worst=max(to_other)))
    for c in answers:
        if c["trace"].startswith("oasst") and c["capacity"] == LLM_CAPACITY and "gdsf-cost" in c:
            metric = f"{c['trace']} at {c['capacity']}, cost / gdsf-cost"
            targets.append(target(metric, c["subject"] / c["gdsf-cost"], at_most=MAX_LLM_RATIO, unit="×"))
    return targets


def gap_closed(rows: list[Row]) -> float | None:
    """Return the share of the gap between LRU and the bound that the subject closes over all cells."""
    gaps = [(c["lru"] - c["subject"], c["lru"] - c["pfoo"]) for c in rows if "gap_closed" in c]
    return sum(closed for closed, _ in gaps) / sum(gap for _, gap in gaps) if gaps else None


def table_of(by_capacity: dict[str, dict[str, float]]) -> list[Row]:
    """Return one row per policy: online policies from best to worst on average, then references."""
    ratios = list(by_capacity.values())
    names = sorted(ratios[0], key=lambda p: (p not in ONLINE, sum(cell[p] for cell in ratios)))
    return [{"policy": p, **{capacity: cell[p] for capacity, cell in by_capacity.items()}} for p in names]


def markdown(record: Row) -> str:
    """Return the tables of docs/background/policies.md."""

    def number(x: float | None) -> str:
        return "–" if x is None else f"{x:.3f}"

    subject = f"`{record['subject']}`"
    text = [
        f"| trace | cache | {subject} | best other | `gdsf-cost` | `lru` | `pfoo` |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in record["cells"]:
        best = f"{number(c['best_other'])} (`{c['best_other_name']}`)"
        others = " | ".join(number(c.get(name)) for name in ("gdsf-cost", "lru", "pfoo"))
        text.append(f"| {c['trace']} | {c['capacity']} | {number(c['subject'])} | {best} | {others} |")
    text += ["", "| metric | measured | target | met |", "|---|---|---|---|"]
    for b in record["targets"]:
        text.append(f"| {b['metric']} | {number(b['measured'])} | {b['target']} | {'yes' if b['met'] else 'no'} |")
    capacities = list(dict.fromkeys(c["capacity"] for c in record["traffic"]))
    text += ["", f"| traffic | {' | '.join(capacities)} |", "|---" * (len(capacities) + 1) + "|"]
    for kind in dict.fromkeys(c["trace"] for c in record["traffic"]):
        to_best = [number(c.get("ratio_to_best_other")) for c in record["traffic"] if c["trace"] == kind]
        text.append(f"| {kind} | {' | '.join(to_best)} |")
    if record.get("worlds"):
        text += ["", *_worlds.markdown(record["worlds"])]
    if record.get("mixture"):
        text += ["", *_mixture.markdown(record["mixture"])]
    return "\n".join(text)


def draw(ratios: Ratios, subject: str, path: Path) -> None:
    """Plot cost ratio over capacity, one panel per trace. Tick labels name the best other policy of each cell."""
    columns = min(2, len(ratios))
    figure, panels = new_figure(columns, rows=-(-len(ratios) // columns), width=5.4, height=4.2)
    for axes in panels[len(ratios) :]:
        axes.remove()
    for axes, (trace, by_capacity) in zip(panels, ratios.items(), strict=False):
        x = [float(capacity.rstrip("%")) for capacity in by_capacity]
        ratios_by_cell = list(by_capacity.values())
        rest = [[p for p in cell if p in ONLINE and p not in (subject, "gdsf-cost", "lru")] for cell in ratios_by_cell]
        best = [
            min(names, key=cell.__getitem__) if names else None
            for names, cell in zip(rest, ratios_by_cell, strict=True)
        ]
        styles: dict[str, dict[str, Any]] = {
            "lru": {"marker": "o"}, "gdsf-cost": {"marker": "o"}, "static": {"marker": "s"},
            subject: {"marker": "o", "linewidth": 3.0, "color": "#0072B2", "linestyle": "-", "zorder": 3},
        }  # fmt: skip
        for name, line_style in styles.items():
            if name in ratios_by_cell[0]:
                label = "static: best fixed set" if name == "static" else name
                axes.plot(
                    x,
                    [cell[name] for cell in ratios_by_cell],
                    label=label,
                    **{"markersize": 4} | style(name) | line_style,
                )
        if all(best):
            y = [cell[p] for p, cell in zip(best, ratios_by_cell, strict=True) if p]
            axes.plot(x, y, label="best other policy", color="#D55E00", marker="D", markersize=4, linewidth=1, zorder=4)
        if "pfoo" in ratios_by_cell[0]:
            y = [cell["pfoo"] for cell in ratios_by_cell]
            axes.plot(x, y, label="PFOO-L: lower bound", color="#000000", linestyle="--")
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = [f"{capacity}\n{p or ''}" for capacity, p in zip(by_capacity, best, strict=True)]
        axes.set_xticks(x, ticks, rotation=35, ha="right", rotation_mode="anchor", fontsize=8.5)
        axes.set_xlabel("capacity, share of the working set; best other policy")
        axes.set_ylabel("cost ratio")
        axes.set_title(trace)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=140)


def print_tables(ratios: Ratios, record: Row) -> None:
    for name, by_capacity in ratios.items():
        print_table(table_of(by_capacity), title=f"{name}: cost ratio by capacity")
    named = [
        {record["subject"] if field == "subject" else field: value for field, value in cell.items()}
        for cell in (*record["cells"], *record["traffic"])
    ]
    for title, rows in (
        ("public traces", named[: len(record["cells"])]),
        ("synthetic traffic", named[len(record["cells"]) :]),
    ):
        if rows:
            print_table(rows, title=f"{title}: cost ratio")
    for title, rows in _worlds.tables(record["worlds"]) if record["worlds"] else ():
        print_table(rows, title=title)
    if record["mixture"]:
        print_table(record["mixture"]["rows"], title=_mixture.title(record["mixture"]))
    if record["targets"]:
        print_targets(record["targets"])
    for title, share in (
        ("public traces", record["gap_closed"]),
        ("synthetic traffic", record["traffic_gap_closed"]),
    ):
        if share is not None:
            print(f"{title}: {record['subject']} closes {100 * share:.1f} % of the gap between lru and PFOO-L")


def parse_names(text: str | None, allowed: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return a comma-separated list of names from the command line, or the default."""
    names = text.split(",") if text else list(default)
    for name in names:
        if name not in allowed:
            raise InvalidInput(f"{name!r} is not one of {', '.join(allowed)}")
    return names


def run(args: argparse.Namespace) -> None:
    if args.experts is not None:
        rows = _worlds.replay_experts(args.experts, args.subject, _worlds.textbook(ONLINE))
        print_table(rows, title=f"world {args.experts}: cost by capacity, and cost / best textbook policy")
        return
    names = parse_names(args.traces, (*PUBLIC_TRACES, *traffic.KINDS), (*PUBLIC_TRACES, *traffic.KINDS))
    policies = parse_names(args.policies, [*ONLINE, *REFERENCES], [*ONLINE, *REFERENCES])
    faster = policies if args.policies else [p for p in policies if p not in SLOW_WITH_MANY_KEYS]
    given = args.capacities.split(",") if args.capacities else None
    capacities = {n: given or PUBLIC_TRACES.get(n, SYNTHETIC_CAPACITIES) for n in names}
    for texts in capacities.values():
        if not all(capacity.relative for capacity in check_arguments(policies, texts, 0, args.jobs)):
            raise InvalidInput(f"capacities must be shares of the working set, such as 10%, not {args.capacities}")
    competing = [args.subject, *_worlds.textbook(p for p in policies if p != args.subject)]
    if args.subject not in policies:
        print(f"{args.subject} is not among the policies: no targets are checked", file=sys.stderr)
    public = dict(public_traces(n for n in names if n in PUBLIC_TRACES))
    ratios = measure(((n, trace, capacities[n]) for n, trace in public.items()), policies, args.jobs)
    synthetic = ((n, traffic.draw(n), capacities[n]) for n in names if n in traffic.KINDS)
    traffic_ratios = measure(synthetic, faster, args.jobs)
    public_cells, synthetic_cells = cells(ratios, args.subject), cells(traffic_ratios, args.subject)
    targets, worlds, mixture = check_targets(public_cells), None, None
    if args.subject in policies and len(competing) > 1:
        world_cells = _worlds.measure(args.worlds or ("none" if args.traces else "all"), competing, args.jobs)
        if world_cells:
            worlds = _worlds.summarize(world_cells, args.subject)
            targets += _worlds.check_targets(worlds)
        if set(_mixture.TRACES) <= set(public):
            mixture = _mixture.measure(public, competing)
    record = {
        "numpy": np.__version__, "subject": args.subject, "targets": targets, "gap_closed": gap_closed(public_cells),
        "traffic_gap_closed": gap_closed(synthetic_cells), "cells": public_cells, "traffic": synthetic_cells,
        "worlds": worlds, "mixture": mixture, "ratios": ratios, "traffic_ratios": traffic_ratios,
    }  # fmt: skip
    print_tables(ratios, record)
    write_result(args.out, "policies", record)
    if args.out:
        if ratios:
            draw(ratios, args.subject, args.out / "policies.png")
        if worlds:
            _worlds.draw(world_cells, worlds, args.out / "policies_worlds.png")


def main() -> None:
    parser = options_for(__doc__, "policies.json and the figures")
    option = parser.add_argument
    option("--traces", metavar="LIST", help=f"traces, of {', '.join((*PUBLIC_TRACES, *traffic.KINDS))} (default: all)")
    option(
        "--capacities",
        metavar="LIST",
        help=f"capacities in % of the working set (default: {', '.join(ANSWERS)}; {', '.join(PUBLIC_TRACES[SESSIONS])} "
        f"for {SESSIONS}; {', '.join(SYNTHETIC_CAPACITIES)} for synthetic traffic)".replace("%", "%%"),
    )
    option("--policies", metavar="LIST", help="policies (default: all online policies and the references)")
    option("--subject", metavar="NAME", default="adaptive", help="the policy with targets (default: adaptive)")
    option(
        "--worlds",
        choices=_worlds.CHOICES,
        help="random worlds to replay (default: all, or none if --traces is given); "
        "held-out worlds are for final results only",
    )
    option(
        "--experts",
        type=int,
        metavar="SEED",
        help="print only what each expert of adaptive costs in a world if it leads from beginning to end",
    )
    option("--jobs", type=int, metavar="N", help="number of processes (default: all cores)")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
