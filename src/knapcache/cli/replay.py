"""`knapcache replay TRACE`: replay a log against policies and capacities."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli.output import OutputFile, print_table
from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.sim.trace import Trace
    from knapcache.sim.traces import BrokenLine, Prices, Rules

HELP = "replay a log against policies and sizes"
CAPACITY = """capacities: units of the trace's sizes, with k, M, G (kB, KiB, …) behind the number, or %% of the working
set, which is the sum over all keys of the largest size of each"""
TEXT = """Replay the requests of a file against cache policies, and say what each would have cost.
One row for each capacity and policy: requests, hits, what misses cost (miss_cost), what everything would have cost
without a cache (total_cost), the ratio of the two, the most room ever used, calls of the Oracle, seconds."""
EXAMPLES = """examples:
  knapcache replay trace.csv.gz --policy lru,gdsf-cost,vsocb-lazy --capacity 10%,30%
  knapcache replay calls.jsonl --prices 2.5,10 --policy lru,static --capacity 4GB --json rows.json
  knapcache replay trace.parquet --key prompt_hash --size bytes --cost usd --policy lru --capacity 64MB

formats, known by content where --format does not name one:
"""


def add(commands: Any, *, with_options: bool) -> None:
    """Put the command into the parser; its options, which import the readers, only if they are about to be used."""
    if not with_options:
        commands.add_parser("replay", help=HELP)
        return
    from knapcache.sim.traces import FORMATS

    parser = commands.add_parser(
        "replay",
        help=HELP,
        description=TEXT,
        epilog=EXAMPLES + "\n".join(f"  {name:15} {one.summary}" for name, one in FORMATS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("trace", metavar="TRACE", type=Path, help="file to read, plain or compressed with gzip or zstd")
    option("--policy", metavar="LIST", required=True, help="policies, as `knapcache policies` lists them")
    option("--capacity", metavar="LIST", required=True, help=CAPACITY)
    option("--json", metavar="FILE", help="write the rows as JSON; - for standard output, and no table")
    option("--jobs", type=int, metavar="N", help="processes to run on (default: all cores)")
    option("--seed", type=int, metavar="N", default=0, help="seed of policies that draw (default: 0)")
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
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Read, replay, print or write."""
    from knapcache.sim.grid import choices, replay_grid
    from knapcache.sim.traces import Rules

    rules = Rules(
        time=args.time,
        no_time=args.no_time,
        key=tuple(name.strip() for name in args.key.split(",")) if args.key is not None else None,
        size=args.size,
        cost=args.cost,
        cost_each=args.cost_each,
        prices=prices(args.prices) if args.prices is not None else None,
    )
    policies = words(args.policy)
    capacities = choices(policies, words(args.capacity), args.seed, args.jobs)
    out = OutputFile(Path(args.json)) if args.json not in (None, "-") else None
    rows = replay_grid(read(args, rules), policies, capacities, seed=args.seed, jobs=args.jobs)
    text = json.dumps(rows, indent=1, allow_nan=False)
    if args.json == "-":
        print(text)
        return
    if out:  # before the table: a reader of that may hang up
        out.write(text + "\n")
    print_table(rows)
    if out:
        print(out.path)


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


def read(args: argparse.Namespace, rules: Rules) -> Trace:
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
        task = bar.add_task(f"reading {args.trace.name}", total=None)
        trace = read_trace(
            args.trace,
            rules,
            format=args.format,
            on_broken=skip if args.on_error == "skip" else None,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if count:
        first, lines = f"{broken[0].place}: {broken[0].reason}", "lines" if count > 1 else "line"
        print(f"knapcache: skipped {count} broken {lines} of {args.trace}, the first: {first}", file=sys.stderr)
    return trace
