"""`knapcache export PATH`: write the entries of a cache as lines of JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from knapcache.cli import cache_file, options
from knapcache.cli.inspect import count_of
from knapcache.cli.output import progress_bar, write_lines

if TYPE_CHECKING:
    from knapcache.store.base import Store

HELP = "write the entries of a cache as lines of JSON"
DESCRIPTION = """Write the entries of a cache, one line of JSON each, the most valuable per byte first:
`knapcache export PATH -o entries.jsonl`. A line has the answer's cost and the requests that the policy has counted. The
file has requests and answers in plain text, and no keys or secrets. `knapcache import` reads it: `knapcache export FROM
| knapcache import - TO` copies a cache. The cache is only read; another process may own it. Expired entries are left
out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    cache_file.add_options(parser)
    cache_file.add_selection(parser)
    options.add_output(parser, "file to write (default: standard output)")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.opening import open_to_read
    from knapcache.cache.purging import purge_conditions

    conditions = purge_conditions(model=args.model, tags=args.tag)
    cache = cache_file.locate(args)
    with closing(open_to_read(cache.place, cache.secret, cache.keys)) as store:
        lines = lines_of(store, conditions.filter(time.time()), args.tenant, cache.names)
        written = write_lines(lines, args.output) - 1  # the first line is the header
    print(f"{count_of(written)} exported", file=sys.stderr)


def lines_of(store: Store, chosen: Any, tenant: str | None, names: cache_file.TenantNames) -> Iterator[bytes]:
    """Yield the header and the entries that are chosen, with a progress bar."""
    from knapcache.cache.transfer import entry_line, header_line, read_source
    from knapcache.store.base import expired

    infos, requests, header = read_source(store)
    namespaces = None if tenant is None else names.find(tenant, {info.tenant for info in infos})
    yield header_line(header)
    with progress_bar() as bar:
        for info in bar.track(infos, description="entries"):
            if expired(info.expires, time.time()) or not chosen(info):
                continue
            if namespaces is not None and info.tenant not in namespaces:
                continue
            entry = store.peek(info.key)
            if entry is not None:
                yield entry_line(entry, requests.get(info.key, 1.0), names.principals.get(entry.tenant))
