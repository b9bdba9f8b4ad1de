"""`knapcache purge PATH`: remove entries from a cache."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli import cache_file, options
from knapcache.cli.inspect import count_of, in_dollars, print_entries
from knapcache.cli.output import print_text
from knapcache.errors import InvalidInput, NotOwner, reason_text
from knapcache.units import ALLOWED_AGES, format_size, parse_age

if TYPE_CHECKING:
    from knapcache.cache.purging import PurgeConditions
    from knapcache.store.base import Store

HELP = "remove entries from a cache"
DESCRIPTION = """Remove the entries of a cache that match every given condition. On a terminal, what would be removed is
shown first, and you are asked to confirm. --dry-run only shows it, and works while another process owns the cache. To
remove entries from a file, stop that process first, or purge through it (the proxy's dashboard or admin API,
Cache.purge); the error has the command. On Valkey or Redis
the owner does it, and all proxies serve the entries no longer within a second."""
MAX_AGE = 1e12


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    cache_file.add_options(parser)
    option = parser.add_argument
    option("--key", metavar="KEY", help="the entry with this key; the first digits suffice if unique")
    option("--model", metavar="NAME", help="entries of this model and of its dated versions")
    option("--tenant", metavar="NAME", help="entries of this tenant or group, or of this namespace")
    option("--older-than", metavar="AGE", type=age, help="entries of at least this age: 90 (s), 15m, 12h, 7d, 4w")
    option("--tag", metavar="TAG", action="append", help="entries with this tag; repeated: with any of the tags")
    system = parser.add_mutually_exclusive_group()
    system.add_argument(
        "--system-prefix", metavar="HEX", help="entries whose system prompt has a digest with these first digits"
    )
    system.add_argument("--system-file", metavar="FILE", type=Path, help="entries with the system prompt in this file")
    option("--all", action="store_true", help="all entries")
    option("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    option("--yes", action="store_true", help="do not ask for confirmation")
    options.add_json(parser, "print JSON; on a terminal it needs --yes or --dry-run")
    parser.set_defaults(execute=execute)


def age(text: str) -> float:
    """Return the seconds of an age such as 90, 15m, 12h or 7d."""
    seconds = parse_age(text)
    if seconds is None or not 0 <= seconds < MAX_AGE:
        raise argparse.ArgumentTypeError(f"an age is {ALLOWED_AGES}, not {text!r}")
    return seconds


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.inspect import purge_store
    from knapcache.cache.opening import is_url, open_to_read, open_to_write
    from knapcache.cache.purging import purge_conditions

    conditions = [args.key, args.model, args.tenant, args.older_than, args.tag, args.system_prefix, args.system_file]
    if args.all == any(condition is not None for condition in conditions):
        names = "--key, --model, --tenant, --older-than, --tag, --system-prefix, --system-file"
        raise InvalidInput(f"give --all, or at least one of {names}")
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not (args.yes or args.dry_run)
    if asks and args.json:
        raise InvalidInput("--json on a terminal needs --yes or --dry-run")
    system = args.system_prefix if args.system_file is None else read_digest(args.system_file)
    given = {"model": args.model, "older_than": args.older_than, "tags": args.tag, "system": system}
    purge_conditions(**given)  # refuses what is not allowed before the file is opened
    if args.key is not None:
        cache_file.find_key(args.key, ())  # rejects what is not hex before the file is opened
    cache = cache_file.locate(args)
    open_store = open_to_read if args.dry_run or is_url(cache.place) else open_to_write
    try:
        store = open_store(cache.place, cache.secret, cache.keys)
    except NotOwner:
        raise NotOwner(in_use(cache, args, given)) from None
    with closing(store):
        chosen = choose(store, args, given, cache.names)
        if args.dry_run or (asks and chosen):
            show(store, chosen, cache.names, as_json=args.json)
        if args.dry_run:
            return
        if asks and chosen and input("Remove them? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing removed")
            return
        removed = sum(purge_store(store, one) for one in chosen)
    if args.json:
        print(json.dumps({"removed": removed}))
        return
    print(f"{count_of(removed)} removed" if removed else f"0 entries removed: {nothing(args)}")


def in_use(cache: cache_file.CacheLocation, args: argparse.Namespace, given: dict[str, Any]) -> str:
    """Return what to do while another process owns the cache: the call of the proxy's admin API, or of the library."""
    from knapcache.cache.opening import open_to_read

    found = given | {"key": args.key, "tenant": args.tenant, "all": args.all or None}
    if args.key is not None:
        with closing(open_to_read(cache.place, cache.secret, cache.keys)) as store:
            found["key"] = cache_file.find_key(args.key, (info.key.hex() for info in store.scan())) or args.key
    conditions = {name: value for name, value in found.items() if value is not None}
    text = f"{cache} is in use by a running process, which must remove the entries"
    if cache.names.secret is None:
        return f"{text}: call Cache.purge there, or stop it first"
    token = Path(cache.place).with_name("admin-token")
    bearer = f"$(cat {token})" if token.is_file() else "$KNAPCACHE_ADMIN_TOKEN"
    call = f"curl -H \"Authorization: Bearer {bearer}\" --json '{json.dumps(conditions)}' {cache.url}/admin/v1/purge"
    return f"{text}: use Purge on its dashboard, or run {call}"


def read_digest(file: Path) -> str:
    """Return the digest of the system prompt in a file."""
    from knapcache.keys.system_prompt import text_digest

    try:
        found = text_digest(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read the system prompt from {file}: {reason_text(error)}") from None
    if not found:
        raise InvalidInput(f"{file} is empty: it must have the text of a system prompt")
    return found


def nothing(args: argparse.Namespace) -> str:
    """Return why nothing was removed."""
    return "the cache is empty" if args.all else "none meets every condition"


def choose(
    store: Store, args: argparse.Namespace, given: dict[str, Any], names: cache_file.TenantNames
) -> list[PurgeConditions]:
    """Return the conditions of what to remove, once for each namespace of the tenant."""
    from knapcache.cache.purging import purge_conditions

    key = None
    if args.key is not None:
        key = cache_file.find_key(args.key, (info.key.hex() for info in store.scan()))
        if key is None:
            return []
    tenants: list[str | None] = [None]
    if args.tenant is not None:
        namespaces = sorted({info.tenant for info in store.scan()})
        tenants = [*names.find(args.tenant, namespaces)]
        if not tenants and namespaces:
            known = ", ".join(names.name_of(each) or "(none)" for each in namespaces[: cache_file.MAX_CANDIDATES])
            print(f"knapcache: no entry is of tenant {args.tenant!r}; tenants with entries: {known}", file=sys.stderr)
    return [purge_conditions(**given, key=key, tenant=tenant) for tenant in tenants]


def show(store: Store, chosen: list[PurgeConditions], names: cache_file.TenantNames, *, as_json: bool) -> None:
    """Print how much would be removed, and the most valuable entries of it."""
    from knapcache.cache.inspect import preview_purge

    previews = [preview_purge(store, one) for one in chosen]
    entries, size = (sum(one[name] for one in previews) for name in ("entries", "bytes"))
    rows = sorted((row for one in previews for row in one["rows"]), key=lambda row: -row["value"])
    if as_json:
        print(json.dumps({"entries": entries, "bytes": size, "rows": rows}, indent=2))
        return
    if not entries:
        print("0 entries would be removed")
        return
    print_entries(rows, names, [info.key.hex() for info in store.scan()], in_dollars(rows))
    most = "" if len(rows) == entries else f" These are the {len(rows)} most valuable of them."
    print_text(f"{count_of(entries)} would be removed, {format_size(size)}.{most}")
