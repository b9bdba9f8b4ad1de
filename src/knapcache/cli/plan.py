"""`knapcache plan LOG`: recommend a capacity and a policy from a log."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from knapcache.cli import options, trace_options
from knapcache.cli.output import print_table, print_text

HELP = "recommend a cache capacity from a log"
DESCRIPTION = """Replay a log with several policies over a range of capacities. Report what each capacity would have
saved on this log, what one more MB would have saved, and the smallest capacity that reaches 90 % of the largest
possible saving. A log of at least a day is also projected: the saving per day, with its range. Long logs are sampled
by key while they are read, in a memory that does not grow with the log.

With --output, also write an interactive report that works offline (plan.html), plan.png and plan.json."""
EXAMPLES = r"""examples:
  knapcache plan calls.jsonl --prices auto
  knapcache plan batch_input.jsonl batch_output.jsonl --prices auto
  knapcache plan export.jsonl --format helicone
  knapcache plan trace.csv.gz --capacity 64MB..16GB:9 -o report
  knapcache plan trace.parquet --policy lru,gdsf-cost --sample off \
      --json plan.json

"""


def add_options(parser: argparse.ArgumentParser) -> None:
    from knapcache.lab.plan import POLICIES, RANGE

    parser.description, parser.epilog = DESCRIPTION, EXAMPLES + trace_options.format_list()
    option = parser.add_argument
    trace_options.add_trace(parser, "LOG")
    policies, capacities = ",".join(POLICIES), RANGE.replace("%", "%%")
    option(
        "--policy", metavar="LIST", default=policies, help=f"comma-separated policies to compare (default: {policies})"
    )
    option(
        "--capacity",
        metavar="RANGE",
        default=RANGE,
        help=f"LOW..HIGH, LOW..HIGH:COUNT or a comma-separated list (default: {capacities}), "
        + trace_options.CAPACITY_HELP,
    )
    options.add_output(parser, "directory for plan.html, plan.png and plan.json", metavar="DIR")
    options.add_json_file(parser, "numbers")
    trace_options.add_sample(parser, default="auto")
    option("--progress", action="store_true", help="write the progress to stderr as JSON lines, for other programs")
    trace_options.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.lab import report, summary
    from knapcache.lab.capacity import CapacityRange
    from knapcache.lab.files import OutputDirectory
    from knapcache.lab.grid import check_arguments
    from knapcache.lab.plan import make_plan
    from knapcache.lab.sampling import parse_sample

    # Everything that can be rejected is rejected before the log is read, which may take minutes.
    rules = trace_options.column_rules(args)
    policies = trace_options.split_list(args.policy)
    capacities = CapacityRange.parse(args.capacity)
    check_arguments(policies, capacities.capacities, args.seed, args.jobs)
    sample = parse_sample(args.sample)
    if args.output is not None:
        report.require_plotting()
    folder = OutputDirectory(args.output) if args.output is not None else None
    out = options.JsonOutput(args.json)
    with options.open_executor(args) as jobs:
        source = trace_options.read(args, rules, sample)
        on_progress = progress_lines(len(policies)) if args.progress else None
        plan = make_plan(source, policies, capacities, seed=args.seed, jobs=jobs, on_progress=on_progress)
    name = trace_options.trace_name(args.trace)
    paths = folder.write(report.files(plan, name)) if folder else []
    text = summary.to_json(plan, name)
    if out.write(text, paths):
        return
    print_text(summary.facts(plan), summary.legend(plan))
    print_table(summary.table(plan))
    print_text(summary.recommendation(plan))
    for path in paths:
        print(path)


def progress_lines(policies: int) -> Callable[[int, int], None]:
    """Return a function that writes finished replays and all replays to stderr, once per replay of every policy."""

    def write(done: int, total: int) -> None:
        if done % policies == 0:
            print(json.dumps({"done": done, "total": total}), file=sys.stderr, flush=True)

    print(json.dumps({"done": 0, "total": 0}), file=sys.stderr, flush=True)
    return write
