"""Options that say how a trace is read, shared by `replay` and `plan`."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from knapcache.cli import options
from knapcache.cli.output import progress_bar
from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.lab.trace import Trace
    from knapcache.lab.traces import BrokenLine, ColumnRules, Prices

CAPACITY_HELP = """in the trace's size unit, with an optional unit in any case (kB, MB, GB, KiB, …), or in %% of the
working set, the sum over all keys of the largest size of each key"""
MAX_NOTICES = 10
"""Reasons that are printed, one per line. A log may have calls of many models without a price."""


def format_list() -> str:
    """Return the list of trace formats for the end of a help text."""
    from knapcache.lab.traces import FORMATS

    lines = [f"  {name:15} {one.summary}" for name, one in FORMATS.items()]
    return "trace formats (detected from the content unless --format is given):\n" + "\n".join(lines)


def add_trace(parser: argparse.ArgumentParser, metavar: str) -> None:
    """Add the trace argument, the seed and the executor options."""
    option = parser.add_argument
    option(
        "trace",
        metavar=metavar,
        type=Path,
        nargs="+",
        help="trace file, plain or compressed with gzip or zstd; several files or a directory are read as one trace",
    )
    options.add_executor(parser)
    option("--seed", type=int, metavar="N", default=0, help="random seed of policies and samples (default: 0)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that map fields of the trace to time, key, size and cost."""
    from knapcache.lab.traces import FORMATS

    option = parser.add_argument_group("trace options").add_argument
    option("--format", choices=tuple(FORMATS), metavar="NAME", help="trace format; see the list below")
    option(
        "--on-error", choices=("fail", "skip"), default="fail", help="stop at a broken line, or skip it (default: fail)"
    )
    option("--time", metavar="FIELD", help="field with the time of a request (default: time, timestamp, created, …)")
    option("--no-time", action="store_true", help="the trace has no times")
    option("--key", metavar="FIELDS", help="comma-separated fields that identify a request (default: key)")
    option("--size", metavar="FIELD", help="field with the size of an answer (default: size)")
    option("--cost", metavar="FIELD", help="field with the cost of a miss (default: cost)")
    option("--cost-each", metavar="X", type=float, help="the same cost for every miss")
    option(
        "--prices",
        metavar="PRICES",
        help="compute costs in dollars from token usage; auto: each line by the price of its own model; "
        "IN,OUT: dollars per million input and output tokens",
    )


def column_rules(args: argparse.Namespace) -> ColumnRules:
    from knapcache.lab.traces import ColumnRules

    return ColumnRules(
        time=args.time,
        no_time=args.no_time,
        key=tuple(split_list(args.key)) if args.key is not None else None,
        size=args.size,
        cost=args.cost,
        cost_each=args.cost_each,
        prices=parse_prices(args.prices) if args.prices is not None else None,
    )


def split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def parse_prices(text: str) -> Prices | Literal["auto"]:
    from knapcache.lab.traces import AUTO, Prices

    if text.strip().lower() == AUTO:
        return AUTO
    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 2 or any(map(math.isnan, numbers)):
        raise InvalidInput(f"prices must be auto, or two numbers IN,OUT in dollars per million tokens, not {text!r}")
    return Prices(*numbers)


def trace_name(paths: Sequence[Path]) -> str:
    """Return the name of the first file and the number of further files."""
    first = paths[0]
    more = len(paths) - 1
    return (first.name or str(first)) + (f" and {more} more" if more else "")


def read(args: argparse.Namespace, rules: ColumnRules, paths: Sequence[Path]) -> Trace:
    """Read files as one trace with a progress bar on a terminal, and report skipped lines on stderr."""
    from rich.progress import DownloadColumn

    from knapcache.lab.traces import read_trace

    first_broken: BrokenLine | None = None
    count = 0
    notices: Counter[str] = Counter()

    def skip(line: BrokenLine) -> None:
        nonlocal count, first_broken
        count += 1
        first_broken = first_broken or line

    with progress_bar(DownloadColumn()) as bar:
        task = bar.add_task(f"reading {trace_name(paths)}", total=None)
        trace = read_trace(
            paths,
            rules,
            format=args.format,
            on_broken=skip if args.on_error == "skip" else None,
            on_notice=lambda text: notices.update([text]),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if first_broken is not None:
        name = paths[0] if len(paths) == 1 else trace_name(paths)
        lines = "lines" if count > 1 else "line"
        example = f"{first_broken.place}: {first_broken.reason}"
        print(f"knapcache: skipped {count} broken {lines} of {name}, the first: {example}", file=sys.stderr)
    print_notices(notices)
    return trace


def print_notices(notices: Counter[str]) -> None:
    """Print how many lines were left out and why, the most frequent reasons first."""
    shown = notices.most_common(MAX_NOTICES)
    for text, count in shown:
        print(f"knapcache: {count:,} {'line' if count == 1 else 'lines'} {text}", file=sys.stderr)
    if more := notices.total() - sum(count for _, count in shown):
        print(f"knapcache: {more:,} further lines for {len(notices) - len(shown):,} other reasons", file=sys.stderr)
