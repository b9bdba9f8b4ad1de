"""Benchmark of the trace readers: a million requests in each format, compared with a plain loop and Polars.

    python bench/readers.py [--out DIR]

CPU seconds, the best of several runs. The ratio is to a hand-written loop over csv.reader. Prints a table; writes
readers.json to DIR.
"""

from __future__ import annotations

import csv
import gzip
import sys
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars
from _results import min_seconds, options_for, write_result

from knapcache.cli.output import print_table
from knapcache.lab.traces import read_trace
from knapcache.lab.traces.oracle_general import RECORD

REQUESTS = 1_000_000
RUNS = 3


def write_traces(folder: Path) -> dict[str, Path]:
    """Write the same requests in each format."""
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


def plain_loop(path: Path) -> None:
    """Read CSV with a plain loop that numbers the keys."""
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
    """Read with the csv module instead of Polars."""
    with mock.patch.dict(sys.modules, {"polars": None}):
        read_trace(path)


def main() -> None:
    args = options_for(__doc__, "readers.json").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = write_traces(Path(folder))
        compressed = files["csv.gz"]
        runs: dict[str, Callable[[], object]] = {
            "csv.gz, plain loop": lambda: plain_loop(compressed),
            "csv.gz, polars.read_csv, keys not numbered": lambda: polars.read_csv(compressed),
            "csv.gz": lambda: read_trace(compressed),
            "csv.gz, without Polars": lambda: without_polars(compressed),
            **{kind: lambda path=path: read_trace(path) for kind, path in files.items() if kind != "csv.gz"},  # type: ignore[misc]
        }
        seconds = {name: min_seconds(function, RUNS) for name, function in runs.items()}
    base = seconds["csv.gz, plain loop"]
    rows: list[dict[str, Any]] = [
        {"file": n, "cpu_seconds": s, "ratio_to_plain_loop": s / base} for n, s in seconds.items()
    ]
    print_table(rows, title=f"{REQUESTS:,} requests")
    write_result(args.out, "readers", {"rows": rows})


if __name__ == "__main__":
    main()
