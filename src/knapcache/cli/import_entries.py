"""`knapcache import FILE PATH`: put exported entries into a cache."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from knapcache.cli import cache_file, options
from knapcache.cli.inspect import count_of
from knapcache.cli.output import print_text, progress_bar
from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.units import ALLOWED_AMOUNTS, parse_bytes

if TYPE_CHECKING:
    from knapcache.cache.transfer import EntryImporter, TransferEntry, TransferHeader
    from knapcache.store.base import Store

HELP = "put exported entries into a cache"
DESCRIPTION = """Put the entries of a file that `knapcache export` has written into a cache. They go through its policy,
so its capacity holds, and keys are computed with its secret. The policy counts the requests that the exported cache has
counted. An entry that is as new or newer in the cache stays, so importing a file twice changes nothing. While a process
uses the cache, entries are handed over to it. A file, a cache on Valkey or Redis, or the cache of a data directory is
created if it does not exist. With one argument and no settings, this is PATH, and FILE is standard input. Entries of
tenants whose names were known to the export go to the tenants of the same names. Other entries keep their namespace;
those of a proxy's callers without tenants are found only under the same secret."""
MAX_SHOWN = 10
"""Damaged lines that are shown."""
PROGRESS_BYTES = 1 << 18
"""Bytes of the file after which the progress bar is updated. An update takes as long as the decision about an entry."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    option = parser.add_argument
    option("file", metavar="FILE", help="file of `knapcache export`; - for standard input")
    cache_file.add_options(parser)
    option(
        "--capacity",
        metavar="SIZE",
        type=size,
        help="capacity of a cache that does not exist yet, such as 4GB (default: that of the exported one)",
    )
    cache_file.add_selection(parser)
    option("--to-tenant", metavar="NAME", help="put all entries into the namespace of this tenant or group")
    option("--skip-errors", action="store_true", help="leave out damaged lines, and report them")
    options.add_json(parser)
    parser.set_defaults(execute=execute)


def size(text: str) -> int:
    """Return the bytes of a size such as 4GB."""
    found = parse_bytes(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be {ALLOWED_AMOUNTS}, at least 1, not {text!r}")
    return found


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.purging import purge_conditions
    from knapcache.cache.transfer import lines_of, read_header, switching_threads_often

    if args.path is None and args.config is None and not os.environ.get(cache_file.CONFIG_VARIABLE):
        if sys.stdin.isatty():
            raise InvalidInput("give the file and the cache: knapcache import FILE PATH")
        args.file, args.path = "-", args.file
    chosen = purge_conditions(model=args.model, tags=args.tag).filter(0.0)
    with open_file(args.file) as file:
        header, lines = read_header(file), lines_of(file)
        first = next(lines, None)
        cache = cache_file.locate(args, create=True)
        if first is not None:
            check_secret(cache, first[1])
            lines = itertools.chain([first], lines)
        importing = closing(open_importer(cache, args, header))
        with switching_threads_often(), importing as importer:
            handed_over, damaged = not importer.owner, 0
            try:
                damaged = read(file, lines, importer, args, chosen)
            finally:
                importer.finish()
                if args.json:
                    result = asdict(importer.result) | {"damaged": damaged, "handed_over": handed_over}
                    print(json.dumps(result, indent=2))
                else:
                    report(importer, handed_over)
    if damaged and not args.json:
        print_text(f"{damaged:,} damaged lines were left out.")
    if importer.result.failed:
        raise StoreError(f"the store could not write {importer.result.failed:,} entries; import the file again")


def open_file(name: str) -> BinaryIO:
    """Open the file of entries."""
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InvalidInput(f"{name}: {error.strerror}") from None


def check_secret(cache: cache_file.CacheLocation, line: bytes) -> None:
    """Raise InvalidInput if entries of a proxy would go to a server without a secret: no proxy could use that cache."""
    from knapcache.cache.opening import is_url
    from knapcache.cache.transfer import read_line

    if cache.secret is not None or not is_url(cache.place):
        return
    try:
        of_proxy = read_line(line).principal is not None
    except InvalidInput:
        return  # it is reported where it is imported
    if of_proxy:
        raise InvalidInput(
            f"entries of a proxy need the secret of the proxies that will use {cache}: set "
            f"{cache_file.SECRET_VARIABLE}, or give --secret-file, such as the file secret of the old data directory"
        )


def open_importer(cache: cache_file.CacheLocation, args: argparse.Namespace, header: TransferHeader) -> EntryImporter:
    """Return an importer into the cache: as its owner, or beside the process that owns it."""
    from knapcache.cache.opening import secret_forms, secret_in_use, store_exists
    from knapcache.cache.snapshot import read_snapshot
    from knapcache.cache.transfer import EntryImporter

    exists, capacity = store_exists(cache.place), None
    if not exists:
        capacity = args.capacity or header.capacity
        if capacity is None:
            raise InvalidInput(f"{cache} does not exist, and the file has no capacity: give --capacity")
    elif args.capacity is not None:
        raise InvalidInput(f"{cache} exists and has a capacity: --capacity is for a new cache")
    secret = secret_in_use(cache.place, cache.secret) if exists else secret_forms(cache.secret)[-1]
    names = cache.names

    def namespace(source: str, principal: tuple[str, ...] | None) -> str:
        return names.translated(source, principal) if args.to_tenant is None else names.namespace_of(args.to_tenant)

    store = open_store(cache, secret, capacity)
    snapshot = read_snapshot(store.load_snapshot() or b"")
    policy = (header.policy or "adaptive") if snapshot is None else snapshot.name
    return EntryImporter(store, secret, policy, namespace)


def open_store(cache: cache_file.CacheLocation, secret: bytes | None, capacity: int | None) -> Store:
    """Open the store of a cache, as its owner if it has none."""
    from knapcache.cache.opening import is_url, open_as_owner, open_to_read
    from knapcache.cache.options import seal_secret
    from knapcache.store.sqlite.store import SqliteStore

    try:
        return open_as_owner(cache.place, secret, cache.keys, capacity)
    except NotOwner:
        if is_url(cache.place):
            return open_to_read(cache.place, cache.secret, cache.keys)
        return SqliteStore.open_beside_owner(Path(cache.place), seal_secret(secret), cache.keys)


def read(
    file: BinaryIO,
    lines: Iterable[tuple[int, bytes]],
    importer: EntryImporter,
    args: argparse.Namespace,
    chosen: Any,
) -> int:
    """Import the lines of a file, with a progress bar. Return the number of damaged lines that were left out."""
    from knapcache.cache.transfer import read_line

    damaged, name = 0, "standard input" if args.file == "-" else args.file
    total = None if args.file == "-" else os.fstat(file.fileno()).st_size
    with progress_bar() as bar:
        task, done, shown = bar.add_task("entries", total=total), 0, 0
        for number, line in lines:
            try:
                found = read_line(line)
                if chosen(found.entry.info) and of_tenant(found, args.tenant):
                    importer.add(found)
            except InvalidInput as error:
                if not args.skip_errors:
                    raise InvalidInput(f"{name}, line {number}: {error}; --skip-errors leaves such lines out") from None
                damaged += 1
                if damaged <= MAX_SHOWN:
                    print(f"knapcache: {name}, line {number}: {error}", file=sys.stderr)
            done += len(line)
            if done - shown >= PROGRESS_BYTES:
                bar.update(task, completed=done)
                shown = done
    return damaged


def of_tenant(found: TransferEntry, name: str | None) -> bool:
    """Return whether an entry is of a tenant or group of the source, or of a namespace."""
    return name is None or name == found.entry.tenant or (found.principal is not None and found.principal[-1] == name)


def report(importer: EntryImporter, handed_over: bool) -> None:
    """Print what became of the entries."""
    result = importer.result
    reasons = {
        "as new or newer in the cache": result.present,
        "expired": result.expired,
        "not admitted": result.rejected,
        "not written": result.failed,
    }
    left = [f"{number:,} {reason}" for reason, number in reasons.items() if number]
    done = "imported through the process that uses the cache" if handed_over else "imported"
    print_text(f"{count_of(result.stored)} {done}{'; left out: ' if left else ''}{', '.join(left)}.")
