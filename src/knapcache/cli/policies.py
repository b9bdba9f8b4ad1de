"""`knapcache policies`: list policies and bounds."""

from __future__ import annotations

import argparse
import json
import sys

from knapcache.cli import options
from knapcache.cli.output import output_width, print_table, print_text
from knapcache.policy import registry

HELP = "list cache policies"
DESCRIPTION = """List every policy and bound: its name, whether it runs online (without knowledge of future requests),
a summary, and the paper that describes it."""
MIN_WIDTH = 120
"""Columns of a terminal on which the papers are shown, too."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    options.add_json(parser, "print JSON with name, online, summary and paper")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Print the list. Plugins that cannot be used are named on stderr."""
    entries, problems = registry.available()
    rows = [{"name": s.name, "online": s.online, "summary": s.summary, "paper": s.paper} for s in entries]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        hidden = () if output_width() >= MIN_WIDTH else ("paper",)
        shown = [{**row, "online": "yes" if row["online"] else "no"} for row in rows]
        print_table([{name: value for name, value in row.items() if name not in hidden} for row in shown])
        if hidden:
            print_text("A wider terminal and --json also show the paper that describes each policy.")
    for problem in problems:
        print(f"knapcache: {problem}", file=sys.stderr)
