"""Benchmark of one cache on many machines.

    python bench/cluster.py [--out DIR] [--parts LIST] [--traces LIST] [--capacities LIST] [--policy NAME] [--jobs N]
                            [--live LIST] [--scale X]
    python bench/cluster.py --markdown FILE [--parts LIST]

Part `designs`: what several proxies that share a cache cost more than one shared cache whose policy sees every request
at once, simulated by design of the sharing (`knapcache simulate cluster --help` explains them) on public traces at four
capacities. It has one target: one decider that learns of hits 1,000 and of paid answers 100 requests late, with a
nursery of 2 % of the capacity, must cost at most 1 % more, as the mean over traces and capacities.

Part `live`: proxies on a real Valkey or Redis server (_cluster_live.py). Its targets:

    hits        a hit from the near cache costs the proxy's process at most 5 µs of CPU time more than one of a proxy
                with a SQLite file; a hit from the engine costs at most 200 µs
    misses      p50 at most 2 ms above that with a SQLite file
    failovers   kill -9 of a primary under the load of OpenAI's SDK at three proxies, under Sentinel and in a cluster of
                3 + 3 with a node timeout of 2 s: no failed request, no wrong answer, never more than the limit, and at
                most 8 s until answers are found and stored again
    takeovers   kill -9 of the owner: another process decides within the lease of 3 s and 1 s more
    fencing     20 owners are stopped, replaced and woken: each is refused
    cuts        50 kills of a primary or of the process that writes to it: all books are consistent
    bursts      100 times the same new request at three proxies at once: one upstream call each
    freeze      the engine is stopped (SIGSTOP): one request waits 250 ms, and the others do not wait

A hit is measured with the load generator of bench/proxy.py. The baseline, a proxy with a SQLite file, runs in the same
rounds, and so does LiteLLM's proxy with its cache in Redis. Of each number of a hit the best round is reported.
At most 12 minutes on two cores; `--parts live --scale 0.1` takes two, without LiteLLM.

Public traces are read from $KNAPCACHE_TRACES, by default ../shared/data; missing ones are reported and skipped.

Prints tables; writes cluster.json and cluster.png to DIR. What does not run keeps its numbers in an existing
cluster.json. The part `designs` holds no times: equal decisions give equal numbers. --markdown prints the tables of
docs/guides/lab.md (designs) and docs/reference/redis-store.md (live) from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from _targets import Row, target
from policies import ANSWERS, parse_names, public_traces

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.sim.grid import check_arguments
from knapcache.sim.sharing.compare import SharingComparison, compare_designs, mean_extra_costs
from knapcache.sim.sharing.designs import SharingSettings, find_live_policy
from knapcache.sim.sharing.report import figure_png
from knapcache.sim.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the scenarios of the tests

LIVE = ("hits", "misses", "failovers", "takeovers", "fencing", "cuts", "bursts", "freeze")
"""The measurements of the part `live`."""
TRACES = ("oasst_zipf_0.6", "oasst_zipf_1.0", "mooncake_conversation", "adaptsize_camp")
PROXIES = (3, 10, 50)
NURSERY = Fraction(2, 100)
RUNS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (1000, 100, ("own", "hashed", "rebalanced", "federated", "decider", "nursery", "nursery-lost", "nursery-redecide")),
    (100, 100, ("federated", "nursery")),
    (250, 25, ("decider", "nursery")),
    (1000, 0, ("decider",)),
    (10_000, 100, ("nursery",)),
)
"""Lateness of hits and of paid answers in requests, and the designs that are simulated with it."""
TARGET_DESIGN, TARGET_HITS_LATE, TARGET_SETTLES_LATE, MAX_EXTRA_PERCENT = "nursery", 1000, 100, 1.0


def measure_designs(args: argparse.Namespace) -> Row:
    """Simulate every design on every trace and return the rows, their means and the targets."""
    names = parse_names(args.traces, TRACES, TRACES)
    capacities = args.capacities.split(",") if args.capacities else list(ANSWERS)
    find_live_policy(args.policy)
    check_arguments([args.policy], capacities, 0, args.jobs)
    traces = dict(public_traces(names))
    if not traces:
        raise InvalidInput("none of the traces exists")
    rows: list[Row] = []
    means: list[Row] = []
    for hits_late, settles_late, designs in RUNS:
        found = simulate(traces, args.policy, capacities, hits_late, settles_late, designs, args.jobs)
        rows += [row for row in found if row["design"] != "shared" or not rows]
        late = {row["design"]: (row["hits_late"], row["settles_late"]) for row in found}
        means += [
            mean | {"hits_late": late[mean["design"]][0], "settles_late": late[mean["design"]][1]}
            for mean in mean_extra_costs(found)
        ]
    return {
        "policy": args.policy,
        "traces": list(traces),
        "capacities": capacities,
        "nursery": float(NURSERY),
        "targets": check_targets(means),
        "means": means,
        "rows": [{name: value for name, value in row.items() if name != "seconds"} for row in rows],
    }


def simulate(
    traces: dict[str, Trace],
    policy: str,
    capacities: Sequence[str],
    hits_late: int,
    settles_late: int,
    designs: Sequence[str],
    jobs: int | None,
) -> list[Row]:
    settings = SharingSettings(hits_late=hits_late, settles_late=settles_late, nursery=NURSERY)
    comparison = SharingComparison(
        policies=[policy], capacities=capacities, proxies=PROXIES, settings=settings, designs=designs
    )
    return compare_designs(traces, comparison, jobs=jobs)


def check_targets(means: Sequence[Row]) -> list[Row]:
    """Return the measured target of the design that the cluster uses."""
    wanted = (TARGET_DESIGN, TARGET_HITS_LATE, TARGET_SETTLES_LATE)
    (mean,) = [m for m in means if (m["design"], m["hits_late"], m["settles_late"]) == wanted]
    metric = (
        f"hits {TARGET_HITS_LATE:,} and settles {TARGET_SETTLES_LATE} late, nursery {float(100 * NURSERY):g} %: "
        f"mean extra cost of {mean['cells']} cells"
    )
    worst = 100.0 * mean["largest_extra_cost"]
    return [target(metric, 100.0 * mean["mean_extra_cost"], at_most=MAX_EXTRA_PERCENT, unit="%", worst=worst)]


LABELS = {
    "own": "every proxy its own cache of 1/n",
    "hashed": "keys hashed to n deciders",
    "rebalanced": "the same, shares follow prices",
    "federated": "federated, {late}",
    "decider": "one decider, {late}, no nursery",
    "nursery": "one decider, {late}, nursery {nursery}",
    "nursery-lost": "the same, displaced answers lost",
    "nursery-redecide": "the same, second answers decided again",
}


def designs_table(part: Row) -> list[Row]:
    """Return one row per design and lateness: mean extra cost by number of proxies, and the largest one of any cell."""
    groups: dict[tuple[str, int | None, int | None], list[Row]] = {}
    for mean in part["means"]:
        groups.setdefault((mean["design"], mean["hits_late"], mean["settles_late"]), []).append(mean)
    table = []
    for (design, hits_late, settles_late), means in groups.items():
        late = "" if hits_late is None else f"hits {hits_late:,} and settles {settles_late:,} late"
        found = {mean["proxies"]: mean["mean_extra_cost"] for mean in means}
        table.append(
            {
                "design": LABELS[design].format(late=late, nursery=f"{100 * part['nursery']:g} %"),
                **{f"n = {n}": f"{100 * found[n if n in found else None]:+.2f} %" for n in PROXIES},
                "largest": f"{100 * max(mean['largest_extra_cost'] for mean in means):+.1f} %",
            }
        )
    return table


def targets_table(part: Row) -> list[Row]:
    return [b | {"measured": f"{b['measured']:.2f} %", "met": "yes" if b["met"] else "no"} for b in part["targets"]]


def print_designs(part: Row) -> None:
    cells = f"{len(part['traces'])} traces × {len(part['capacities'])} capacities"
    title = f"cost above one shared cache with instant statistics, {part['policy']}, mean of {cells}"
    print_table(designs_table(part), title=title)
    print_table(targets_table(part), title="targets")


def designs_markdown(part: Row) -> list[str]:
    rows = designs_table(part)
    text = [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
    text += [f"| {' | '.join(row.values())} |" for row in rows]
    text += ["", "| metric | measured | target | met |", "|---|---|---|---|"]
    text += [f"| {b['metric']} | {b['measured']} | {b['target']} | {b['met']} |" for b in targets_table(part)]
    return text


def draw_designs(part: Row, out: Path) -> None:
    """Plot the designs at the lateness of the target."""
    wanted = (None, TARGET_HITS_LATE)
    shown = [r for r in part["rows"] if r["hits_late"] in wanted and r["settles_late"] in (None, TARGET_SETTLES_LATE)]
    title = f"{len(part['traces'])} traces at {', '.join(part['capacities'])} of the working set"
    (out / "cluster.png").write_bytes(figure_png(shown, title))


def measure_live(args: argparse.Namespace) -> Row:
    """Measure proxies on a real engine."""
    import _cluster_live  # needs the packages of the tests; the part `designs` does not

    names = parse_names(args.live, list(LIVE), list(LIVE))
    return _cluster_live.measure(args.scale, names, peers=args.scale >= 1)


def merged_live(earlier: Row, part: Row) -> Row:
    """Return a part with the measurements of an earlier run at the same scale that were not made again."""
    import _cluster_live

    kept = earlier if earlier.get("scale") == part["scale"] else {}
    record = {**kept, **part}
    return {**record, "targets": _cluster_live.check_targets(record)}


def print_live(part: Row) -> None:
    import _cluster_live

    _cluster_live.show(part)


def live_markdown(part: Row) -> list[str]:
    import _cluster_live

    return _cluster_live.markdown(part)


@dataclass(frozen=True)
class BenchmarkPart:
    """One part: how it is measured, and how its result is shown."""

    measure: Callable[[argparse.Namespace], Row]
    show: Callable[[Row], None]
    markdown: Callable[[Row], list[str]]
    draw: Callable[[Row, Path], None] = lambda _part, _out: None
    """Writes a figure to a directory."""


PARTS = {
    "designs": BenchmarkPart(measure_designs, print_designs, designs_markdown, draw_designs),
    "live": BenchmarkPart(measure_live, print_live, live_markdown),
}


def run(args: argparse.Namespace) -> None:
    parts = parse_names(args.parts, list(PARTS), list(PARTS))
    file = args.out / "cluster.json" if args.out else None
    record: Row = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    record |= {"name": "cluster", "python": platform.python_version(), "numpy": np.__version__}
    record["machine"] = platform.machine()
    for part in parts:
        found = PARTS[part].measure(args)
        record[part] = merged_live(record.get(part, {}), found) if part == "live" else found
        PARTS[part].show(record[part])
    if file:
        args.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for part in parts:
            PARTS[part].draw(record[part], args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--out", type=Path, metavar="DIR", help="directory for cluster.json and cluster.png")
    option("--parts", metavar="LIST", help=f"parts, of {', '.join(PARTS)} (default: all)")
    option("--traces", metavar="LIST", help=f"traces, of {', '.join(TRACES)} (default: all)")
    option(
        "--capacities",
        metavar="LIST",
        help=f"capacities, in units or % of the working set (default: {', '.join(ANSWERS)})".replace("%", "%%"),
    )
    option("--policy", metavar="NAME", default="adaptive", help="policy that decides (default: adaptive)")
    option("--jobs", type=int, metavar="N", help="number of processes (default: all cores)")
    option("--live", metavar="LIST", help=f"measurements of the part live, of {', '.join(LIVE)} (default: all)")
    option("--scale", type=float, default=1.0, metavar="X", help="multiplies the counts of the part live (default: 1)")
    option("--markdown", type=Path, metavar="FILE", help="print the tables of the documentation from a cluster.json")
    args = parser.parse_args()
    if args.markdown:
        record = json.loads(args.markdown.read_text(encoding="utf-8"))
        names = [name for name in parse_names(args.parts, list(PARTS), list(PARTS)) if name in record]
        print("\n\n".join("\n".join(PARTS[name].markdown(record[name])) for name in names))
        return
    try:
        run(args)
    except InvalidInput as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
