"""What benchmarks share: options, targets, and results as JSON with one row of a table per line."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput

MAX_LINE = 400
"""Characters of a value that is written on one line although it contains objects or lists."""
Row = dict[str, Any]


def options_for(description: str | None, files: str) -> argparse.ArgumentParser:
    """Return a parser with --out, the directory of the files that the benchmark writes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"directory for {files}")
    return parser


def run_or_show(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None], markdown: Callable[[Row], str]
) -> None:
    """Run the benchmark, or with --markdown print the tables of the documentation from an earlier result."""
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of an earlier result, and end")
    args = parser.parse_args()
    if args.markdown:
        print(markdown(json.loads(args.markdown.read_text(encoding="utf-8"))))
        return
    try:
        run(args)
    except InvalidInput as error:
        parser.error(str(error))


def min_seconds(call: Callable[[], object], runs: int, clock: Callable[[], float] = time.process_time) -> float:
    """Return the minimum time of several calls: CPU time, unless another clock is given."""
    seconds = []
    for _ in range(runs):
        start = clock()
        call()
        seconds.append(clock() - start)
    return min(seconds)


def target(
    metric: str,
    measured: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    unit: str = "",
    worst: float | None = None,
) -> Row:
    """Return the row of one target. Give one of `at_most`, `at_least` and `below`."""
    if at_most is not None:
        text, met = f"≤ {at_most:g} {unit}", measured <= at_most
    elif below is not None:
        text, met = f"< {below:g} {unit}", measured < below
    else:
        assert at_least is not None
        text, met = f"≥ {at_least:g} {unit}", measured >= at_least
    return {"metric": metric, "measured": measured, "worst": worst, "target": text.strip(), "met": bool(met)}


def print_targets(targets: Sequence[Row]) -> None:
    print_table([row | {"met": "yes" if row["met"] else "no"} for row in targets], title="targets")


def write_result(out: Path | None, name: str, content: Mapping[str, Any]) -> None:
    """Write NAME.json, with the content and where it was measured. Without a directory do nothing."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    where = {"python": platform.python_version(), "machine": platform.machine(), "commit": commit()}
    record = {"name": name, **where, **content}
    (out / f"{name}.json").write_text(format_value(record) + "\n", encoding="utf-8")


def commit() -> str | None:
    """Return the commit of the checkout, with "-dirty" if tracked files differ from it; None without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def format_value(value: Any, margin: str = "\n") -> str:
    """Return a value as JSON. margin: a line break and the spaces in front of the value."""
    text, inner = json.dumps(value, ensure_ascii=False), margin + " "
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(text) <= MAX_LINE or not any(isinstance(child, (dict, list)) for child in children):
        return text
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
    items = [name + format_value(child, inner) for name, child in zip(names, children, strict=True)]
    return text[0] + inner + f",{inner}".join(items) + margin + text[-1]
