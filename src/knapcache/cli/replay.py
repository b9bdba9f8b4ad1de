"""`knapcache replay TRACE`: replay a log against policies and capacities."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from knapcache.cli import executor_options, trace_options
from knapcache.cli.output import print_table

HELP = "replay a log against policies and sizes"
TEXT = """Replay the requests of a file against cache policies, and say what each would have cost.
One row for each capacity and policy: requests, hits, what misses cost (miss_cost), what everything would have cost
without a cache (total_cost), the ratio of the two, the most room ever used, calls of the Oracle, seconds."""
EXAMPLES = """examples:
  knapcache replay trace.csv.gz --policy lru,gdsf-cost,vsocb-lazy --capacity 10%,30%
  knapcache replay calls.jsonl --prices 2.5,10 --policy lru,static --capacity 4GB --json rows.json
  knapcache replay trace.parquet --key prompt_hash --size bytes --cost usd --policy lru --capacity 64MB
  knapcache replay trace.csv.gz --policy lru,vsocb-lazy --capacity 1%,10%,50% --scheduler tcp://host:8786
"""


def add(commands: Any, *, with_options: bool) -> None:
    """Put the command into the parser; its options, which import the readers, only if they are about to be used."""
    if not with_options:
        commands.add_parser("replay", help=HELP)
        return
    parser = commands.add_parser(
        "replay",
        help=HELP,
        description=TEXT,
        epilog=EXAMPLES + trace_options.formats(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    trace_options.add_file(parser, "TRACE")
    option("--policy", metavar="LIST", required=True, help="policies, as `knapcache policies` lists them")
    option("--capacity", metavar="LIST", required=True, help=f"capacities: {trace_options.CAPACITY}")
    option("--json", metavar="FILE", help="write the rows as JSON; - for standard output, and no table")
    trace_options.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Read, replay, print or write."""
    from knapcache.sim.files import OutputFile
    from knapcache.sim.grid import check_arguments, replay_grid

    rules = trace_options.rules(args)
    policies = trace_options.words(args.policy)
    capacities = check_arguments(policies, trace_options.words(args.capacity), args.seed, args.jobs)
    out = OutputFile(Path(args.json)) if args.json not in (None, "-") else None
    with executor_options.jobs(args) as jobs:  # a cluster that is not there is missed before the trace is read
        rows = replay_grid(trace_options.read(args, rules), policies, capacities, seed=args.seed, jobs=jobs)
    text = json.dumps(rows, indent=1, allow_nan=False)
    if args.json == "-":
        print(text)
        return
    if out:  # before the table: a reader of that may hang up
        out.write(text + "\n")
    print_table(rows)
    if out:
        print(out.path)
