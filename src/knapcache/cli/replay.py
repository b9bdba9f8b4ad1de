"""`knapcache replay TRACE`: replay a trace against policies and capacities."""

from __future__ import annotations

import argparse
import json

from knapcache.cli import options, trace_options
from knapcache.cli.output import print_table, print_text

HELP = "replay a trace against policies and capacities"
DESCRIPTION = """Replay a trace of requests against cache policies and report what each policy would have cost.

Prints the requests and their cost without a cache, and one row per capacity and policy: hits, the cost of all misses
(miss cost), its ratio to the cost without a cache (cost ratio), the largest total size of stored answers (peak size),
Oracle calls and run time in seconds. --json has the exact numbers. With --sample, a sample of the keys is replayed, and
the rows are estimates for the whole trace with standard errors."""
EXAMPLES = r"""examples:
  knapcache replay trace.csv.gz --policy lru,gdsf-cost --capacity 10%,30%
  knapcache replay calls.jsonl --prices auto --policy lru,static \
      --capacity 4GB --json rows.json
  knapcache replay trace.parquet --key-fields prompt_hash --size bytes \
      --cost usd --policy lru --capacity 64MB
  knapcache replay synthetic:queries=1e6,rounds=1e9,arrivals=zipf:0.9 \
      --policy lru,adaptive --capacity 1%,10% --sample auto
  knapcache replay trace.csv.gz --policy lru,vsocb-lazy --capacity 1%,50% \
      --scheduler tcp://host:8786

"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES + trace_options.format_list()
    option = parser.add_argument
    trace_options.add_trace(parser, "TRACE")
    option(
        "--policy", metavar="LIST", required=True, help="comma-separated policies; `knapcache policies` lists the names"
    )
    option(
        "--capacity",
        metavar="LIST",
        required=True,
        help=f"comma-separated capacities, {trace_options.CAPACITY_HELP}",
    )
    options.add_output(parser, "directory for replay.json, with the rows", metavar="DIR")
    options.add_json_file(parser)
    trace_options.add_sample(parser, default="off")
    trace_options.add_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.lab import summary
    from knapcache.lab.files import OutputDirectory
    from knapcache.lab.grid import check_arguments, replay_grid
    from knapcache.lab.sampling import parse_sample

    rules = trace_options.column_rules(args)
    policies = trace_options.split_list(args.policy)
    capacities = check_arguments(policies, trace_options.split_list(args.capacity), args.seed, args.jobs)
    amount = parse_sample(args.sample)
    out = options.JsonOutput(args.json)
    folder = OutputDirectory(args.output) if args.output is not None else None
    with options.open_executor(args) as jobs:  # connects first: reading a long trace comes after all checks
        sample = trace_options.read(args, rules, amount)
        rows = replay_grid(sample, policies, capacities, seed=args.seed, jobs=jobs)
    text = json.dumps(rows, indent=1, allow_nan=False) + "\n"
    paths = folder.write({"replay.json": text.encode()}) if folder else []
    if out.write(text, paths):
        return
    print_text(summary.sample_facts(sample))
    print_table(summary.replay_table(rows, sample.stats.unit))
    for path in paths:
        print(path)
