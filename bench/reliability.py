"""Reliability: what is done to knapcache, how often, what is promised, and what was measured.

    python bench/reliability.py [--only R1,R3] [--scale 0.1] [--out DIR]
    python bench/reliability.py --markdown FILE

Each row runs in a process of its own, so that a crash fails its row and no other. It ends at the first broken promise.
--scale multiplies all counts. Rows and scenarios are in _reliability_rows.py; the tests run the same scenarios at a
small scale.

Prints a table; writes reliability.json to DIR. With --only, other rows of an earlier run at the same scale are kept.
--markdown prints the table of docs/reference/reliability.md from such a file. Exit code 1 if a row fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from _results import options_for, write_result

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the scenarios of the tests

from _reliability_rows import ROWS  # noqa: E402 - after the change of sys.path
from _reliability_run import ReliabilityRow, Run  # noqa: E402

from knapcache.cli.output import print_table  # noqa: E402

COLUMNS = {
    "row": "",
    "done": "what is done to it",
    "how_often": "how often",
    "promised": "promised",
    "measured": "measured",
    "command": "command",
}
"""The table in the documentation, with its headings."""


def run_here(row: ReliabilityRow, scale: float, out: Path | None = None) -> dict[str, Any]:
    """Run a row in this process."""
    start = time.monotonic()
    memory = Path("/dev/shm")  # a real disk's syncs would take most of the time, and prove nothing here
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True) as folder:
        try:
            found = row.run(Run(row.name, scale, Path(folder), out))
            outcome = {"how_often": found.how_often, "measured": found.measured, "passed": True, "counts": found.counts}
        except Exception as error:  # a broken promise; the other rows run
            traceback.print_exc()
            cause = f" ({error.__cause__!r:.500})" if error.__cause__ else ""
            outcome = {"how_often": "", "measured": f"{error!r:.1000}{cause}", "passed": False, "counts": {}}
    return {**outcome, "seconds": round(time.monotonic() - start, 1)}


def run_in_child(row: ReliabilityRow, scale: float, out: Path | None = None) -> dict[str, Any]:
    """Run a row in a process of its own."""
    start = time.monotonic()
    child = [sys.executable, str(Path(__file__).resolve()), "--child", row.name, "--scale", str(scale)]
    child += ["--out", str(out.resolve())] if out else []
    done = subprocess.run(child, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        outcome: dict[str, Any] = json.loads(lines[-1])
    else:
        measured = f"the process ended with status {done.returncode}"
        outcome = {"how_often": "", "measured": measured, "passed": False, "counts": {}}
        outcome["seconds"] = round(time.monotonic() - start, 1)
    command = f'make reliability ARGS="--only {row.name}"'
    described = {"row": row.name, "done": row.done, "promised": row.promised, "command": command, "commit": commit()}
    return described | outcome


def commit() -> str:
    """Return the commit of this checkout, or "" outside of git."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def merged(rows: list[dict[str, Any]], path: Path, scale: float) -> list[dict[str, Any]]:
    """Return the rows with those of an earlier run at the same scale that were not run again."""
    earlier: list[dict[str, Any]] = []
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        earlier = record["rows"] if record["scale"] == scale else []
    by_name = {row["row"]: row for row in [*earlier, *rows]}
    return [by_name[row.name] for row in ROWS if row.name in by_name]


def markdown(path: Path) -> str:
    """Return the table of the documentation."""
    record = json.loads(path.read_text(encoding="utf-8"))
    lines = [f"| {' | '.join(COLUMNS.values())} |", "|" + "---|" * len(COLUMNS)]
    for row in record["rows"]:
        cells = {**row, "command": f"`{row['command']}`"}
        if not row["passed"]:
            cells["measured"] = f"**failed**: {row['measured']}"
        lines.append(f"| {' | '.join(str(cells[name]).replace('|', ' ') for name in COLUMNS)} |")
    return "\n".join(lines)


def selected(names: str) -> list[ReliabilityRow]:
    """Return rows by their names; all if none is given."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        raise SystemExit(f"--only: no row {', '.join(sorted(unknown))}; rows are {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if not wanted or row.name in wanted]


def main() -> int:
    os.environ.setdefault("KNAPCACHE_COMPILE", "1")  # compiled kernels from the first request on
    parser = options_for(__doc__, "reliability.json")
    parser.add_argument("--only", default="", metavar="R1,…", help="only these rows")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all counts (default: 1)")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="print the table of a reliability.json, run nothing"
    )
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.markdown:
        print(markdown(args.markdown))
        return 0
    if args.child:
        (row,) = selected(args.child)
        logging.disable(logging.WARNING)  # damage and faults are expected
        print(json.dumps(run_here(row, args.scale, args.out)))
        return 0
    rows = selected(args.only)
    left, start = sum(row.seconds for row in rows) * args.scale, time.monotonic()
    print(f"{len(rows)} rows, about {left / 60:.0f} minutes on two cores", file=sys.stderr, flush=True)
    results = []
    for row in rows:
        print(f"{row.name}: {row.done}; about {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
        results.append(run_in_child(row, args.scale, args.out))
        left -= row.seconds * args.scale
        verdict = "passed" if results[-1]["passed"] else "FAILED"
        print(
            f"{row.name}: {verdict} in {results[-1]['seconds']:.0f} s: {results[-1]['measured']}",
            file=sys.stderr,
            flush=True,
        )
        if args.out:  # after every row: an interrupted run keeps what it has
            merged_rows = merged(results, args.out / "reliability.json", args.scale)
            write_result(args.out, "reliability", {"scale": args.scale, "rows": merged_rows})
    shown = ("row", "done", "measured", "passed", "seconds")
    print_table([{name: result[name] for name in shown} for result in results], title="reliability")
    print(
        f"{sum(result['passed'] for result in results)} of {len(results)} rows passed, {time.monotonic() - start:.0f} s"
    )
    return int(not all(result["passed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
