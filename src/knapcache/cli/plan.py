"""`knapcache plan LOG`: how much room is worth its money, and with which policy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from knapcache.cli import executor_options, trace_options
from knapcache.cli.output import directory, print_table

HELP = "find out how large a cache pays, from a log"
TEXT = """Replay a log with several policies over a range of budgets, and say what each saves, what one more MB would
save, and the smallest budget that has 90 % of the largest possible saving. Large logs are sampled by key.
With --out a page with interactive plots (plan.html, which loads nothing from anywhere), plan.png and plan.json."""
EXAMPLES = """examples:
  knapcache plan calls.jsonl --prices 2.5,10
  knapcache plan trace.csv.gz --capacity 64MB..16GB:9 --out report
  knapcache plan trace.parquet --policy lru,gdsf-cost --sample off --json plan.json
"""


def add(commands: Any, *, with_options: bool) -> None:
    """Put the command into the parser; its options, which import the readers, only if they are about to be used."""
    if not with_options:
        commands.add_parser("plan", help=HELP)
        return
    from knapcache.sim.plan import POLICIES, RANGE
    from knapcache.sim.sampling import DEFAULT_REQUESTS

    parser = commands.add_parser(
        "plan",
        help=HELP,
        description=TEXT,
        epilog=EXAMPLES + trace_options.formats(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    trace_options.add_file(parser, "LOG")
    names, sizes = ",".join(POLICIES), RANGE.replace("%", "%%")
    option("--policy", metavar="LIST", default=",".join(POLICIES), help=f"policies to compare (default: {names})")
    option(
        "--capacity",
        metavar="RANGE",
        default=RANGE,
        help=f"budgets: LOW..HIGH, LOW..HIGH:COUNT or a list with commas (default: {sizes}); {trace_options.CAPACITY}",
    )
    option("--out", metavar="DIR", type=directory, help="directory for plan.html, plan.png and plan.json")
    option("--json", metavar="FILE", help="write the numbers as JSON; - for standard output, and no table")
    option(
        "--sample",
        metavar="N",
        default="auto",
        help=f"requests to replay, chosen by key; off for all; auto for about {DEFAULT_REQUESTS:,} (default: auto)",
    )
    trace_options.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Read, replay, write, print."""
    from knapcache.sim import report, summary
    from knapcache.sim.capacity import CapacityRange
    from knapcache.sim.files import OutputDirectory, OutputFile
    from knapcache.sim.grid import check_arguments
    from knapcache.sim.plan import make_plan
    from knapcache.sim.sampling import parse_sample

    # All that can be refused is refused before the log is read, which may take long.
    rules, policies, capacities = (
        trace_options.rules(args),
        trace_options.words(args.policy),
        CapacityRange.parse(args.capacity),
    )
    check_arguments(policies, capacities.capacities, args.seed, args.jobs)
    sample = parse_sample(args.sample)
    if args.out is not None:
        report.require_plotting()
    folder = OutputDirectory(args.out) if args.out is not None else None
    out = OutputFile(Path(args.json)) if args.json not in (None, "-") else None
    with executor_options.jobs(args) as jobs:
        trace = trace_options.read(args, rules)
        plan = make_plan(trace, policies, capacities, sample=sample, seed=args.seed, jobs=jobs)
    paths = folder.write(report.files(plan, trace_options.title(args))) if folder else []
    text = summary.to_json(plan, trace_options.title(args))
    if args.json == "-":
        print(text, end="")
        return
    if out:
        out.write(text)
        paths.append(out.path)
    first, last = summary.sentences(plan)
    print(first)
    print_table(summary.table(plan))
    print(last, *paths, sep="\n")
