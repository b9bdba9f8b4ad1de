"""How a log is read: the options that all commands which read one share."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from knapcache.cli import executor_options
from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.sim.trace import Trace
    from knapcache.sim.traces import BrokenLine, ColumnRules, Prices

CAPACITY = """units of the trace's sizes, with k, M, G (kB, KiB, …) behind the number, or %% of the working
set, which is the sum over all keys of the largest size of each"""


def formats() -> str:
    """The end of a help text: what can be read."""
    from knapcache.sim.traces import FORMATS

    return "\nformats, known by content where --format does not name one:\n" + "\n".join(
        f"  {name:15} {one.summary}" for name, one in FORMATS.items()
    )


def add_file(parser: argparse.ArgumentParser, metavar: str) -> None:
    """The file, and how its replays run."""
    option = parser.add_argument
    option(
        "trace",
        metavar=metavar,
        type=Path,
        nargs="+",
        help="file to read, plain or compressed with gzip or zstd; several, or a directory, are read as one",
    )
    executor_options.add_options(parser)
    option("--seed", type=int, metavar="N", default=0, help="seed of policies that draw and of samples (default: 0)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of reading."""
    from knapcache.sim.traces import FORMATS

    option = parser.add_argument_group("reading").add_argument
    option("--format", choices=tuple(FORMATS), metavar="NAME", help="format of the file; see below")
    option("--on-error", choices=("fail", "skip"), default="fail", help="broken lines: stop, or count them and go on")
    option("--time", metavar="FIELD", help="field with the time (default: time)")
    option("--no-time", action="store_true", help="there is none")
    option("--key", metavar="FIELDS", help="field, or fields with commas, that identify a request (default: key)")
    option("--size", metavar="FIELD", help="field with the size (default: size)")
    option("--cost", metavar="FIELD", help="field with what a miss costs (default: cost)")
    option("--cost-each", metavar="X", type=float, help="every miss costs this")
    option("--prices", metavar="IN,OUT", help="dollars per million input and output tokens: cost from usage")


def rules(args: argparse.Namespace) -> ColumnRules:
    """What the options say."""
    from knapcache.sim.traces import ColumnRules

    return ColumnRules(
        time=args.time,
        no_time=args.no_time,
        key=tuple(name.strip() for name in args.key.split(",")) if args.key is not None else None,
        size=args.size,
        cost=args.cost,
        cost_each=args.cost_each,
        prices=prices(args.prices) if args.prices is not None else None,
    )


def words(text: str) -> list[str]:
    """A list with commas."""
    return [word.strip() for word in text.split(",")]


def prices(text: str) -> Prices:
    """IN,OUT."""
    from knapcache.sim.traces import Prices

    try:
        given = [float(word) for word in text.split(",")]
    except ValueError:
        given = []
    if len(given) != 2 or any(map(math.isnan, given)):
        raise InvalidInput(f"prices must be two numbers with a comma, IN,OUT per million tokens, not {text!r}")
    return Prices(*given)


def title(args: argparse.Namespace) -> str:
    """What was read, on one short line."""
    first: Path = args.trace[0]
    more = len(args.trace) - 1
    return (first.name or str(first)) + (f" and {more} more" if more else "")


def read(args: argparse.Namespace, rules: ColumnRules) -> Trace:
    """The trace, with a bar on a terminal; what was skipped is said."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from knapcache.sim.traces import read_trace

    broken: list[BrokenLine] = []
    count = 0

    def skip(line: BrokenLine) -> None:
        nonlocal count
        count += 1
        if not broken:
            broken.append(line)

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"reading {title(args)}", total=None)
        trace = read_trace(
            args.trace,
            rules,
            format=args.format,
            on_broken=skip if args.on_error == "skip" else None,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if count:
        given = args.trace[0] if len(args.trace) == 1 else title(args)
        first, lines = f"{broken[0].place}: {broken[0].reason}", "lines" if count > 1 else "line"
        print(f"knapcache: skipped {count} broken {lines} of {given}, the first: {first}", file=sys.stderr)
    return trace
