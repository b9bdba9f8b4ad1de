"""`knapcache inspect PATH`: list the entries of a cache and their value, or show one of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from knapcache.cli import cache_file, options
from knapcache.cli.output import print_table, print_text, printable
from knapcache.errors import InvalidInput
from knapcache.units import counted, dollars, format_age, format_size, number

if TYPE_CHECKING:
    from knapcache.store.base import Store

HELP = "list the entries of a cache"
DESCRIPTION = """List the entries of a cache by value, largest first: cost, requests and size of each. The value
is requests times cost. Below the totals is the value per megabyte of the least valuable tenth of the entries, which
are evicted first. --key shows one entry; --model, --tag and --tenant select entries as `purge` does. For a cache on
Valkey or Redis, the server and its limits are shown as well. The cache is only read; another process may own it."""
DEFAULT_ROWS = 20
Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    cache_file.add_options(parser)
    option = parser.add_argument
    option("--key", metavar="KEY", help="show the entry with this key; the first digits suffice if unique")
    cache_file.add_selection(parser)
    options.add_json(parser)
    option("--top", metavar="N", type=int, help="number of entries to list (default: 20; with --json all)")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.inspect import inspect_store
    from knapcache.cache.opening import open_to_read

    if args.top is not None and args.top < 0:
        raise InvalidInput(f"--top must not be negative, not {args.top}")
    cache = cache_file.locate(args)
    with closing(open_to_read(cache.place, cache.secret, cache.keys)) as store:
        found = inspect_store(store)
        found["engine"] = server_of(cache, store)
    rows: list[Row] = found.pop("rows")
    if args.key is not None:
        show_entry(args, rows, cache)
        return
    every = len(rows)
    if args.model is not None or args.tag is not None or args.tenant is not None:
        rows = select(rows, args, cache.names)
        found |= {"entries": len(rows), "bytes": sum(row["size"] for row in rows)}
        found |= {name: sum(row[name] for row in rows) for name in ("cost", "value")}
    shown = rows[: args.top if args.top is not None else len(rows) if args.json else DEFAULT_ROWS]
    if args.json:
        print(json.dumps({**found, "rows": shown}, indent=2))
        return
    server, disk = found["engine"], format_size(found["disk_bytes"])
    if server is not None:
        print_server(server)
    where = "on disk" if server is None else "in the server"
    if not rows:
        empty = "is empty" if not every else f"has {count_of(every)}, and none meets every condition"
        print_text(f"0 entries: {cache} {empty}, {disk} {where}.")
        return
    money = in_dollars(rows)
    print_entries(shown, cache.names, [row["key"] for row in rows], money)
    more = (
        f" ({counted(len(rows) - len(shown), 'more entry', 'more entries')}: --top {len(rows)})"
        if len(rows) > len(shown)
        else ""
    )
    of_all = f" of {every:,}" if every > len(rows) else ""
    print_text(
        f"{count_of(found['entries'])}{of_all}, {format_size(found['bytes'])}, {disk} {where}{more}.",
        f"Cost {format_cost(found['cost'], money)}, value {format_cost(found['value'], money)}, least value per MB "
        f"{format_cost(found['least_value_per_mb'], money)}{' in the whole cache' if of_all else ''}.",
    )


def select(rows: Sequence[Row], args: argparse.Namespace, names: cache_file.TenantNames) -> list[Row]:
    """Return the rows that meet every condition of the arguments, which are those of `purge`."""
    tags = set(args.tag or ())
    namespaces = None if args.tenant is None else set(names.find(args.tenant, {row["tenant"] for row in rows}))
    return [
        row
        for row in rows
        if (args.model is None or row["model"] == args.model)
        and (not tags or not tags.isdisjoint(row["tags"]))
        and (namespaces is None or row["tenant"] in namespaces)
    ]


def server_of(cache: cache_file.CacheLocation, store: Store) -> dict[str, Any] | None:
    """Return the server of a cache on Valkey or Redis, and its limits; None for a file."""
    from knapcache.cache.opening import is_url

    if not is_url(cache.place):
        return None
    from knapcache.store.redis.existing import overview
    from knapcache.store.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    return overview(store)._asdict()


def print_server(server: dict[str, Any]) -> None:
    """Print the server and the limits of a cache on it."""
    used, limit, nursery_used, nursery_limit = (
        format_size(server[name]) for name in ("used", "limit", "nursery_used", "nursery_limit")
    )
    shards = "1 shard" if server["shards"] == 1 else f"{server['shards']} shards"
    print_text(
        f"{server['engine']}, {server['topology']}, {shards}, "
        f"{'owned by a process' if server['owner'] else 'no owner'}.",
        f"Entries {used} of {limit}, nursery {nursery_used} of {nursery_limit}.",
    )


def show_entry(args: argparse.Namespace, rows: Sequence[Row], cache: cache_file.CacheLocation) -> None:
    """Print one entry."""
    key = cache_file.find_key(args.key, [row["key"] for row in rows])
    row = next((row for row in rows if row["key"] == key), None)
    if row is None:
        raise InvalidInput(f"no entry has a key that begins with {args.key}: {count_of(len(rows))} in {cache}")
    if args.json:
        print(json.dumps(row, indent=2))
        return
    money = in_dollars(rows)
    values = {
        "key": row["key"],
        "model": row["model"],
        "tenant": cache.names.name_of(row["tenant"]),
        "tags": ", ".join(row["tags"]),
        "system": row["system"],
        "size": format_size(row["size"]),
        "cost": format_cost(row["cost"], money),
        "requests": f"{row['requests']:,.4g}" + ("" if row["per_day"] is None else f", {row['per_day']:,.4g} per day"),
        "value": format_cost(row["value"], money),
        "stored": f"{format_age(row['age'])} ago",
        "expires": expiry(row["expires_in"]),
    }
    for name, value in values.items():
        print(f"{name:9}{printable(value) or '-'}")


def print_entries(rows: Sequence[Row], names: cache_file.TenantNames, keys: Sequence[str], money: bool) -> None:
    """Print rows of entries. keys: those that a short key must differ from."""
    length = cache_file.short_length(keys)
    tenants = len({row["tenant"] for row in rows}) > 1
    expiring = any(row["expires_in"] is not None for row in rows)
    tags = any(row["tags"] for row in rows)
    print_table(
        [
            {
                "key": row["key"][:length],
                "model": row["model"],
                **({"tenant": names.name_of(row["tenant"])} if tenants else {}),
                **({"tags": ", ".join(row["tags"]) or "-"} if tags else {}),
                "size": format_size(row["size"]),
                "cost": format_cost(row["cost"], money),
                "requests": f"{row['requests']:,.4g}",
                "value": format_cost(row["value"], money),
                "stored": f"{format_age(row['age'])} ago",
                **({"expires": expiry(row["expires_in"])} if expiring else {}),
            }
            for row in rows
        ]
    )


def in_dollars(rows: Sequence[Row]) -> bool:
    """Return whether costs are dollars: of every entry the price is known. Other costs are estimates for the policy."""
    return bool(rows) and all(row["usd"] is not None and row["usd"] == row["cost"] for row in rows)


def format_cost(cost: float, money: bool) -> str:
    return dollars(cost) if money else number(cost)


def expiry(seconds: float | None) -> str:
    """Return when an entry expires, relative to now."""
    if seconds is None:
        return "never"
    return f"in {format_age(seconds)}" if seconds > 0 else "expired"


def count_of(entries: int) -> str:
    return counted(entries, "entry", "entries")
