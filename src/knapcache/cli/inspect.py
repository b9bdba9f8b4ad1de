"""`knapcache inspect PATH`: what lies in a cache, and what it is worth."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput

HELP = "show what a cache holds, and what it is worth"
TEXT = """List the entries of a cache's file by value: what each cost, how often it was asked for, the room it takes.
The value is requests times cost. Below the totals stands the price of a megabyte: value per room of the least valuable
tenth of what is kept. Only reads, and works while another process owns the file."""


def add(commands: Any) -> None:
    """Put the command into the parser."""
    parser = commands.add_parser("inspect", help=HELP, description=TEXT)
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, with every entry unless --top says less")
    parser.add_argument("--top", metavar="N", type=int, help="entries to show (default: 20, with --json all)")
    parser.set_defaults(execute=execute)


def add_file(parser: argparse.ArgumentParser) -> None:
    """What the commands on a cache's file share."""
    parser.add_argument("path", metavar="PATH", type=Path, help="the cache's file")
    parser.add_argument(
        "--secret-file", metavar="FILE", type=Path, help="file with the secret that the cache was made with"
    )


def secret_of(args: argparse.Namespace) -> bytes | None:
    """The secret, without the end of its line."""
    if args.secret_file is None:
        return None
    try:
        content: bytes = args.secret_file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"the secret cannot be read: {error}") from None
    return content.rstrip(b"\r\n")


def execute(args: argparse.Namespace) -> None:
    """Look, and print."""
    from knapcache.cache.inspect import look, open_to_read

    if args.top is not None and args.top < 0:
        raise InvalidInput(f"--top must not be negative, not {args.top}")
    with open_to_read(args.path, secret_of(args)) as store:
        found = look(store)
    rows = found.pop("rows")
    shown = rows[: args.top if args.top is not None else len(rows) if args.json else 20]
    if args.json:
        print(json.dumps({**found, "rows": shown}, indent=2))
        return
    if shown:
        print_table([{**row, "key": row["key"][:12]} for row in shown])
    more = f" ({len(rows) - len(shown)} more entries)" if len(rows) > len(shown) else ""
    print(f"{found['entries']:,} entries, {found['bytes']:,} bytes, {found['disk_bytes']:,} on disk{more}")
    print(f"cost {found['cost']:.6g}, value {found['value']:.6g}, price of a megabyte {found['price_per_mb']:.6g}")
