"""`knapcache prefix TRACE`: compare rules that mark prefixes for a provider's prompt cache."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from knapcache.cli import options, trace_options
from knapcache.cli.output import print_table, print_text, progress_bar
from knapcache.features.prefix.lab.read import FORMATS, PrefixTrace, read_prefix_trace
from knapcache.features.prefix.lab.replay import (
    LEARNED,
    RuleBill,
    check_rules,
    default_rules,
    replay_rules,
    tariff_of,
)
from knapcache.features.prefix.tariff import TARIFFS, Tariff
from knapcache.lab.figures import as_png, new_figure
from knapcache.units import counted

DESCRIPTION = """Replay a trace of prefixes with rules that place marks for a provider's prompt cache, and report what
the input would have cost by each rule. The prices and rules of the cache are those of a tariff.

Prints one row per rule: requests, input tokens, the bill in plain input tokens, and its ratio to the bill without
marks. --json has the exact numbers. The rules, for each time to live of the tariff (5m and 1h for anthropic):

  none              no marks
  last-TTL          a mark at the end of each request
  system2-TTL       marks after the system prompt, at the end of the request
                    that is continued, and at the end
  learned           the prefix tier: no mark, a short or a long one, by what
                    returns; it learns from the bills as the proxy does
  learned-alone, …  one rule of the tier, without the tournament of all rules"""
EXAMPLES = r"""examples:
  knapcache prefix agent_sessions.csv.gz
  knapcache prefix conversation_trace.jsonl --rules last-5m,learned --json -
  knapcache prefix /var/lib/knapcache/prefixes --no-upgrade --plot ratio.png

"""
DEFAULT_TARIFF = "anthropic"
COLOURS = {"none": "#999999", "last": "#56B4E9", "system2": "#E69F00", LEARNED: "#C1121F"}
"""By family of rules."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    trace_options.add_trace_files(parser, EXAMPLES, FORMATS)
    option = parser.add_argument
    default = ",".join(default_rules(TARIFFS[DEFAULT_TARIFF]))
    option("--rules", metavar="LIST", help=f"comma-separated rules (default with {DEFAULT_TARIFF}: {default})")
    option(
        "--tariff",
        metavar="NAME",
        default=DEFAULT_TARIFF,
        help=f"prices and rules of the provider: {', '.join(TARIFFS)} (default: {DEFAULT_TARIFF})",
    )
    option(
        "--no-upgrade",
        action="store_true",
        help="a prefix that was written for a short time stays so, also when it is marked for a long time later",
    )
    options.add_json_file(parser)
    options.add_plot(parser, "a bar chart of the ratios")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    # Everything that can be rejected is rejected before the trace is read.
    tariff = tariff_of(args.tariff)
    rules = trace_options.split_list(args.rules) if args.rules is not None else default_rules(tariff)
    check_rules(rules, tariff)
    out = options.ResultOutput(args)
    name = trace_options.trace_name(args.trace)
    with progress_bar() as bar:
        task = bar.add_task(f"reading {name}", total=None)
        trace = read_prefix_trace(
            args.trace,
            tariff.minimum_of,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
        bar.remove_task(task)
        replay = bar.add_task(f"replaying {len(trace.requests):,} requests", total=len(trace.requests))
        bills = replay_rules(
            trace.requests,
            rules,
            tariff,
            upgrades=not args.no_upgrade,
            progress=lambda done, _: bar.update(replay, completed=done),
        )
    rows = [asdict(bill) for bill in bills]
    paths = out.write(rows, lambda: figure_png(bills, name))
    if paths is None:
        return
    print_text(facts(trace, tariff, upgrades=not args.no_upgrade))
    print_table(rows)
    for path in paths:
        print(path)


def facts(trace: PrefixTrace, tariff: Tariff, *, upgrades: bool) -> str:
    """Return a sentence about the trace and the provider."""
    count, tokens = len(trace.requests), trace.input_tokens
    hours = (trace.requests[-1].time - trace.requests[0].time) / 3600.0
    text = (
        f"{counted(count, 'request')} in {hours:,.1f} hours with {counted(tokens, 'input token')}. Tariff {tariff.name}"
    )
    if tariff.long > tariff.short:
        text += ", which honours" if upgrades else ", which does not honour"
        text += " upgrades to the long time to live"
    return text + ". Bills are in plain input tokens."


def figure_png(bills: Sequence[RuleBill], title: str) -> bytes:
    figure, (axes,) = new_figure(height=0.9 + 0.38 * len(bills))
    names = [bill.rule for bill in bills]
    ratios = [bill.ratio for bill in bills]
    colours = [COLOURS.get(name.partition("-")[0], COLOURS[LEARNED]) for name in names]
    bars = axes.barh(names, ratios, color=colours)
    axes.bar_label(bars, [f"{ratio:.3f}" for ratio in ratios], padding=3, fontsize=9)
    axes.axvline(1.0, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_xlim(0.0, 1.12 * max(1.0, *ratios))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("bill ÷ bill without marks")
    axes.set_title(title)
    return as_png(figure)
