"""Soak test of the proxy: memory, descriptors and tasks must not grow under continuous traffic.

    python bench/soak.py [--minutes 10] [--clients 200] [--out DIR]

200 clients send requests without pause, half of them streams; one request in ten is aborted (_soak_clients.py). Prompts
follow Zipf's law over more prompts than fit, and some occur once, so there are always hits, misses and evictions. The
upstream returns the nonce of each prompt, so an answer delivered to the wrong client is detected.

Before that, requests for texts that never return fill the cache's table of 131,072 known keys. Otherwise it would grow
during the run, on a slow machine until its end.

Sampled every few seconds: resident memory, open descriptors, tasks of the event loop, known keys, answers per second.
After the first third each curve must be flat:

    growth = slope · time / median,   slope = median of the slopes between all pairs of points (Theil–Sen)

at most 5 %. This estimator is robust against outliers such as a garbage collection or other work on the machine.

Descriptors and tasks vary with the load by half or more. For them the lower end of Sen's confidence interval of the
slope is compared with the limit (three standard deviations of Kendall's statistic), and `worst` reports the median. A
slow leak could hide in that interval, so the descriptors and tasks left after all clients have disconnected are also
checked. Runs shorter than two minutes report their curves without targets on growth.

Prints a table; writes soak.json and soak.png to DIR. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from _results import Row, options_for, print_targets, target, write_result
from _server_processes import HERE, KEY, LOAD_CORE, UPSTREAM_CORE, ServerProcess, baseline_server, knapcache, pin_to

from knapcache.cli.output import print_table
from knapcache.lab.figures import new_figure
from knapcache.threads import MAX_THREADS

PROMPTS = 4000
INPUTS = 256
"""Texts of one embeddings request that fills the table of known keys."""
CAPACITY = "4MB"
DELAY, PACE = 0.01, 0.001
CURVES = {"resident_mib": "resident memory, MiB", "descriptors": "open descriptors", "tasks": "tasks of the event loop"}
MIN_MINUTES = 2.0
"""Shorter runs have no targets on growth."""
LINGER_SECONDS = 90.0
"""Maximum wait before leaks are counted: idle upstream connections stay open for a minute."""
SPARE_DESCRIPTORS = 2 * (MAX_THREADS + 2)
"""Descriptors that do not count as leaks. Each thread that reads the store opens two files on first use and keeps them
open: the threads for asynchronous reads, that of the Oracle, and one of the admin API."""


def metrics(server: ServerProcess) -> dict[str, float]:
    """Return the server's metrics without labels, by name."""
    lines = [line.split() for line in server.get("/metrics").decode().splitlines() if not line.startswith("#")]
    return {line[0]: float(line[1]) for line in lines if len(line) == 2 and "{" not in line[0]}


def stalls(server: ServerProcess) -> dict[str, int]:
    """Return how often the lateness of the event loop was measured, and how often it was above 50 ms, by either clock.

    wall   also counts time in which other processes had the CPU
    cpu    counts time in which this process used it
    """
    buckets = {}
    for line in server.get("/metrics").decode().splitlines():
        match = re.match(r'knapcache_loop_stall_seconds_bucket\{clock="(\w+)",le="([^"]+)"\} (\S+)', line)
        if match:
            buckets[match[1], match[2]] = int(float(match[3]))
    above = {f"above_50_ms_{clock}": buckets[clock, "+Inf"] - buckets[clock, "0.05"] for clock in ("wall", "cpu")}
    return {"measured": buckets["wall", "+Inf"], **above}


def task_count(server: ServerProcess) -> int:
    """Return the tasks of the event loop."""
    return int(metrics(server)["knapcache_tasks"])


def fill_known_keys(server: ServerProcess) -> None:
    """Ask for texts that never return until the table of known keys is full: the count no longer grows.

    With only-if-cached nothing is fetched or stored, so memory is as after any other traffic.
    """
    known, number = -1.0, 0
    while known < (known := metrics(server)["knapcache_ids"]):
        for _ in range(32):
            number += 1
            body = {"model": "text-embedding-3-small", "input": [f"text {number} {k}" for k in range(INPUTS)]}
            server.post("/v1/embeddings", body, {"cache-control": "only-if-cached"}, status=504)


def sample(server: ServerProcess, client_counts: dict[str, Any], seconds: float) -> Row:
    """Return one point of the curves."""
    counts = {
        name: client_counts[name]
        for name in ("answered", "hits", "disconnected", "misdelivered", "failed", "timed_out")
    }
    reported = metrics(server)
    resources = {
        "resident_mib": server.resident_bytes / 2**20,
        "descriptors": server.descriptors,
        "tasks": int(reported["knapcache_tasks"]),
        "known_keys": int(reported["knapcache_ids"]),
    }
    return {"seconds": seconds, **resources, **counts}


def soak(folder: Path, minutes: float, clients: int, prompts: int) -> tuple[list[Row], dict[str, Any]]:
    """Run the clients; return the curve and the final counts, including leaks after all clients left."""
    interval = max(0.5, min(5.0, minutes * 60 / 40))
    with (
        baseline_server("paced", folder, DELAY, PACE, core=UPSTREAM_CORE) as upstream,
        knapcache(folder, upstream.port, "--capacity", CAPACITY) as server,
    ):
        if minutes >= MIN_MINUTES:
            fill_known_keys(server)
        task_count(server)  # the first read opens descriptors of its own
        idle_descriptors, idle_tasks = server.descriptors, task_count(server)
        stalls_before = stalls(server)
        job = {
            "port": server.port, "clients": clients, "seconds": minutes * 60, "interval": interval, "prompts": prompts,
            "headers": {"authorization": f"Bearer {KEY}"},
        }  # fmt: skip
        command = [sys.executable, str(HERE / "_soak_clients.py")]
        start = time.monotonic()
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pin_to(LOAD_CORE)
        ) as clients_process:
            assert clients_process.stdin is not None
            assert clients_process.stdout is not None
            clients_process.stdin.write(json.dumps(job))
            clients_process.stdin.close()
            curve: list[Row] = []
            counts: dict[str, Any] = {}
            for line in clients_process.stdout:
                counts = json.loads(line)
                curve.append(sample(server, counts, time.monotonic() - start))
        if clients_process.returncode:
            raise RuntimeError("the client process failed")
        counts["stalls"] = {name: value - stalls_before[name] for name, value in stalls(server).items()}
        end = time.monotonic() + (LINGER_SECONDS if minutes >= MIN_MINUTES else 0.0)
        while True:
            counts["descriptors_leaked"] = max(0, server.descriptors - idle_descriptors - SPARE_DESCRIPTORS)
            counts["tasks_leaked"] = max(0, task_count(server) - idle_tasks)
            if not (counts["descriptors_leaked"] or counts["tasks_leaked"]) or time.monotonic() > end:
                break
            time.sleep(0.5)
    curve = [row for row in curve if row["seconds"] < minutes * 60]  # afterwards the clients disconnect
    for before, row in zip([{"seconds": 0.0, "answered": 0}, *curve], curve, strict=False):
        row["answers_per_second"] = (row["answered"] - before["answered"]) / (row["seconds"] - before["seconds"])
    return curve, counts


def growth(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the growth in percent from the first to the last point: lower bound and median (Theil–Sen).

    Of N slopes between n points the lower bound is the slope of rank (N − 3 √(n (n − 1) (2 n + 5) / 18)) / 2.
    """
    n = len(points)
    slopes = sorted((b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2))
    rank = max(0, int((len(slopes) - 3.0 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5) / 2))
    scale = 100.0 * (points[-1][0] - points[0][0]) / median(value for _, value in points)
    return scale * slopes[rank], scale * median(slopes)


def check_targets(curve: list[Row], counts: dict[str, Any], *, with_growth: bool) -> list[Row]:
    """Return the targets on the counts and, if `with_growth`, on leaks and growth."""
    targets = [target(metric, counts[name], at_most=0) for name, metric in (
        ("misdelivered", "answers delivered to the wrong client"), ("failed", "failed requests"),
        ("timed_out", "requests without an answer for 60 s"),
    )]  # fmt: skip
    if with_growth:
        targets += [
            target(f"{name} above the start after all clients left", counts[f"{name}_leaked"], at_most=0)
            for name in ("descriptors", "tasks")
        ]
        late = [row for row in curve if row["seconds"] >= curve[-1]["seconds"] / 3]
        for name, title in CURVES.items():
            lower_bound, estimate = growth([(row["seconds"], row[name]) for row in late])
            measured = estimate if name == "resident_mib" else lower_bound
            metric = f"growth in the last two thirds: {title}"
            targets.append(target(metric, measured, at_most=5, unit="%", worst=estimate))
    return targets


def draw(curve: list[Row], path: Path) -> None:
    figure, axes = new_figure(2, rows=2, width=5.0, height=2.4)
    for axis, (name, title) in zip(axes, [*CURVES.items(), ("answers_per_second", "answers per second")], strict=True):
        axis.plot([row["seconds"] / 60 for row in curve], [row[name] for row in curve], color="#0072B2")
        axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.set_xlabel("minutes")
    figure.savefig(path, dpi=140)


def main() -> None:
    os.environ.setdefault("KNAPCACHE_COMPILE", "1")  # compiled kernels from the first request on
    parser = options_for(__doc__, "soak.json and soak.png")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (default: 10)")
    parser.add_argument("--clients", type=int, default=200, help="concurrent clients (default: 200)")
    parser.add_argument(
        "--prompts",
        type=int,
        default=PROMPTS,
        help=f"prompts of the Zipf distribution; more take longer to fill the cache (default: {PROMPTS})",
    )
    parser.add_argument("--quick", action="store_true", help="15 seconds with 20 clients")
    args = parser.parse_args()
    if args.quick:
        args.minutes, args.clients = 0.25, 20
    with tempfile.TemporaryDirectory() as folder:
        curve, counts = soak(Path(folder), args.minutes, args.clients, args.prompts)
    targets = check_targets(curve, counts, with_growth=args.minutes >= MIN_MINUTES)
    print_table(curve[:: max(1, len(curve) // 12)], title=f"{args.clients} clients")
    for error in counts["errors"]:
        print(error)
    print_targets(targets)
    counted = (
        "answered", "hits", "disconnected", "misdelivered", "failed", "timed_out", "descriptors_leaked", "tasks_leaked",
        "stalls",
    )  # fmt: skip
    record = {"minutes": args.minutes, "clients": args.clients, "targets": targets}
    record |= {name: counts[name] for name in counted}
    write_result(args.out, "soak", {**record, "prompts": args.prompts, "capacity": CAPACITY, "curve": curve})
    if args.out:
        draw(curve, args.out / "soak.png")
    sys.exit(not all(row["met"] for row in targets))


if __name__ == "__main__":
    main()
