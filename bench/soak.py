"""Does the proxy stay as it is under traffic that never ends?

    python bench/soak.py [--minutes 10] [--clients 200] [--out DIR]

200 clients without a pause, half of them with streams; one request in ten is left in the middle (_soak_clients.py). Prompts by
Zipf's law over more than there is room for, and some that never come again: there are hits, misses and evictions at any
time. The upstream gives back the nonce of each prompt: an answer that goes to the wrong client is seen.

In the first third of the time nine of ten prompts are new: the cache's table of known keys, 131,072 of them, fills.

Every few seconds: memory, open descriptors, tasks of the event loop, requests a second. After the first third, which
is for filling up, a curve must be flat:

    growth = slope · time / median,   slope the median of the slopes between all pairs of points (Theil and Sen)

at most 5 %. That one holds against outliers: the peak of a collection, a second in which the machine did other things.

How many descriptors and tasks there are swings with the load, by half or more. Of these the lower end of Sen's interval
for the slope is judged, three standard deviations of Kendall's statistic below the median, which `worst` tells; and, as
a slow leak could hide in that, what is left of them when all clients have gone. Memory has no such swings, and no such
excuse. Runs of less than two minutes show their curves and do not judge them.

Prints a table; writes soak.json and soak.png into DIR. Exit code 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from _server_processes import BEHIND, HERE, KEY, LOAD, Server, bare, knapcache, pinned
from _targets import Row, bar

from knapcache.cli.output import print_table
from knapcache.sim.figures import new_figure
from knapcache.threads import MAX_THREADS

PROMPTS = 4000
CAPACITY = "4MB"
DELAY, PACE = 0.01, 0.001
CURVES = {"resident_mib": "resident memory, MiB", "descriptors": "open descriptors", "tasks": "tasks of the event loop"}
SHORT = 2.0
"""Minutes."""
LINGER = 90.0
"""Seconds until what is left is counted: connections to the upstream are kept for a minute."""
SPARE = 2 * (MAX_THREADS + 2)
"""Descriptors that may be left: every thread that reads the store opens its two files when it first does, and keeps
them: those that read for coroutines, that of the Oracle, and one of those that serve the admin API."""


def tasks(server: Server) -> int:
    """Of the event loop, as the metrics tell."""
    line = next(line for line in server.ask("/metrics").decode().splitlines() if line.startswith("knapcache_tasks "))
    return int(float(line.split()[1]))


def sample(server: Server, told: dict[str, Any], seconds: float) -> Row:
    """What there is now."""
    counts = {name: told[name] for name in ("answered", "hits", "disconnected", "misdelivered", "failed", "timed_out")}
    seen = {"resident_mib": server.resident / 2**20, "descriptors": server.descriptors, "tasks": tasks(server)}
    return {"seconds": seconds, **seen, **counts}


def soak(folder: Path, minutes: float, clients: int, prompts: int) -> tuple[list[Row], dict[str, Any]]:
    """The curves, and the last count, with what is left when all clients have gone."""
    every = max(0.5, min(5.0, minutes * 60 / 40))
    with (
        bare("paced", folder, DELAY, PACE, core=BEHIND) as upstream,
        knapcache(folder, upstream.port, "--capacity", CAPACITY) as server,
    ):
        tasks(server)  # a first look opens what looking needs
        rest, busy = server.descriptors, tasks(server)
        what = {
            "port": server.port, "clients": clients, "seconds": minutes * 60, "every": every, "prompts": prompts,
            "headers": {"authorization": f"Bearer {KEY}"},
        }  # fmt: skip
        words = [sys.executable, str(HERE / "_soak_clients.py")]
        began = time.monotonic()
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pinned(LOAD)
        ) as crowd:
            assert crowd.stdin is not None
            assert crowd.stdout is not None
            crowd.stdin.write(json.dumps(what))
            crowd.stdin.close()
            curve: list[Row] = []
            told: dict[str, Any] = {}
            for line in crowd.stdout:
                told = json.loads(line)
                curve.append(sample(server, told, time.monotonic() - began))
        if crowd.returncode:
            raise RuntimeError("the crowd has failed")
        end = time.monotonic() + (LINGER if minutes >= SHORT else 0.0)
        while True:
            told["descriptors_leaked"] = max(0, server.descriptors - rest - SPARE)
            told["tasks_leaked"] = max(0, tasks(server) - busy)
            if not (told["descriptors_leaked"] or told["tasks_leaked"]) or time.monotonic() > end:
                break
            time.sleep(0.5)
    curve = [row for row in curve if row["seconds"] < minutes * 60]  # later they begin to go
    for before, row in zip([{"seconds": 0.0, "answered": 0}, *curve], curve, strict=False):
        row["answers_per_second"] = (row["answered"] - before["answered"]) / (row["seconds"] - before["seconds"])
    return curve, told


def growth(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Percent, from the first of these points to the last: at least, and by the median (Theil and Sen).

    Of N slopes between n points the lower bound is the one of rank (N − 3 √(n (n − 1) (2 n + 5) / 18)) / 2.
    """
    n = len(points)
    slopes = sorted((b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2))
    rank = max(0, int((len(slopes) - 3.0 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5) / 2))
    whole = 100.0 * (points[-1][0] - points[0][0]) / median(value for _, value in points)
    return whole * slopes[rank], whole * median(slopes)


def bars(curve: list[Row], told: dict[str, Any], *, judged: bool) -> list[Row]:
    """What must hold."""
    lines = [bar(what, told[name], 0, "", most=True) for name, what in (
        ("misdelivered", "answers delivered to the wrong client"), ("failed", "failed requests"),
        ("timed_out", "requests without an answer for 60 s"),
    )]  # fmt: skip
    if judged:
        lines += [
            bar(f"{name} above the start after all clients left", told[f"{name}_leaked"], 0, "", most=True)
            for name in ("descriptors", "tasks")
        ]
        late = [row for row in curve if row["seconds"] >= curve[-1]["seconds"] / 3]
        for name, what in CURVES.items():
            sure, grown = growth([(row["seconds"], row[name]) for row in late])
            judged_by = grown if name == "resident_mib" else sure
            lines.append(bar(f"growth in the last two thirds: {what}", judged_by, 5, "%", most=True, worst=grown))
    return lines


def draw(curve: list[Row], path: Path) -> None:
    """The curves."""
    figure, axes = new_figure(2, rows=2, width=5.0, height=2.4)
    for axis, (name, what) in zip(axes, [*CURVES.items(), ("answers_per_second", "answers a second")], strict=True):
        axis.plot([row["seconds"] / 60 for row in curve], [row[name] for row in curve], color="#0072B2")
        axis.set_ylim(bottom=0)
        axis.set_title(what)
        axis.set_xlabel("minutes")
    figure.savefig(path, dpi=140)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write soak.json and soak.png here")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="more take longer until all is full")
    parser.add_argument("--quick", action="store_true", help="a quarter of a minute, 20 clients")
    args = parser.parse_args()
    if args.quick:
        args.minutes, args.clients = 0.25, 20
    with tempfile.TemporaryDirectory() as place:
        curve, told = soak(Path(place), args.minutes, args.clients, args.prompts)
    lines = bars(curve, told, judged=args.minutes >= SHORT)
    print_table(curve[:: max(1, len(curve) // 12)], title=f"{args.clients} clients")
    for trouble in told["troubles"]:
        print(trouble)
    print_table(lines, title="targets")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {
            "name": "soak", "python": platform.python_version(), "machine": platform.machine(), "minutes": args.minutes,
            "clients": args.clients, "targets": lines, "answered": told["answered"], "hits": told["hits"],
            "disconnected": told["disconnected"], "misdelivered": told["misdelivered"], "failed": told["failed"], "timed_out": told["timed_out"],
            "descriptors_leaked": told["descriptors_leaked"], "tasks_leaked": told["tasks_leaked"],
            "prompts": args.prompts, "capacity": CAPACITY, "curve": curve,
        }  # fmt: skip
        (args.out / "soak.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        draw(curve, args.out / "soak.png")
    sys.exit(not all(line["met"] for line in lines))


if __name__ == "__main__":
    main()
