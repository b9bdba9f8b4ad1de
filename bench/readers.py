"""How fast traces are read: a million requests in each format, against plain loops and Polars in the same run.

    python bench/readers.py [--out DIR]

Prints a table; writes readers.json into DIR. CPU seconds, the best of some runs; the ratio is to the loop over
csv.reader that one would write by hand.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import platform
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars

from knapcache.cli.output import print_table
from knapcache.sim.traces import read_trace

REQUESTS = 1_000_000
RUNS = 3
RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


def write(folder: Path) -> dict[str, Path]:
    """The same requests in each format."""
    rng = np.random.default_rng(0)
    key = rng.zipf(1.2, REQUESTS) % 100_000
    columns = {
        "time": np.arange(REQUESTS) / 8,
        "key": key,
        "size": key % 5000 + 1,
        "cost": rng.exponential(size=REQUESTS),
    }
    table = polars.DataFrame(columns)
    files = {kind: folder / f"trace.{kind}" for kind in ("csv", "csv.gz", "jsonl", "parquet", "oracleGeneral")}
    table.write_csv(files["csv"])
    files["csv.gz"].write_bytes(gzip.compress(files["csv"].read_bytes(), 6))
    table.write_ndjson(files["jsonl"])
    table.write_parquet(files["parquet"])
    records = np.zeros(REQUESTS, RECORD)
    records["time"], records["id"], records["size"] = columns["time"], key, columns["size"]
    records.tofile(files["oracleGeneral"])
    return files


def by_hand(path: Path) -> None:
    """What one would write: a loop over rows, keys numbered."""
    ids: dict[str, int] = {}
    keys, sizes, costs = array("q"), array("q"), array("d")
    with gzip.open(path, "rt", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        for _, key, size, cost in rows:
            keys.append(ids.setdefault(key, len(ids)))
            sizes.append(int(size))
            costs.append(float(cost))


def without_polars(path: Path) -> None:
    """The csv module's lane for all of the file."""
    with mock.patch.dict(sys.modules, {"polars": None}):
        read_trace(path)


def measure(function: Callable[[], object]) -> float:
    """CPU seconds, the best of some runs."""
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Measure every reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write readers.json here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder))
        packed = files["csv.gz"]
        runs: dict[str, Callable[[], object]] = {
            "csv.gz, a loop by hand": lambda: by_hand(packed),
            "csv.gz, polars.read_csv, keys not numbered": lambda: polars.read_csv(packed),
            "csv.gz": lambda: read_trace(packed),
            "csv.gz, no Polars": lambda: without_polars(packed),
            **{kind: lambda path=path: read_trace(path) for kind, path in files.items() if kind != "csv.gz"},  # type: ignore[misc]
        }
        found = {name: measure(function) for name, function in runs.items()}
    base = found["csv.gz, a loop by hand"]
    rows: list[dict[str, Any]] = [{"file": n, "cpu_seconds": s, "ratio_to_by_hand": s / base} for n, s in found.items()]
    print_table(rows, title=f"{REQUESTS:,} requests")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"name": "readers", "python": platform.python_version(), "machine": platform.machine(), "rows": rows}
        (args.out / "readers.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
