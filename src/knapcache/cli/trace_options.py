"""Options that say how a trace is read, shared by the commands of the lab."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from knapcache.cli import options
from knapcache.cli.output import progress_bar
from knapcache.errors import InvalidInput

if TYPE_CHECKING:
    from knapcache.lab.sampling import Sample
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


def add_trace_files(parser: argparse.ArgumentParser, examples: str, formats: Mapping[str, str]) -> None:
    """Add the argument of a command that reads traces of prompts. formats: what is said about each, by name."""
    listed = [textwrap.fill(f"  {name:9} {text}", 78, subsequent_indent=12 * " ") for name, text in formats.items()]
    parser.epilog = f"{examples}trace formats (detected from the content):\n" + "\n".join(listed)
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        nargs="+",
        help="trace file, plain or compressed with gzip or zstd; several files or a directory are read as one trace",
    )


def add_trace(parser: argparse.ArgumentParser, metavar: str) -> None:
    """Add the trace argument, the seed and the executor options."""
    option = parser.add_argument
    option(
        "trace",
        metavar=metavar,
        type=Path,
        nargs="+",
        help="trace file, plain or compressed with gzip or zstd; several files or a directory are read as one trace; "
        "synthetic:NAME=VALUE,… generates requests, such as synthetic:queries=1e6,rounds=1e9,arrivals=zipf:0.9",
    )
    options.add_executor(parser)
    option("--seed", type=int, metavar="N", default=0, help="random seed of policies and samples (default: 0)")


def add_sample(parser: argparse.ArgumentParser, default: str) -> None:
    from knapcache.lab.sampling import DEFAULT_REQUESTS

    parser.add_argument(
        "--sample",
        metavar="N",
        default=default,
        help=f"number of requests to replay, sampled by key; auto: about {DEFAULT_REQUESTS:,}; off: all "
        f"(default: {default})",
    )


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
    option("--key-fields", metavar="FIELDS", help="comma-separated fields that identify a request (default: key)")
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
        key=tuple(split_list(args.key_fields)) if args.key_fields is not None else None,
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


def read(args: argparse.Namespace, rules: ColumnRules, amount: int | None) -> Sample:
    """Read files as one trace with a progress bar on a terminal, and report skipped lines on stderr.

    amount   requests of the sample, as `parse_sample` returns it
    """
    from rich.progress import DownloadColumn

    from knapcache.lab.sampling import Sample, Sampler
    from knapcache.lab.synthetic import PREFIX
    from knapcache.lab.traces import read_trace

    paths: list[Path] = args.trace
    if str(paths[0]).startswith(PREFIX):
        return generate(args, rules, amount)
    first_broken: BrokenLine | None = None
    count = 0
    notices: Counter[str] = Counter()

    def skip(line: BrokenLine) -> None:
        nonlocal count, first_broken
        count += 1
        first_broken = first_broken or line

    sampler = None if amount is None else Sampler(amount, seed=args.seed)
    with progress_bar(DownloadColumn()) as bar:
        task = bar.add_task(f"reading {trace_name(paths)}", total=None)
        trace = read_trace(
            paths,
            rules,
            format=args.format,
            on_broken=skip if args.on_error == "skip" else None,
            on_notice=lambda text: notices.update([text]),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            sampler=sampler,
        )
    if first_broken is not None:
        name = paths[0] if len(paths) == 1 else trace_name(paths)
        lines = "lines" if count > 1 else "line"
        example = f"{first_broken.place}: {first_broken.reason}"
        print(f"knapcache: skipped {count} broken {lines} of {name}, the first: {example}", file=sys.stderr)
    print_notices(notices)
    return Sample.of(trace) if sampler is None else sampler.sample(trace)


def generate(args: argparse.Namespace, rules: ColumnRules, amount: int | None) -> Sample:
    """Draw the requests of a synthetic workload, and sample them as they are drawn."""
    import numpy as np
    from rich.progress import MofNCompleteColumn

    from knapcache.lab.sampling import take_sample
    from knapcache.lab.synthetic import CHUNK, Workload

    if len(args.trace) > 1 or rules.options or args.format is not None:
        raise InvalidInput(f"{args.trace[0]} is generated: other files and options for fields do not apply")
    workload = Workload.parse(str(args.trace[0]))
    chunks = workload.chunks(np.random.default_rng(args.seed))
    with progress_bar(MofNCompleteColumn()) as bar:
        tracked = bar.track(chunks, total=math.ceil(workload.rounds / CHUNK), description="generating")
        return take_sample(tracked, amount, seed=args.seed)


def print_notices(notices: Counter[str]) -> None:
    """Print how many lines were left out and why, the most frequent reasons first."""
    shown = notices.most_common(MAX_NOTICES)
    for text, count in shown:
        print(f"knapcache: {count:,} {'line' if count == 1 else 'lines'} {text}", file=sys.stderr)
    if more := notices.total() - sum(count for _, count in shown):
        print(f"knapcache: {more:,} further lines for {len(notices) - len(shown):,} other reasons", file=sys.stderr)
