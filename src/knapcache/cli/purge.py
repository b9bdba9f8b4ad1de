"""`knapcache purge PATH`: remove answers from a cache's file."""

from __future__ import annotations

import argparse
from typing import Any

from knapcache.cli.inspect import add_file, secret_of
from knapcache.errors import InvalidInput, NotOwner

HELP = "remove answers from a cache"
TEXT = """Remove the entries of a cache's file that meet every condition given. While a process runs the cache, that
process owns the file, and has to be asked instead."""
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add(commands: Any) -> None:
    """Put the command into the parser."""
    parser = commands.add_parser("purge", help=HELP, description=TEXT)
    add_file(parser)
    option = parser.add_argument
    option("--key", metavar="HEX", help="the entry with this key")
    option("--model", metavar="NAME", help="entries of this model")
    option("--tenant", metavar="NAME", help="entries of this tenant (namespace)")
    option("--older-than", metavar="AGE", type=seconds, help="entries of at least this age: 90, 15m, 12h, 30d")
    option("--all", action="store_true", help="every entry")
    parser.set_defaults(execute=execute)


def seconds(text: str) -> float:
    """An age as people write it."""
    number, unit = (text[:-1], text[-1:]) if text[-1:].isalpha() else (text, "")
    try:
        found = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        found = -1.0
    if not 0 <= found < 1e12:
        raise argparse.ArgumentTypeError(f"an age is a number with s, m, h or d behind it, not {text!r}")
    return found


def execute(args: argparse.Namespace) -> None:
    """Remove, and say how many."""
    from knapcache.cache.inspect import open_to_write
    from knapcache.cache.options import checked_digest
    from knapcache.store.base import wall_clock

    given = [args.key, args.model, args.tenant, args.older_than]
    if args.all == any(condition is not None for condition in given):
        raise InvalidInput("say what to purge: --all, or some of --key, --model, --tenant, --older-than")
    key = checked_digest(args.key)
    try:
        store = open_to_write(args.path, secret_of(args))
    except NotOwner:
        raise NotOwner(f"{args.path} belongs to a process that is running: purge there, or end it first") from None
    with store:
        before = None if args.older_than is None else wall_clock() - args.older_than
        if key is None:
            gone = len(store.purge(tenant=args.tenant, model=args.model, before=before))
        else:
            entry = store.get(key)
            meets = (
                entry is not None
                and args.tenant in (None, entry.tenant)
                and args.model in (None, entry.model)
                and (before is None or entry.created < before)
            )
            if meets:
                store.apply(evict=[key]).result()
            gone = int(meets)
    print(f"{gone} entries removed")
