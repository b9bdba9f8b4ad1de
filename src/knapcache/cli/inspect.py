"""`knapcache inspect PATH`: list the entries of a cache file and their value."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput

HELP = "list the entries of a cache file"
DESCRIPTION = """List the entries of a cache file by value, largest first: cost, requests and size of each. The value
is requests times cost. The price of a megabyte, below the totals, is the value per megabyte of the least valuable
tenth of the entries. The file is only read; another process may own it."""
DEFAULT_ROWS = 20


def add(commands: Any) -> None:
    parser = commands.add_parser("inspect", help=HELP, description=DESCRIPTION)
    add_file_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--top", metavar="N", type=int, help="number of entries to list (default: 20; with --json all)")
    parser.set_defaults(execute=execute)


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `inspect` and `purge` share."""
    parser.add_argument("path", metavar="PATH", type=Path, help="cache file")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret of the cache")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--encryption-key-file", metavar="FILE", type=Path, help="file with the encryption key")
    keys.add_argument("--encryption-key-env", metavar="VAR", help="environment variable with the encryption key")


def read_secret(args: argparse.Namespace) -> bytes | None:
    """Return the secret without its line end, or None if no file was given."""
    if args.secret_file is None:
        return None
    try:
        content: bytes = args.secret_file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read the secret: {error}") from None
    return content.rstrip(b"\r\n")


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.inspect import inspect_store, open_to_read
    from knapcache.store.encryption import read_keys

    if args.top is not None and args.top < 0:
        raise InvalidInput(f"--top must not be negative, not {args.top}")
    keys = read_keys(args.encryption_key_env, args.encryption_key_file)
    with open_to_read(args.path, read_secret(args), keys) as store:
        found = inspect_store(store)
    rows = found.pop("rows")
    shown = rows[: args.top if args.top is not None else len(rows) if args.json else DEFAULT_ROWS]
    if args.json:
        print(json.dumps({**found, "rows": shown}, indent=2))
        return
    if shown:
        print_table([{**row, "key": row["key"][:12]} for row in shown])
    more = f" ({len(rows) - len(shown)} more entries)" if len(rows) > len(shown) else ""
    entries = "1 entry" if found["entries"] == 1 else f"{found['entries']:,} entries"
    print(f"{entries}, {found['bytes']:,} bytes, {found['disk_bytes']:,} bytes on disk{more}")
    print(f"cost {found['cost']:.6g}, value {found['value']:.6g}, price of a megabyte {found['price_per_mb']:.6g}")
