"""`knapcache policies`: what there is to choose from."""

from __future__ import annotations

import argparse
import json
from typing import Any

from knapcache.cli.output import print_table
from knapcache.policy.registry import BOUNDS, SPECS, Bound, Spec


def add(commands: Any) -> None:
    """Put the command into the parser."""
    text = "List every policy and bound: name, whether it can run online, what it does, where it comes from."
    parser = commands.add_parser("policies", help="list the cache policies", description=text)
    parser.add_argument("--json", action="store_true", help="print JSON: name, online, summary, paper")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Print the list."""
    entries: list[Spec | Bound] = [*SPECS.values(), *BOUNDS.values()]
    rows = [{"name": s.name, "online": s.online, "summary": s.summary, "paper": s.paper} for s in entries]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table([{**row, "online": "yes" if row["online"] else "no"} for row in rows])
