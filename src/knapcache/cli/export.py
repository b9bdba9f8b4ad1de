"""`knapcache export PATH`: write the entries of a cache as lines of JSON."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from knapcache.cli import cache_file
from knapcache.cli.inspect import count_of

if TYPE_CHECKING:
    from knapcache.store.base import Store

HELP = "write the entries of a cache as lines of JSON"
DESCRIPTION = """Write the entries of a cache to standard output, one line of JSON each, the most valuable per byte
first: `knapcache export PATH > entries.jsonl`. The file has requests and answers in plain text, and no keys or secrets.
`knapcache import` reads it. The cache is only read; another process may own it. Expired entries are left out."""


def add(commands: Any) -> None:
    parser = commands.add_parser("export", help=HELP, description=DESCRIPTION)
    cache_file.add_options(parser)
    option = parser.add_argument
    option("--model", metavar="NAME", help="only entries of this model and of its dated versions")
    option("--tag", metavar="TAG", action="append", help="only entries with this tag; repeated: with any of the tags")
    option("--tenant", metavar="NAME", help="only entries of this tenant or group, or of this namespace")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.opening import open_to_read
    from knapcache.cache.purging import purge_conditions

    conditions = purge_conditions(model=args.model, tags=args.tag)
    cache = cache_file.locate(args)
    with closing(open_to_read(cache.place, cache.secret, cache.keys)) as store:
        written = write(store, conditions.filter(time.time()), args.tenant, cache.names)
    sys.stdout.flush()
    print(f"{count_of(written)} exported", file=sys.stderr)


def write(store: Store, chosen: Any, tenant: str | None, names: cache_file.TenantNames) -> int:
    """Write the entries that are chosen, with a progress bar. Return how many."""
    from rich.console import Console
    from rich.progress import Progress

    from knapcache.cache.migrate import read_source
    from knapcache.cache.transfer import entry_line, header_line
    from knapcache.store.base import expired

    found, written = read_source(store), 0
    namespaces = None if tenant is None else names.find(tenant, {info.tenant for info in found.infos})
    out = sys.stdout.buffer
    out.write(header_line())
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        for info in bar.track(found.infos, description="entries"):
            if expired(info.expires, time.time()) or not chosen(info):
                continue
            if namespaces is not None and info.tenant not in namespaces:
                continue
            entry = store.peek(info.key)
            if entry is not None:
                requests = found.requests.get(info.key, 1.0)
                out.write(entry_line(entry, requests, names.principals.get(entry.tenant)))
                written += 1
    return written
