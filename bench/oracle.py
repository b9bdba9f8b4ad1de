"""Benchmark of the Oracle: compared with one argsort and with other solvers; warm, approximate, and on hard instances.

    python bench/oracle.py [--out DIR] [--quick]

Everything runs in one process on one thread, after a first call that compiles or loads the kernels. Times are the
minimum of several runs, ratios are taken within one instance, and the tables show the median and the worst over seeds.
Other solvers get LIMIT seconds each. Prints tables; writes oracle.json and oracle.png to DIR.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _peer_solvers import PEERS
from _results import Row, min_seconds, options_for, print_targets, target, write_result
from tests.support.knapsacks import KnapsackInstance, cache_like, classic

from knapcache.cli.output import print_table
from knapcache.lab.figures import new_figure
from knapcache.oracle import WarmSolver, solve

LIMIT = 5.0
CONTINUOUS, TIES = ("independent", "noisy cost"), ("counts", "cost is size", "tokens")
SEEDS = {10**2: 20, 10**3: 20, 10**4: 15, 10**5: 8, 10**6: 4}
MAX_PEER_N = {"or-tools": 10**4, "highs": 10**4, "textbook": 10**4, "greedy": 10**6}
"""Largest N for each peer. Beyond it OR-Tools and HiGHS take minutes and ignore their time limit."""
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
# Upper limits on time / argsort of N, for continuous values and for ties; lower limits on OR-Tools time / Oracle time.
ARGSORT_TARGETS = {10**4: (6.0, 15.0), 10**5: (2.0, 6.0), 10**6: (1.0, 3.0)}
OR_TOOLS_TARGETS = {10**3: 15.0, 10**4: 300.0}
BETA_TARGET, WARM_TARGET, FIRST_CALL_TARGET, IMPORT_TARGET = 0.5, 10.0, 1.0, 0.5


def make_instance(mode: str, n: int, seed: int) -> KnapsackInstance:
    """Return an instance like those of a cache with answers of some kilobytes."""
    return cache_like(mode, np.random.default_rng([seed, n]), n, median_size=600)


def measure(mode: str, n: int, seed: int) -> Row:
    """Measure one instance: argsort; the Oracle cold, approximate and warm; and the other solvers."""
    values, sizes, capacity = make_instance(mode, n, seed)
    runs = 5 if n >= 10**5 else 9
    densities = values / sizes
    argsort = min_seconds(lambda: np.argsort(densities), runs, time.perf_counter)
    found = solve(values, sizes, capacity)
    cold = min_seconds(lambda: solve(values, sizes, capacity), runs, time.perf_counter)
    beta = min_seconds(lambda: solve(values, sizes, capacity, beta=1e-3), runs, time.perf_counter)
    row: Row = {
        "n": n, "mode": mode, "seed": seed, "argsort": argsort, "solve": cold, "beta": beta, "proven": found.proven,
        "ratio_to_argsort": cold / argsort, "beta_ratio_to_argsort": beta / argsort,
    }  # fmt: skip
    if n >= 10**5:
        row["warm"], row["stayed_warm"] = measure_warm(values, sizes, capacity, runs, seed)
        row["cold_over_warm"] = cold / row["warm"]
    for name, peer in PEERS.items():
        # Slow solvers get the first seeds only; all seeds would take an hour.
        if n <= MAX_PEER_N[name] and (seed < 2 or name == "greedy") and not (name == "highs" and n > 10**3 and seed):
            seconds, value, note = peer(values, sizes, capacity, LIMIT)
            row[name] = seconds if value is not None else None
            row[f"{name}_note"] = note
            row[f"{name}_loss"] = None if value is None else max(0.0, 1.0 - value / found.value)
    return row


def measure_warm(values: Any, sizes: Any, capacity: int, runs: int, seed: int) -> tuple[float, bool]:
    """Return the seconds to solve again after CHANGED values grew, and whether no cold solve was needed."""
    rng = np.random.default_rng([seed, 7])
    warm = WarmSolver(values, sizes, capacity)
    warm.solve()
    current = np.array(values)
    seconds = []
    for _ in range(runs + 2):
        which = rng.choice(len(values), CHANGED, replace=False)
        current[which] *= 1.0 + 1.0 / rng.integers(1, 20, CHANGED)  # one more request on a count of 1 … 19
        start = time.perf_counter()
        warm.change(which, current[which])
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


def start_up_targets() -> list[Row]:
    """Measure import and first call in new processes, minus the start of the interpreter; kernels are on disk."""

    def seconds(program: str) -> float:
        return min_seconds(lambda: subprocess.run([sys.executable, "-c", program], check=True), 5)

    interpreter = seconds("pass")
    first = seconds("from knapcache.oracle import solve; solve([6, 10, 12], [1, 2, 3], 5)") - interpreter
    package = seconds("import knapcache") - interpreter
    return [
        target("first call, kernels on disk", first, at_most=FIRST_CALL_TARGET, unit="s"),
        target("import knapcache", package, at_most=IMPORT_TARGET, unit="s"),
    ]


def check_targets(rows: list[Row]) -> list[Row]:
    """Return all measured targets: medians over seeds and over the modes of a kind."""
    targets = []

    def select(n: int, modes: tuple[str, ...], field: str) -> list[float]:
        return [r[field] for r in rows if r["n"] == n and r["mode"] in modes and r.get(field) is not None]

    for n, pair in ARGSORT_TARGETS.items():
        for kind, modes, limit in zip(("continuous", "ties"), (CONTINUOUS, TIES), pair, strict=True):
            if ratios := select(n, modes, "ratio_to_argsort"):
                targets.append(
                    target(
                        f"N = {n:,}, {kind}, time / argsort",
                        float(np.median(ratios)),
                        at_most=limit,
                        unit="×",
                        worst=max(ratios),
                    )
                )
    if ratios := select(10**6, CONTINUOUS + TIES, "beta_ratio_to_argsort"):
        targets.append(
            target(
                "N = 1,000,000, β = 1e-3, time / argsort",
                float(np.median(ratios)),
                at_most=BETA_TARGET,
                unit="×",
                worst=max(ratios),
            )
        )
    for kind, modes in (("continuous", CONTINUOUS), ("ties", TIES)):
        if ratios := select(10**6, modes, "cold_over_warm"):
            targets.append(
                target(
                    f"N = 1,000,000, {kind}, cold / warm",
                    float(np.median(ratios)),
                    at_least=WARM_TARGET,
                    unit="×",
                    worst=min(ratios),
                )
            )
    for n, limit in OR_TOOLS_TARGETS.items():
        ratios = [r["or-tools"] / r["solve"] for r in rows if r["n"] == n and r.get("or-tools") is not None]
        if ratios:
            cut = sum(bool(r.get("or-tools_note")) for r in rows if r["n"] == n)
            metric = f"N = {n:,}, OR-Tools / Oracle" + (f" ({cut} of {len(ratios)} cut off)" if cut else "")
            targets.append(target(metric, float(np.median(ratios)), at_least=limit, unit="×", worst=min(ratios)))
    return targets


def summary(rows: list[Row]) -> list[Row]:
    """Return the medians by N and mode, in milliseconds."""
    lines = []
    for n in SEEDS:
        for mode in CONTINUOUS + TIES:
            group = [r for r in rows if r["n"] == n and r["mode"] == mode]
            if not group:
                continue

            def median_ms(field: str, group: list[Row] = group) -> float | None:
                numbers = [r[field] for r in group if r.get(field) is not None]
                return 1e3 * float(np.median(numbers)) if numbers else None

            line: Row = {"n": n, "mode": mode, "argsort_ms": median_ms("argsort"), "solve_ms": median_ms("solve")}
            line["worst_ms"] = 1e3 * max(r["solve"] for r in group)
            line |= {"beta_ms": median_ms("beta"), "warm_ms": median_ms("warm")}
            for name in ("or-tools", "highs", "textbook"):
                line[f"{name}_ms"] = median_ms(name)
                line[f"{name}_note"] = next((r[f"{name}_note"] for r in group if r.get(f"{name}_note")), "")
            line["greedy_loss"] = max(
                (r["greedy_loss"] for r in group if r.get("greedy_loss") is not None), default=None
            )
            lines.append(line)
    return lines


def draw(rows: list[Row], path: Path) -> None:
    """Plot time and the ratio to one argsort over N."""
    figure, (left, right) = new_figure(2, width=5.6)
    styles = {
        "solve": ("the Oracle", "#0072B2", "-"), "beta": ("β = 1e-3", "#56B4E9", "-."),
        "warm": ("warm, 10 changed", "#009E73", "-"),
        "argsort": ("np.argsort", "#000000", ":"), "or-tools": ("OR-Tools", "#D55E00", "--"),
        "highs": ("HiGHS", "#E69F00", "--"), "textbook": ("textbook", "#CC79A7", "--"),
    }  # fmt: skip
    for field, (label, colour, dash) in styles.items():
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
            list(ARGSORT_TARGETS),
            [b[k] for b in ARGSORT_TARGETS.values()],
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
    parser = options_for(__doc__, "oracle.json and oracle.png")
    parser.add_argument("--quick", action="store_true", help="one seed, up to 10^5 items")
    args = parser.parse_args()
    sizes = {n: 1 for n in SEEDS if n <= 10**5} if args.quick else SEEDS
    solve(*make_instance("counts", 3000, 0))
    rows = []
    for n, seeds in sizes.items():
        for mode in CONTINUOUS + TIES:
            rows += [measure(mode, n, seed) for seed in range(seeds)]
            print(f"N = {n:,}, {mode}: done", file=sys.stderr)
    hard = [measure_hard(kind) for kind in HARD]
    targets = check_targets(rows) + start_up_targets()
    table = summary(rows)
    print_table(table, title="milliseconds, median over seeds; one thread")
    print_table(hard, title=f"hard classes, work limit of {HARD_WORK:,} states")
    print_targets(targets)
    record = {"numpy": np.__version__, "limit_seconds": LIMIT, "targets": targets, "summary": table, "hard": hard}
    write_result(args.out, "oracle", {**record, "rows": rows})
    if args.out:
        draw(rows, args.out / "oracle.png")


if __name__ == "__main__":
    main()
