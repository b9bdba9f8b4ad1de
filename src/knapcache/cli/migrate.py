"""`knapcache migrate FROM TO`: copy a cache into another store."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cli.cache_file import FILE_NAME, SECRET_HELP, SECRET_NAME, environment_secret, read_secret
from knapcache.cli.inspect import count_of
from knapcache.cli.output import print_text
from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.units import ALLOWED_AMOUNTS, format_size, parse_bytes

if TYPE_CHECKING:
    from knapcache.cache.migrate import MigrationResult, SourceEntries
    from knapcache.cache.opening import TargetStore
    from knapcache.store.base import Store

HELP = "copy a cache into another file, or to or from Valkey or Redis"
DESCRIPTION = """Copy the entries of a cache and the state of its policy. FROM and TO are cache files, data directories
of a proxy, or URLs of Valkey or Redis. FROM is only read, and may be in use. No other process may own TO, which is
created if it does not exist. Both have the same secret, because the keys of entries depend on it. Entries that are as
new or newer in TO stay. If not all fit, those of the highest value per byte are copied. Expired entries are not. An
interrupted run leaves TO consistent, and the next one copies the rest. At the end, copied entries are read again."""


def add(commands: Any) -> None:
    parser = commands.add_parser("migrate", help=HELP, description=DESCRIPTION)
    option = parser.add_argument
    option("source", metavar="FROM", help="cache file, data directory of a proxy, or URL")
    option("target", metavar="TO", help="cache file, existing data directory, or URL")
    option(
        "--capacity",
        metavar="SIZE",
        type=size,
        help="capacity of TO, such as 4GB (default: that of TO if it exists, else that of FROM)",
    )
    option("--secret-file", metavar="FILE", type=Path, help=SECRET_HELP)
    for name, place in (("from", "FROM"), ("to", "TO")):
        keys = parser.add_mutually_exclusive_group()
        text = f"with the encryption key of {place}"
        keys.add_argument(f"--{name}-key-file", metavar="FILE", type=Path, help=f"file {text}")
        keys.add_argument(f"--{name}-key-env", metavar="VAR", help=f"environment variable {text}")
    option("--dry-run", action="store_true", help="show what would be copied, by the sizes in FROM, and copy nothing")
    parser.set_defaults(execute=execute)


def size(text: str) -> int:
    """Return the bytes of a size such as 4GB."""
    found = parse_bytes(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be {ALLOWED_AMOUNTS}, at least 1, not {text!r}")
    return found


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.migrate import MigrationResult, preview, read_source
    from knapcache.cache.opening import TargetStore, open_to_read, place_name, seals_of, size_limit_of_store
    from knapcache.store.encryption import read_keys

    source_place, target_place = cache_place(args.source, must_exist=True), cache_place(args.target)
    if place_name(source_place) == place_name(target_place):
        raise InvalidInput("FROM and TO are the same cache")
    secret = find_secret(args, source_place, target_place)
    keys = read_keys(args.from_key_env, args.from_key_file)
    with closing(open_to_read(source_place, secret, keys)) as source:
        found = read_source(source)
        to = TargetStore(
            place=target_place,
            seals=seals_of(source_place, secret),
            keys=read_keys(args.to_key_env, args.to_key_file),
            capacity=args.capacity,
            default=size_limit_of_store(source),
        )
        if args.dry_run:
            reader = to.open_to_read()
            result = preview(found, reader, to.entry_capacity)
            if reader is not None:
                reader.close()
            text = f"{count_of(result.copied)} would be copied, {format_size(result.size)} in FROM"
            print_text(f"{text}{left_out(result)}.")
            return
        result = MigrationResult()
        try:
            with closing(open_target(to)) as target:
                save_secret(args.target, secret)
                copy(source, found, target, result)
        except (KeyboardInterrupt, StoreError):
            if result.copied:
                print(f"knapcache: {count_of(result.copied)} copied; run it again for the rest", file=sys.stderr)
            raise
    print_result(result)


def open_target(to: TargetStore) -> Store:
    """Open TO as its owner."""
    from knapcache.cache.opening import place_name

    try:
        return to.open()
    except NotOwner:
        raise NotOwner(
            f"{place_name(to.place)} is in use by a running process: stop it first, or choose another TO"
        ) from None


def copy(source: Store, found: SourceEntries, target: Store, result: MigrationResult) -> None:
    """Copy with a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    from knapcache.cache.migrate import migrate

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("entries", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        migrate(source, found, target, progress=progress, result=result)


def cache_place(given: str, *, must_exist: bool = False) -> str | Path:
    """Return the URL or file that an argument names. An existing directory is a data directory."""
    from knapcache.cache.opening import is_url

    if is_url(given):
        return given
    path = Path(given)
    file = path / FILE_NAME if path.is_dir() else path
    if must_exist and not file.is_file():
        raise InvalidInput(f"{file}: no such file")
    if not file.parent.is_dir():
        raise InvalidInput(f"{file.parent}: no such directory")
    return file.resolve()


def find_secret(args: argparse.Namespace, *places: str | Path) -> bytes | None:
    """Return the secret of both caches. InvalidInput if data directories have different ones."""
    secrets = [read_secret(args.secret_file)] if args.secret_file is not None else []
    for given, place in zip((args.source, args.target), places, strict=True):
        if isinstance(place, Path) and Path(given).is_dir() and (file := place.with_name(SECRET_NAME)).is_file():
            secrets.append(read_secret(file))
    if len(set(secrets)) > 1:
        raise InvalidInput(
            "FROM and TO have different secrets: the keys of entries depend on it, so no entry would be found"
        )
    return secrets[0] if secrets else environment_secret()


def save_secret(target: str, secret: bytes | None) -> None:
    """Write the secret into a data directory that has none: the proxy would make a new one, and find no entry."""
    folder = Path(target)
    if secret is None or not folder.is_dir() or (folder / SECRET_NAME).exists():
        return
    try:
        descriptor = os.open(folder / SECRET_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret + b"\n")
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise InvalidInput(f"cannot write the secret to {folder}: {error.strerror}") from None


def print_result(result: MigrationResult) -> None:
    """Print what was copied, what was not, and what was verified."""
    state = {
        "copied": "The state of the policy was copied.",
        "converted": "The policy's request counts were converted to the capacity of TO.",
        "none": "FROM has no state of a policy.",
    }[result.snapshot]
    print_text(
        f"{count_of(result.copied)} copied, {format_size(result.size)}{left_out(result)}.",
        f"{state} {count_of(result.verified)} read again and compared.",
    )


def left_out(result: MigrationResult) -> str:
    """Return how many entries are not copied, and why."""
    reasons = {
        "as new or newer in TO": result.present,
        "expired": result.expired,
        "without space in TO": result.no_space,
        "too large for TO": result.too_large,
        "removed from FROM meanwhile, or damaged": result.gone,
    }
    found = [f"{number:,} {reason}" for reason, number in reasons.items() if number]
    return f"; not copied: {', '.join(found)}" if found else ""
