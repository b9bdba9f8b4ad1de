"""`knapcache rekey PATH`: encrypt a cache file, change its key, or decrypt it."""

from __future__ import annotations

import argparse
from pathlib import Path

from knapcache.cli.cache_file import resolve
from knapcache.cli.inspect import count_of
from knapcache.cli.output import progress_bar
from knapcache.errors import InvalidInput

HELP = "encrypt a cache file, change its key, or decrypt it"
DESCRIPTION = """Write a cache file anew: encrypted with a new key, or unencrypted with --decrypt. A key has 32 bytes,
as 64 hex digits or in base64. A file or variable may hold several keys; the first encrypts, all of them decrypt. No
process may have the cache open. The old file is replaced when the new one is complete, so an interrupted run loses
nothing: run it again."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    option = parser.add_argument
    option("path", metavar="PATH", help="cache file, or data directory of a proxy")
    option("--secret-file", metavar="FILE", type=Path, help="file with the secret of the cache")
    for name, text in (("old", "the key that the file is encrypted with"), ("new", "the key to encrypt it with")):
        keys = parser.add_mutually_exclusive_group()
        keys.add_argument(f"--{name}-key-file", metavar="FILE", type=Path, help=f"file with {text}")
        keys.add_argument(f"--{name}-key-env", metavar="VAR", help=f"environment variable with {text}")
    option("--decrypt", action="store_true", help="write an unencrypted file")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    from knapcache.cache.opening import existing, is_url, seal_secret_of
    from knapcache.store.encryption import read_keys
    from knapcache.store.sqlite.rekey import rekey

    old_keys = read_keys(args.old_key_env, args.old_key_file)
    new_keys = read_keys(args.new_key_env, args.new_key_file)
    if args.decrypt == bool(new_keys):
        raise InvalidInput("give --new-key-file or --new-key-env, or --decrypt for an unencrypted file")
    file, given = resolve(args.path, args.secret_file)
    if is_url(file):
        raise InvalidInput("rekey works on files: export and import a cache on Valkey or Redis to change its key")
    path = existing(file)
    secret = seal_secret_of(path, given)
    with progress_bar() as bar:
        task = bar.add_task("rekey", total=None)
        result = rekey(
            path,
            old_keys=old_keys,
            new_keys=new_keys,
            secret=secret,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    damaged = f"; {result.damaged} damaged ones were left out" if result.damaged else ""
    print(f"{count_of(result.entries)} {'decrypted' if args.decrypt else 'encrypted'}{damaged}")
    if copies := sorted(path.parent.glob(f"{path.name}.damaged-*")):
        print(
            f"Not changed, and perhaps readable: {', '.join(copy.name for copy in copies)}. Delete them if not needed."
        )
