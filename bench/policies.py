"""How good policies are: what every online policy pays on open traces and on drawn traffic, beside yardsticks.

    python bench/policies.py [--out DIR] [--traces LIST] [--capacities LIST] [--policies LIST] [--jobs N]
    python bench/policies.py --markdown FILE

The cost ratio is what misses cost over what everything would have cost without a cache. A *cell* is a trace and a
capacity, as a share of the working set. Yardsticks that see the future: the best fixed set (`static`), Belady's rule
(`belady`), and the PFOO-L bound (`pfoo`), which no cache can beat. The share of the gap that a policy closes is

    (lru − policy) / (lru − pfoo)        of several cells: sums above and below, since in some there is hardly a gap

Open traces are looked for in KNAPCACHE_TRACES, by default ../shared/data, and left out with a word where they are not.
Drawn traffic (sim/traffic.py) guards against a policy made for four files. One policy, the --subject, is held to bars.

Prints tables; writes policies.json and policies.png into DIR. It holds no times: equal decisions give an equal file.
--markdown prints the tables of docs/background/policies.md from such a file, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _targets import Row, bar

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.sim import traffic
from knapcache.sim.figures import new_figure, style
from knapcache.sim.grid import check_arguments, replay_grid
from knapcache.sim.trace import Trace
from knapcache.sim.traces import read_trace
from knapcache_experiments.measured import traces_directory

OPEN = ("oasst_zipf_0.6", "oasst_zipf_1.0", "mooncake_conversation", "adaptsize_camp")
SHARES = {"open": ("1%", "5%", "10%", "30%"), "drawn": ("0.1%", "1%", "10%", "50%")}
ONLINE = [name for name, spec in registry.SPECS.items() if spec.online]
YARDSTICKS = ["static", "belady", "pfoo"]
# Up to a minute each in small caches of drawn traffic, with its tens of thousands of keys. --policies runs them too.
NOT_FOR_MANY_KEYS = {"vsocb", "vsocb-lazy", "vsocb-apx"}
TO_BEST_BAR = 1.02
MEAN_BARS = {"gdsf-cost": 0.95, "lru": 0.88}
LLM_BAR = ("10%", 0.925)
Ratios = dict[str, dict[str, dict[str, float]]]
"""Cost ratios by trace, capacity and policy."""


def open_traces(names: Iterable[str]) -> Iterator[tuple[str, Trace]]:
    """Those that are at hand."""
    for name in names:
        path = traces_directory() / f"{name}.csv.gz"
        if path.exists():
            yield name, read_trace(path)
        else:
            print(f"{name}: left out, no {path}; KNAPCACHE_TRACES can name another directory", file=sys.stderr)


def measure(
    traces: Iterable[tuple[str, Trace]], policies: Sequence[str], capacities: Sequence[str], jobs: int | None
) -> Ratios:
    """Every policy on every trace at every capacity."""
    ratios: Ratios = {}
    for name, trace in traces:
        rows = iter(replay_grid(trace, policies, capacities, jobs=jobs))
        ratios[name] = {capacity: {p: next(rows)["cost_ratio"] for p in policies} for capacity in capacities}
        print(f"{name}: done", file=sys.stderr)
    return ratios


def cells(ratios: Ratios, subject: str) -> list[Row]:
    """The subject of each cell beside the best of the others, and the yardsticks."""
    lines = []
    for trace, by_capacity in ratios.items():
        for capacity, paid in by_capacity.items():
            best = min((p for p in paid if p in ONLINE and p != subject), key=paid.__getitem__, default=None)
            line: Row = {"trace": trace, "capacity": capacity, "subject": paid.get(subject)}
            line |= {"best_other": best and paid[best], "best_other_name": best}
            line |= {name: paid[name] for name in ("gdsf-cost", "lru", *YARDSTICKS) if name in paid}
            if best and subject in paid:
                line["ratio_to_best_other"] = paid[subject] / paid[best]
            if {subject, "lru", "pfoo"} <= set(paid) and paid["lru"] > paid["pfoo"]:
                line["gap_closed"] = (paid["lru"] - paid[subject]) / (paid["lru"] - paid["pfoo"])
            lines.append(line)
    return lines


def bars(lines: list[Row]) -> list[Row]:
    """What must hold on the open traces, as far as it was measured."""
    found = []
    if with_best := [c for c in lines if "ratio_to_best_other" in c]:
        worst = max(with_best, key=lambda c: c["ratio_to_best_other"])
        what = f"worst of {len(with_best)} cells, cost / best other policy"
        found.append(bar(what, worst["ratio_to_best_other"], TO_BEST_BAR, "×", most=True))
    for other, wanted in MEAN_BARS.items():
        if to_other := [c["subject"] / c[other] for c in lines if c["subject"] is not None and other in c]:
            what = f"mean of {len(to_other)} cells, cost / {other}"
            found.append(bar(what, float(np.mean(to_other)), wanted, "×", most=True, worst=max(to_other)))
    for c in lines:
        if (
            c["trace"].startswith("oasst")
            and c["capacity"] == LLM_BAR[0]
            and c["subject"] is not None
            and "gdsf-cost" in c
        ):
            what = f"{c['trace']} at {c['capacity']}, cost / gdsf-cost"
            found.append(bar(what, c["subject"] / c["gdsf-cost"], LLM_BAR[1], "×", most=True))
    return found


def gap_closed(lines: list[Row]) -> float | None:
    """The share of the gap between LRU and the bound that the subject closes, of all cells together."""
    gaps = [(c["lru"] - c["subject"], c["lru"] - c["pfoo"]) for c in lines if "gap_closed" in c]
    return sum(closed for closed, _ in gaps) / sum(gap for _, gap in gaps) if gaps else None


def table_of(by_capacity: dict[str, dict[str, float]]) -> list[Row]:
    """A line a policy: online ones from best to worst on average, then yardsticks."""
    paid = list(by_capacity.values())
    names = sorted(paid[0], key=lambda p: (p not in ONLINE, sum(cell[p] for cell in paid)))
    return [{"policy": p, **{capacity: cell[p] for capacity, cell in by_capacity.items()}} for p in names]


def markdown(record: Row) -> str:
    """The tables of docs/background/policies.md."""

    def number(x: float | None) -> str:
        return "–" if x is None else f"{x:.3f}"

    subject = f"`{record['subject']}`"
    text = [
        f"| trace | cache | {subject} | best other | `gdsf-cost` | `lru` | `pfoo` |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in record["cells"]:
        best = f"{number(c['best_other'])} (`{c['best_other_name']}`)"
        paid = " | ".join(number(c.get(name)) for name in ("gdsf-cost", "lru", "pfoo"))
        text.append(f"| {c['trace']} | {c['capacity']} | {number(c['subject'])} | {best} | {paid} |")
    text += ["", "| metric | measured | target | met |", "|---|---|---|---|"]
    for b in record["targets"]:
        text.append(f"| {b['metric']} | {number(b['measured'])} | {b['target']} | {'yes' if b['met'] else 'no'} |")
    shares = list(dict.fromkeys(c["capacity"] for c in record["traffic"]))
    text += ["", f"| traffic | {' | '.join(shares)} |", "|---" * (len(shares) + 1) + "|"]
    for kind in dict.fromkeys(c["trace"] for c in record["traffic"]):
        to_best = [number(c.get("ratio_to_best_other")) for c in record["traffic"] if c["trace"] == kind]
        text.append(f"| {kind} | {' | '.join(to_best)} |")
    return "\n".join(text)


def draw(ratios: Ratios, subject: str, path: Path) -> None:
    """Cost ratio against capacity, a panel a trace. The best of the rest is another policy in each cell: the ticks say
    which.
    """
    columns = min(2, len(ratios))
    figure, panels = new_figure(columns, rows=-(-len(ratios) // columns), width=5.4, height=4.2)
    for axes in panels[len(ratios) :]:
        axes.remove()
    for axes, (trace, by_capacity) in zip(panels, ratios.items(), strict=False):
        x = [float(capacity.rstrip("%")) for capacity in by_capacity]
        paid = list(by_capacity.values())
        rest = [[p for p in cell if p in ONLINE and p not in (subject, "gdsf-cost", "lru")] for cell in paid]
        best = [min(names, key=cell.__getitem__) if names else None for names, cell in zip(rest, paid, strict=True)]
        looks: dict[str, dict[str, Any]] = {
            "lru": {"marker": "o"}, "gdsf-cost": {"marker": "o"}, "static": {"marker": "s"},
            subject: {"marker": "o", "linewidth": 3.0, "color": "#0072B2", "linestyle": "-", "zorder": 3},
        }  # fmt: skip
        for name, look in looks.items():
            if name in paid[0]:
                label = "static: best fixed set" if name == "static" else name
                axes.plot(x, [cell[name] for cell in paid], label=label, **{"markersize": 4} | style(name) | look)
        if all(best):
            y = [cell[p] for p, cell in zip(best, paid, strict=True) if p]
            axes.plot(x, y, label="best of the rest", color="#D55E00", marker="D", markersize=4, linewidth=1, zorder=4)
        if "pfoo" in paid[0]:
            y = [cell["pfoo"] for cell in paid]
            axes.plot(x, y, label="PFOO-L: no cache pays less", color="#000000", linestyle="--")
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = [f"{capacity}\n{p or ''}" for capacity, p in zip(by_capacity, best, strict=True)]
        axes.set_xticks(x, ticks, rotation=35, ha="right", rotation_mode="anchor", fontsize=8.5)
        axes.set_xlabel("capacity, of the working set; best of the rest there")
        axes.set_ylabel("cost ratio")
        axes.set_title(trace)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=140)


def show(open_ratios: Ratios, record: Row) -> None:
    """Tables for people."""
    for name, by_capacity in open_ratios.items():
        print_table(table_of(by_capacity), title=f"{name}: cost ratio by capacity")
    named = [
        {record["subject"] if field == "subject" else field: value for field, value in cell.items()}
        for cell in (*record["cells"], *record["traffic"])
    ]
    for title, lines in (("open traces", named[: len(record["cells"])]), ("traffic", named[len(record["cells"]) :])):
        if lines:
            print_table(lines, title=f"{title}: cost ratio")
    if record["targets"]:
        print_table([b | {"met": "yes" if b["met"] else "no"} for b in record["targets"]], title="targets")
    for what, share in (("open traces", record["gap_closed"]), ("traffic", record["traffic_gap_closed"])):
        if share is not None:
            print(f"{what}: {record['subject']} closes {100 * share:.1f} % of the gap between lru and PFOO-L")


def chosen(text: str | None, allowed: Sequence[str], default: Sequence[str]) -> list[str]:
    """A list of names from the command line."""
    names = text.split(",") if text else list(default)
    for name in names:
        if name not in allowed:
            raise InvalidInput(f"{name!r} is not one of {', '.join(allowed)}")
    return names


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    names = chosen(args.traces, (*OPEN, *traffic.KINDS), (*OPEN, *traffic.KINDS))
    policies = chosen(args.policies, [*ONLINE, *YARDSTICKS], [*ONLINE, *YARDSTICKS])
    fewer = policies if args.policies else [p for p in policies if p not in NOT_FOR_MANY_KEYS]
    shares = {kind: args.capacities.split(",") if args.capacities else given for kind, given in SHARES.items()}
    for given in shares.values():
        if not all(capacity.relative for capacity in check_arguments(policies, given, 0, args.jobs)):
            raise InvalidInput(f"capacities must be shares of the working set, such as 10%, not {args.capacities}")
    if args.subject not in policies:
        print(f"{args.subject} is not among the policies: nothing to hold to the bars", file=sys.stderr)
    ratios = measure(open_traces(n for n in names if n in OPEN), policies, shares["open"], args.jobs)
    drawn = ((n, traffic.draw(n)) for n in names if n in traffic.KINDS)
    traffic_ratios = measure(drawn, fewer, shares["drawn"], args.jobs)
    lines, guard = cells(ratios, args.subject), cells(traffic_ratios, args.subject)
    record = {
        "name": "policies", "python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine(),
        "subject": args.subject, "targets": bars(lines), "gap_closed": gap_closed(lines),
        "traffic_gap_closed": gap_closed(guard), "cells": lines, "traffic": guard,
        "ratios": ratios, "traffic_ratios": traffic_ratios,
    }  # fmt: skip
    show(ratios, record)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "policies.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if ratios:
            draw(ratios, args.subject, args.out / "policies.png")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--out", type=Path, metavar="DIR", help="write policies.json and policies.png here")
    option("--traces", metavar="LIST", help=f"of {', '.join((*OPEN, *traffic.KINDS))} (default: all)")
    option("--capacities", metavar="LIST", help=f"default: {SHARES['open']}, and {SHARES['drawn']} for traffic")
    option("--policies", metavar="LIST", help="default: all online ones and the yardsticks")
    option("--subject", metavar="NAME", default="adaptive", help="the policy with bars (default: adaptive)")
    option("--jobs", type=int, metavar="N", help="processes to run on (default: all cores)")
    option("--markdown", type=Path, metavar="FILE", help="print the tables of the docs from a policies.json")
    args = parser.parse_args()
    if args.markdown:
        print(markdown(json.loads(args.markdown.read_text(encoding="utf-8"))))
        return
    try:
        run(args)
    except InvalidInput as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
