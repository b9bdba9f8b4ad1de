"""Writes `reference/cli.md` from the command-line parsers: `python docs/cli_reference.py`. A test compares the two."""

from __future__ import annotations

import argparse
import re
import textwrap
from pathlib import Path

from knapcache.cli.main import build_parser

PAGE = Path(__file__).resolve().parent / "reference" / "cli.md"
HEAD = """# Command line

`knapcache COMMAND --help` prints the same text. Results go to standard output, progress and errors to standard error.
Progress is shown on a terminal only. Bad input is one line, with exit code 2. Ctrl-C ends with exit code 130.
`python -m knapcache` is the same program. `python docs/cli_reference.py` writes this page.

Options of one name mean the same in every command:

| option | meaning |
|---|---|
| `-o`, `--output` | file to write, or directory for several files |
| `--json` | print JSON; in commands that compute a table, FILE may follow, to which it is written beside the table |
| `--plot` | PNG file to write |
| `--config` | settings file of the proxy; default: `$KNAPCACHE_CONFIG` |
| `--url`, `--ca` | base URL of a running proxy, and the PEM file of the certificates to trust |
| `--concurrency` | maximum requests in flight |
| `--key` | key of an entry, or its first digits |
| `--api-key`, `--api-key-env` | API key that is sent to the proxy, or the environment variable that has it |
| `--key-fields` | fields of a trace that identify a request |

Old names work until version 2.0, with a note on standard error: `--out` for `--output`, `--clients` of `demo` for
`--concurrency`, `--key` of `demo` for `--api-key`, `--key-env` of `warm` for `--api-key-env`, `--key` of `replay` and
`plan` for `--key-fields`, and `--policies` and `--capacities` of `kv` and of experiments
for `--policy` and `--capacity`.
"""


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def cell(text: str) -> str:
    """Return help text as one table cell."""
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")


def rows(parser: argparse.ArgumentParser) -> list[str]:
    """Return a table row for every argument and option except `--help`."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        value = f"[{value}]" if action.option_strings and action.nargs == "?" else value
        names = [f"{option} {value}".strip() for option in action.option_strings] or [value]
        found.append(f"| {', '.join(f'`{name}`' for name in names)} | {cell(str(action.help or ''))} |")
    return found


def section(title: str, parser: argparse.ArgumentParser, level: int) -> list[str]:
    """Return the Markdown of one command and its subcommands."""
    lines = ["", f"{'#' * level} {title}", ""]
    for block in re.split(r"\n\s*\n", (parser.description or "").strip("\n")):
        if re.search(r"^\s", block, re.MULTILINE):  # commands and formulas, which --help does not wrap either
            lines += ["```text", textwrap.dedent(block), "```", ""]
        elif block:
            lines += [" ".join(block.split()), ""]
    if table := rows(parser):
        lines += ["| argument | meaning |", "|---|---|", *table]
    for name, sub in subparsers(parser).items():
        lines += section(f"{title} {name}", sub, level + 1)
    return lines


def page() -> str:
    """Return the whole page."""
    lines = []
    for command in subparsers(build_parser([])):
        lines += section(f"knapcache {command}", subparsers(build_parser([command]))[command], 2)
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
