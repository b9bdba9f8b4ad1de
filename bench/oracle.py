"""How fast the Oracle is: against one argsort of as many numbers, against other solvers, warm, approximate, and on hard
instances.

    python bench/oracle.py [--out DIR] [--quick]

Everything is measured in one process on one thread, after a first call that compiles or loads. Times are the least of
some runs, ratios are taken within one instance, and what is shown is the median and the worst over seeds. Peers get
LIMIT seconds each. Prints tables; writes oracle.json and oracle.png into DIR.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _peer_solvers import PEERS
from _targets import Row, bar

from knapcache.cli.output import print_table
from knapcache.oracle import WarmSolver, solve
from knapcache.sim.figures import new_figure
from knapcache.testing.knapsacks import KnapsackInstance, cache_like, classic

LIMIT = 5.0
CONTINUOUS, TIES = ("independent", "noisy cost"), ("counts", "cost is size", "tokens")
SEEDS = {10**2: 20, 10**3: 20, 10**4: 15, 10**5: 8, 10**6: 4}
# The largest N at which a peer is still asked; beyond, OR-Tools and HiGHS take minutes that no limit stops.
LARGEST = {"or-tools": 10**4, "highs": 10**4, "textbook": 10**4, "greedy": 10**6}
HARD = (
    "strongly",
    "inverse_strongly",
    "almost_strongly",
    "multiple_strongly",
    "profit_ceiling",
    "circle",
    "subset_sum",
)
HARD_N, HARD_R, HARD_WORK = 10**4, 10**6, 10**7
CHANGED = 10
# At most so many times one argsort of N, for continuous values and for ties; and at least so many times OR-Tools.
ARGSORT_BARS = {10**4: (6.0, 15.0), 10**5: (2.0, 6.0), 10**6: (1.0, 3.0)}
OR_TOOLS_BARS = {10**3: 15.0, 10**4: 300.0}
BETA_BAR, WARM_BAR, FIRST_CALL_BAR, IMPORT_BAR = 0.5, 10.0, 1.0, 0.5


def best(call: Callable[[], object], runs: int) -> float:
    """The least seconds of some runs."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def instance_of(mode: str, n: int, seed: int) -> KnapsackInstance:
    """What a cache sees, with answers of some kilobytes."""
    return cache_like(mode, np.random.default_rng([seed, n]), n, median_size=600)


def measure(mode: str, n: int, seed: int) -> Row:
    """One instance: an argsort, the Oracle cold, approximate and warm, and what each peer makes of it."""
    values, sizes, capacity = instance_of(mode, n, seed)
    runs = 5 if n >= 10**5 else 9
    densities = values / sizes
    argsort = best(lambda: np.argsort(densities), runs)
    found = solve(values, sizes, capacity)
    cold = best(lambda: solve(values, sizes, capacity), runs)
    beta = best(lambda: solve(values, sizes, capacity, beta=1e-3), runs)
    row: Row = {
        "n": n, "mode": mode, "seed": seed, "argsort": argsort, "solve": cold, "beta": beta, "proven": found.proven,
        "ratio_to_argsort": cold / argsort, "beta_ratio_to_argsort": beta / argsort,
    }  # fmt: skip
    if n >= 10**5:
        row["warm"], row["stayed_warm"] = measure_warm(values, sizes, capacity, runs, seed)
        row["cold_over_warm"] = cold / row["warm"]
    for name, peer in PEERS.items():
        # Slow peers see the first seeds only, or the whole would take an hour.
        if n <= LARGEST[name] and (seed < 2 or name == "greedy") and not (name == "highs" and n > 10**3 and seed):
            seconds, value, note = peer(values, sizes, capacity, LIMIT)
            row[name] = seconds if value is not None else None
            row[f"{name}_note"] = note
            row[f"{name}_loss"] = None if value is None else max(0.0, 1.0 - value / found.value)
    return row


def measure_warm(values: Any, sizes: Any, capacity: int, runs: int, seed: int) -> tuple[float, bool]:
    """Seconds to solve again after CHANGED requests: each adds one to a count, so a value grows by a part of itself."""
    rng = np.random.default_rng([seed, 7])
    warm = WarmSolver(values, sizes, capacity)
    warm.solve()
    now = np.array(values)
    seconds = []
    for _ in range(runs + 2):
        which = rng.choice(len(values), CHANGED, replace=False)
        now[which] *= 1.0 + 1.0 / rng.integers(1, 20, CHANGED)
        start = time.perf_counter()
        warm.change(which, now[which])
        warm.solve()
        seconds.append(time.perf_counter() - start)
    warm.check()
    return min(seconds), warm.cold_solves == 1


def measure_hard(kind: str) -> Row:
    """A class of hard instances, under a work limit."""
    rows = []
    for seed in range(3):
        instance = classic(kind, np.random.default_rng(seed), HARD_N, HARD_R)
        start = time.perf_counter()
        found = solve(*instance, work_limit=HARD_WORK)
        rows.append((time.perf_counter() - start, found.gap / found.value, found.proven))
    return {
        "class": kind, "n": HARD_N, "R": HARD_R, "worst_seconds": max(r[0] for r in rows),
        "worst_gap": max(r[1] for r in rows), "proven": f"{sum(r[2] for r in rows)} of {len(rows)}",
    }  # fmt: skip


def start_up() -> list[Row]:
    """Seconds from the start of a process, less those of an interpreter that does nothing; kernels are on disk."""

    def seconds(program: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", program], check=True), 5)

    nothing = seconds("pass")
    first = seconds("from knapcache.oracle import solve; solve([6, 10, 12], [1, 2, 3], 5)") - nothing
    package = seconds("import knapcache") - nothing
    return [
        bar("first call, kernels on disk", first, FIRST_CALL_BAR, "s", most=True),
        bar("import knapcache", package, IMPORT_BAR, "s", most=True),
    ]


def bars(rows: list[Row]) -> list[Row]:
    """Every bar that was measured, by medians over seeds and modes of a kind."""
    lines = []

    def of(n: int, modes: tuple[str, ...], field: str) -> list[float]:
        return [r[field] for r in rows if r["n"] == n and r["mode"] in modes and r.get(field) is not None]

    for n, pair in ARGSORT_BARS.items():
        for kind, modes, wanted in zip(("continuous", "ties"), (CONTINUOUS, TIES), pair, strict=True):
            if ratios := of(n, modes, "ratio_to_argsort"):
                lines.append(
                    bar(
                        f"N = {n:,}, {kind}, time / argsort",
                        float(np.median(ratios)),
                        wanted,
                        "×",
                        most=True,
                        worst=max(ratios),
                    )
                )
    if ratios := of(10**6, CONTINUOUS + TIES, "beta_ratio_to_argsort"):
        lines.append(
            bar(
                "N = 1,000,000, β = 1e-3, time / argsort",
                float(np.median(ratios)),
                BETA_BAR,
                "×",
                most=True,
                worst=max(ratios),
            )
        )
    for kind, modes in (("continuous", CONTINUOUS), ("ties", TIES)):
        if ratios := of(10**6, modes, "cold_over_warm"):
            lines.append(
                bar(
                    f"N = 1,000,000, {kind}, cold / warm",
                    float(np.median(ratios)),
                    WARM_BAR,
                    "×",
                    most=False,
                    worst=min(ratios),
                )
            )
    for n, wanted in OR_TOOLS_BARS.items():
        ratios = [r["or-tools"] / r["solve"] for r in rows if r["n"] == n and r.get("or-tools") is not None]
        if ratios:
            cut = sum(bool(r.get("or-tools_note")) for r in rows if r["n"] == n)
            what = f"N = {n:,}, OR-Tools / Oracle" + (f" ({cut} of {len(ratios)} cut off)" if cut else "")
            lines.append(bar(what, float(np.median(ratios)), wanted, "×", most=False, worst=min(ratios)))
    return lines


def summary(rows: list[Row]) -> list[Row]:
    """Medians by N and mode, in milliseconds."""
    lines = []
    for n in SEEDS:
        for mode in CONTINUOUS + TIES:
            group = [r for r in rows if r["n"] == n and r["mode"] == mode]
            if not group:
                continue

            def middle(field: str, group: list[Row] = group) -> float | None:
                numbers = [r[field] for r in group if r.get(field) is not None]
                return 1e3 * float(np.median(numbers)) if numbers else None

            line: Row = {"n": n, "mode": mode, "argsort_ms": middle("argsort"), "solve_ms": middle("solve")}
            line["worst_ms"] = 1e3 * max(r["solve"] for r in group)
            line |= {"beta_ms": middle("beta"), "warm_ms": middle("warm")}
            for name in ("or-tools", "highs", "textbook"):
                line[f"{name}_ms"] = middle(name)
                line[f"{name}_note"] = next((r[f"{name}_note"] for r in group if r.get(f"{name}_note")), "")
            line["greedy_loss"] = max(
                (r["greedy_loss"] for r in group if r.get("greedy_loss") is not None), default=None
            )
            lines.append(line)
    return lines


def draw(rows: list[Row], path: Path) -> None:
    """Time against N, and the ratio to one argsort."""
    figure, (left, right) = new_figure(2, width=5.6)
    looks = {
        "solve": ("the Oracle", "#0072B2", "-"), "beta": ("β = 1e-3", "#56B4E9", "-."),
        "warm": ("warm, 10 changed", "#009E73", "-"),
        "argsort": ("np.argsort", "#000000", ":"), "or-tools": ("OR-Tools", "#D55E00", "--"),
        "highs": ("HiGHS", "#E69F00", "--"), "textbook": ("textbook", "#CC79A7", "--"),
    }  # fmt: skip
    for field, (label, colour, dash) in looks.items():
        points = [(n, [r[field] for r in rows if r["n"] == n and r.get(field) is not None]) for n in SEEDS]
        points = [(n, numbers) for n, numbers in points if numbers]
        left.plot(
            [n for n, _ in points], [np.median(numbers) for _, numbers in points],
            color=colour, linestyle=dash, marker="o", markersize=4, label=label,
        )  # fmt: skip
    left.set_ylabel("seconds (median over modes and seeds)")
    for k, (kind, modes, colour) in enumerate((("continuous", CONTINUOUS, "#0072B2"), ("ties", TIES, "#D55E00"))):
        points = [
            (n, [r["ratio_to_argsort"] for r in rows if r["n"] == n and r["mode"] in modes])
            for n in SEEDS
            if n >= 10**3
        ]
        points = [(n, numbers) for n, numbers in points if numbers]
        x = [n for n, _ in points]
        right.plot(x, [np.median(numbers) for _, numbers in points], color=colour, marker="o", markersize=4, label=kind)
        right.fill_between(
            x, [min(numbers) for _, numbers in points], [max(numbers) for _, numbers in points],
            color=colour, alpha=0.15, linewidth=0,
        )  # fmt: skip
        right.plot(
            list(ARGSORT_BARS),
            [b[k] for b in ARGSORT_BARS.values()],
            color=colour,
            linestyle=":",
            label=f"target, {kind}",
        )
    right.axhline(1.0, color="#999999", linewidth=1)
    right.set_ylabel("time of the Oracle / time of np.argsort")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("N")
        axes.legend()
    figure.savefig(path, dpi=140)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write oracle.json and oracle.png here")
    parser.add_argument("--quick", action="store_true", help="one seed, up to 10^5 items")
    args = parser.parse_args()
    sizes = {n: 1 for n in SEEDS if n <= 10**5} if args.quick else SEEDS
    solve(*instance_of("counts", 3000, 0))
    rows = []
    for n, seeds in sizes.items():
        for mode in CONTINUOUS + TIES:
            rows += [measure(mode, n, seed) for seed in range(seeds)]
            print(f"N = {n:,}, {mode}: done", file=sys.stderr)
    hard = [measure_hard(kind) for kind in HARD]
    lines = bars(rows) + start_up()
    table = summary(rows)
    print_table(table, title="milliseconds, median over seeds; one thread")
    print_table(hard, title=f"hard classes, work limit of {HARD_WORK:,} states")
    print_table(lines, title="targets")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {
            "name": "oracle", "python": platform.python_version(), "numpy": np.__version__,
            "machine": platform.machine(), "limit_seconds": LIMIT, "targets": lines, "summary": table, "hard": hard,
            "rows": rows,
        }  # fmt: skip
        (args.out / "oracle.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        draw(rows, args.out / "oracle.png")


if __name__ == "__main__":
    main()
