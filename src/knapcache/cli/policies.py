"""`knapcache policies`: list every policy and bound."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from knapcache.cli.output import print_table
from knapcache.policy import registry


def add(commands: Any) -> None:
    """Put the command into the parser."""
    text = "List every policy and bound: name, whether it can run online, what it does, where it comes from."
    parser = commands.add_parser("policies", help="list the cache policies", description=text)
    parser.add_argument("--json", action="store_true", help="print JSON: name, online, summary, paper")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Print the list. Plugins that cannot be used are named on stderr."""
    entries, problems = registry.available()
    rows = [{"name": s.name, "online": s.online, "summary": s.summary, "paper": s.paper} for s in entries]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table([{**row, "online": "yes" if row["online"] else "no"} for row in rows])
    for problem in problems:
        print(f"knapcache: {problem}", file=sys.stderr)
