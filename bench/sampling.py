"""Benchmark of replays by sampling: 10^7, 10^8 and 10^9 synthetic requests, and the exact result of 10^7.

    python bench/sampling.py [--out DIR] [--quick]
    python bench/sampling.py --markdown bench/results/sampling.json

Each row is one run of `knapcache replay --sample` on one core. Its time and its peak memory include the generation of
the requests: ten million queries by Zipf's law, with one request in 50 for a query that never returns. Prints a table;
writes sampling.json to DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from _results import Row, options_for, run_or_show, write_result

from knapcache.cli.output import print_table

WORKLOAD = "synthetic:queries=1e7,arrivals=zipf:0.9,sizes=lognormal:1000,costs=lognormal,noise=0.3,one_hits=0.02"
SIZES = (10**7, 10**8, 10**9)
SAMPLE = 1_000_000
CELLS = ["--policy", "lru,gdsf-cost,adaptive", "--capacity", "1%,10%"]


def replay(requests: int, sample: str) -> list[Row]:
    """Run the command; return its rows, with its seconds and its peak memory."""
    name = f"{WORKLOAD},rounds={requests}"
    arguments = ["replay", name, *CELLS, "--sample", sample, "--jobs", "1", "--json", "-"]
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "knapcache", *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"replay failed with exit code {process.returncode}")
    run = {"sample": sample, "run_seconds": time.perf_counter() - start, "cpu_seconds": usage.ru_utime + usage.ru_stime}
    return [row | run | {"peak_bytes": 1024 * usage.ru_maxrss} for row in json.loads(output)]


def shown(rows: list[Row]) -> list[Row]:
    """Return the rows of the table."""
    return [
        {
            "requests": f"{row['requests']:.0e}".replace("e+0", "e"),
            "sample": row["sample"],
            "keys replayed": "all" if row["rate"] == 1.0 else f"1 in {1 / row['rate']:,.0f}",
            "policy": row["policy"],
            "capacity": f"{row['capacity'] / 1e9:.2f} GB",
            "cost ratio": f"{row['cost_ratio']:.4f}",
            "±": "" if row["cost_ratio_error"] is None else f"{row['cost_ratio_error']:.4f}",
            "seconds": f"{row['run_seconds']:,.0f}",
            "CPU seconds": f"{row['cpu_seconds']:,.0f}",
            "peak memory": f"{row['peak_bytes'] / 1e6:,.0f} MB",
        }
        for row in rows
    ]


def markdown(record: Row) -> str:
    """Return the table of docs/guides/lab.md."""
    rows = shown(record["rows"])
    lines = [" | ".join(rows[0]), "|".join("---" for _ in rows[0])]
    lines += [" | ".join(f"`{v}`" if name == "policy" else v for name, v in row.items()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines).replace("| ---", "|---").replace("--- |", "---|")


def run(args: argparse.Namespace) -> None:
    sizes = (10**6,) if args.quick else SIZES
    rows = replay(sizes[0], "off")
    for requests in sizes:
        rows += replay(requests, str(SAMPLE))
        print(f"{requests:,} requests: done", file=sys.stderr)
    print_table(shown(rows), title="knapcache replay of synthetic requests")
    write_result(args.out, "sampling", {"workload": WORKLOAD, "rows": rows})


def main() -> None:
    parser = options_for(__doc__, "sampling.json")
    parser.add_argument("--quick", action="store_true", help="10^6 requests only")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
