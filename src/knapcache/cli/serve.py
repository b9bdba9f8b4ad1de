"""`knapcache serve`: the proxy, its settings, and keys for its tenants."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput, MissingExtra

HELP = "run the caching proxy, with its dashboard"
TEXT = """Run an OpenAI-compatible proxy that keeps answers worth keeping. Settings come from flags, the environment
(KNAPCACHE_NAME) and a TOML file, in this order; --show-settings lists them all. Without any, requests go to the
providers whose keys are in the environment, or else to a small model on this machine."""
NEEDED = ("httptools", "prometheus_client", "pydantic_settings", "starlette", "uvicorn")
FLAGS = {
    "host": ("H", "address to listen on (default: 127.0.0.1)"),
    "port": ("N", "port to listen on (default: 8080; 0: any free one)"),
    "path": ("DIR", "data directory"),
    "capacity": ("ROOM", "room for answers (default: 256MB)"),
    "policy": ("NAME", "what decides which answers stay (default: adaptive)"),
    "cost": ("COST", "what is to be saved: usd (default), seconds, or a blend such as 'usd + 0.01*seconds'"),
    "ttl": ("TIME", "time until an answer expires: 90, 15m, 12h, 30d, none (default)"),
    "workers": ("N", "processes (default: 1)"),
}
"""Settings that have a flag of their own. Written out, not read from the model: its packages may not be installed, and
`knapcache --help` must not wait for them. A test compares the two."""


def add(commands: Any) -> None:
    """Put the command into the parser."""
    parser = commands.add_parser("serve", help=HELP, description=TEXT)
    option = parser.add_argument
    option(
        "--config", metavar="FILE", type=Path, help="TOML file with settings (default: the one KNAPCACHE_CONFIG names)"
    )
    option("--upstream", metavar="URL", help="where all requests go, or local: the model on this machine")
    for name, (metavar, text) in FLAGS.items():
        option(f"--{name}", metavar=metavar, help=text.replace("%", "%%"))
    option(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="any other setting; lists and tables as JSON"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--show-settings", action="store_true", help="print every setting and where it came from, and end"
    )
    other.add_argument(
        "--hash-key", action="store_true", help="read an API key, print its digest for [[tenants]], and end"
    )
    other.add_argument(
        "--new-key", metavar="TENANT", help="print a new API key and the lines for the settings, and end"
    )
    option("--json", action="store_true", help="with --show-settings: print JSON")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    """Serve, or do the small thing that was asked for instead."""
    if args.json and not args.show_settings:
        raise InvalidInput("--json goes with --show-settings")
    if args.hash_key:
        print(hash_key(read_key()))
        return
    if args.new_key is not None:
        print(new_key(args.new_key))
        return
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the proxy needs {', '.join(missing)}: pip install 'knapcache[serve]'")
    from knapcache.serve.settings.loading import load, rows

    loaded = load(args.config, flags(args))
    if not args.show_settings:
        from knapcache.serve.run import run

        run(loaded.settings)
    elif args.json:
        print(json.dumps(rows(loaded), indent=2))
    else:
        print_table([{**row, "value": readable(row["value"])} for row in rows(loaded)])


def flags(args: argparse.Namespace) -> dict[str, Any]:
    """Settings that the command line gives."""
    from knapcache.serve.settings.loading import from_text, read_text

    found = {name: read_text(getattr(args, name)) for name in FLAGS if getattr(args, name) is not None}
    if args.upstream is not None:
        found["upstreams"] = [{"url": args.upstream}]
    more = from_text(args.set)
    if twice := sorted(found.keys() & more.keys()):
        raise InvalidInput(f"{twice[0]} is given twice: by its flag and by --set")
    return found | more


def readable(value: Any) -> str:
    """A value in a cell of the table."""
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, list) and isinstance(value[0], dict):  # upstreams and tenants: what is said of them
        value = [{name: said for name, said in each.items() if said not in (None, {}, False)} for each in value]
    if isinstance(value, (list, dict)) and not all(isinstance(each, str) for each in value):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else f"{value:,g}" if isinstance(value, float) else str(value)


def read_key() -> str:
    """A key from a prompt that does not show it, or from a pipe."""
    if sys.stdin.isatty():
        return getpass.getpass("API key: ").strip()
    return sys.stdin.readline().strip()


def hash_key(key: str) -> str:
    """The digest of a key that is long enough not to be guessed from it."""
    from knapcache.serve.settings.secrets import LEAST_KEY, digest_of

    if len(key) < LEAST_KEY:
        raise InvalidInput(
            f"a tenant's key must have {LEAST_KEY} characters or more, not {len(key)}: --new-key makes one"
        )
    return digest_of(key)


def new_key(tenant: str) -> str:
    """A key of 256 random bits, and what the settings have to say of it."""
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", tenant):
        raise InvalidInput(f"a tenant's name is 1 to 64 letters, digits, or any of . _ @ -, not {tenant[:80]!r}")
    key = "kc-" + secrets.token_urlsafe(32)
    return f'{key}\n\n[[tenants]]\nname = "{tenant}"\nkeys = ["{hash_key(key)}"]'
