"""`knapcache purge PATH`: remove entries from a cache file."""

from __future__ import annotations

import argparse
from typing import Any

from knapcache.cli.inspect import add_file_options, read_secret
from knapcache.errors import InvalidInput, NotOwner

HELP = "remove entries from a cache file"
DESCRIPTION = """Remove the entries of a cache file that match every given condition. A running cache owns its file:
stop it first, or purge through its own interface (the proxy's admin API, Cache.purge)."""
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add(commands: Any) -> None:
    parser = commands.add_parser("purge", help=HELP, description=DESCRIPTION)
    add_file_options(parser)
    option = parser.add_argument
    option("--key", metavar="HEX", help="the entry with this key (64 hex digits)")
    option("--model", metavar="NAME", help="entries of this model")
    option("--tenant", metavar="NAME", help="entries of this tenant (namespace)")
    option("--older-than", metavar="AGE", type=parse_age, help="entries of at least this age: 90 (s), 15m, 12h, 30d")
    option("--all", action="store_true", help="all entries")
    parser.set_defaults(execute=execute)


def parse_age(text: str) -> float:
    """Return the seconds of an age such as 90, 15m, 12h or 30d."""
    number, unit = (text[:-1], text[-1:]) if text[-1:].isalpha() else (text, "")
    try:
        seconds = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds < 1e12:
        raise argparse.ArgumentTypeError(f"an age is a number with an optional unit s, m, h or d, not {text!r}")
    return seconds


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.inspect import open_to_write
    from knapcache.cache.options import checked_digest
    from knapcache.store.base import wall_clock
    from knapcache.store.encryption import read_keys

    conditions = [args.key, args.model, args.tenant, args.older_than]
    if args.all == any(condition is not None for condition in conditions):
        raise InvalidInput("give --all, or at least one of --key, --model, --tenant, --older-than")
    key = checked_digest(args.key)
    try:
        keys = read_keys(args.encryption_key_env, args.encryption_key_file)
        store = open_to_write(args.path, read_secret(args), keys)
    except NotOwner:
        raise NotOwner(f"{args.path} is in use by a running process: purge there, or stop it first") from None
    with store:
        before = None if args.older_than is None else wall_clock() - args.older_than
        if key is None:
            removed = len(store.purge(tenant=args.tenant, model=args.model, before=before))
        else:
            entry = store.get(key)
            matches = (
                entry is not None
                and args.tenant in (None, entry.tenant)
                and args.model in (None, entry.model)
                and (before is None or entry.created < before)
            )
            if matches:
                store.apply(evict=[key]).result()
            removed = int(matches)
    print(f"{removed} entries removed")
