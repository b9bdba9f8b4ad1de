"""`knapcache simulate cluster TRACE`: compare designs in which several proxies share a cache."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli import executor_options, options, trace_options
from knapcache.cli.output import print_table, print_text
from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.sim.trace import Trace

HELP = "simulate proxies that share a cache"
DESCRIPTION = "Simulate deployments on a trace of requests."
CLUSTER_HELP = "compare designs in which several proxies share a cache"
CLUSTER_DESCRIPTION = """Replay traces on a model of several proxies behind a load balancer. Report what each design of
their common cache costs more than one shared cache whose policy sees every request at once.

Prints one row per trace and capacity, and the means: the cost ratio of the shared cache, and the extra cost of each
design in %. All designs have the same capacity in total and decide with the same policy. The designs for n proxies:

"""
EXAMPLES = r"""examples:
  knapcache simulate cluster trace.csv.gz --proxies 10 --hits-late 1000 \
      --settles-late 100 --nursery 2%
  knapcache simulate cluster trace.csv.gz --proxies 3,10,50 -o report
  knapcache simulate cluster monday.csv tuesday.csv --policy lru,adaptive \
      --capacity 10% --design decider,nursery --json -

"""
DEFAULT_POLICY, DEFAULT_CAPACITIES, DEFAULT_PROXIES = "adaptive", "1%,5%,10%,30%", "3,10,50"
"""With the other defaults: the settings of the table in docs/guides/cluster.md."""


def add(commands: Any, *, with_options: bool) -> None:
    """Add the command. Its options import the simulator, so they are added only on use."""
    parser = commands.add_parser("simulate", help=HELP, description=DESCRIPTION)
    if not with_options:
        return
    from knapcache.sim.sharing.designs import DESIGNS, VARIANTS, SharingSettings

    names = parser.add_subparsers(dest="name", metavar="NAME")
    lines = [
        textwrap.fill(design.summary, 76, initial_indent=f"  {name:18}", subsequent_indent=" " * 20)
        for name, design in (DESIGNS | VARIANTS).items()
    ]
    description = CLUSTER_DESCRIPTION + "\n".join(lines)
    epilog = EXAMPLES + trace_options.format_list()
    cluster = names.add_parser("cluster", help=CLUSTER_HELP, description=description, epilog=epilog)
    default = SharingSettings()
    option = cluster.add_argument
    trace_options.add_trace(cluster, "TRACE", "each file is a trace of its own, a directory is read as one trace")
    option(
        "--proxies",
        metavar="LIST",
        default=DEFAULT_PROXIES,
        help=f"comma-separated numbers of proxies (default: {DEFAULT_PROXIES})",
    )
    option(
        "--hits-late",
        metavar="N",
        type=int,
        default=default.hits_late,
        help=f"requests until a decider in another process knows of a hit (default: {default.hits_late})",
    )
    option(
        "--settles-late",
        metavar="N",
        type=int,
        default=default.settles_late,
        help="requests until it knows of a paid answer and its decision is in the store "
        f"(default: {default.settles_late})",
    )
    option(
        "--nursery",
        metavar="SHARE",
        default="2%",
        help="share of the capacity in which undecided answers can be read, in %% (default: 2%%)",
    )
    option(
        "--policy",
        metavar="LIST",
        default=DEFAULT_POLICY,
        help=f"comma-separated policies; `knapcache policies` lists the names (default: {DEFAULT_POLICY})",
    )
    option(
        "--capacity",
        metavar="LIST",
        default=DEFAULT_CAPACITIES,
        help=f"comma-separated capacities (default: {DEFAULT_CAPACITIES.replace('%', '%%')}), "
        + trace_options.CAPACITY_HELP,
    )
    option(
        "--design",
        metavar="LIST",
        help=f"comma-separated designs (default: {','.join(DESIGNS)})",
    )
    options.add_output(cluster, "directory for cluster.json, cluster.csv and cluster.png", metavar="DIR")
    options.add_json_file(cluster)
    trace_options.add_options(cluster)
    cluster.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.sim import figures
    from knapcache.sim.files import OutputDirectory, OutputFile
    from knapcache.sim.grid import check_arguments
    from knapcache.sim.sharing import report
    from knapcache.sim.sharing.compare import SharingComparison, compare_designs
    from knapcache.sim.sharing.designs import SharingSettings, parse_nursery

    # Everything that can be rejected is rejected before the traces are read, which may take minutes.
    rules = trace_options.column_rules(args)
    counts = parse_counts(args.proxies)
    comparison = SharingComparison(
        policies=trace_options.split_list(args.policy),
        capacities=trace_options.split_list(args.capacity),
        proxies=counts,
        settings=SharingSettings(
            proxies=counts[0],
            hits_late=args.hits_late,
            settles_late=args.settles_late,
            nursery=parse_nursery(args.nursery),
            seed=args.seed,
        ),
        designs=trace_options.split_list(args.design) if args.design is not None else None,
    )
    check_arguments(comparison.policies, comparison.capacities, args.seed, args.jobs)
    if args.output is not None:
        figures.new_figure()  # raises MissingExtra before the long work
    folder = OutputDirectory(args.output) if args.output is not None else None
    out = OutputFile(Path(args.json)) if args.json not in (None, "-") else None
    with executor_options.open_executor(args) as jobs:
        traces = read_traces(args, rules)
        rows = compare_designs(traces, comparison, jobs=jobs)
    text = report.to_json(rows)
    paths = []
    if folder:
        title = f"{trace_options.trace_name(args.trace)}: what it costs to share a cache"
        paths = folder.write(
            {
                "cluster.json": text.encode(),
                "cluster.csv": report.to_csv(rows).encode(),
                "cluster.png": report.figure_png(rows, title),
            }
        )
    if args.json == "-":
        print(text, end="")
        return
    if out:
        out.write(text)
        paths.append(out.path)
    print_text(*report.legend(rows))
    for count in report.proxy_counts(rows):
        heading = f"{count} {'proxy' if count == 1 else 'proxies'}" if count else None
        print_table(report.table(rows, count), title=heading)
    for path in paths:
        print(path)


def parse_counts(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers."""
    items = trace_options.split_list(text)
    if not all(item.isascii() and item.isdecimal() for item in items):
        raise InvalidInput(f"proxies must be whole numbers, such as 10 or 3,10,50, not {text!r}")
    return [int(item) for item in items]


def read_traces(args: argparse.Namespace, rules: Any) -> dict[str, Trace]:
    """Read every file as a trace of its own. Traces are named after their files, or after the paths if names repeat."""
    paths: list[Path] = args.trace
    by_name = len({path.name for path in paths}) == len(paths)
    labels = [path.name if by_name and path.name else str(path) for path in paths]
    if len(set(labels)) < len(labels):
        raise InvalidInput(f"a trace is named twice: {', '.join(labels)}")
    return {label: trace_options.read(args, rules, [path]) for label, path in zip(labels, paths, strict=True)}
