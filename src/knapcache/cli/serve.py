"""`knapcache serve`: run the proxy, show its settings, create API keys for tenants and tokens for administrators."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import secrets
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from knapcache.cli import options
from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.proxy.feature_list import feature_specs

if TYPE_CHECKING:
    from knapcache.proxy.settings import Settings

HELP = "run the caching proxy and its dashboard"
DESCRIPTION = """Run an OpenAI-compatible caching proxy with a dashboard.

Settings come from flags, environment variables (KNAPCACHE_NAME) and a TOML file; flags override the environment, and
the environment overrides the file. --show-settings lists every setting. Without an upstream, requests go to the
providers whose API keys are in the environment, or to a small model on this machine if there are none."""
REQUIRED_PACKAGES = ("httptools", "prometheus_client", "pydantic_settings", "starlette", "uvicorn")
FLAGS = {
    "host": ("ADDRESS", "address to listen on (default: 127.0.0.1)"),
    "port": ("N", "port to listen on; 0: any free port (default: 8080)"),
    "path": ("DIR", "data directory"),
    "store": ("URL", "Valkey or Redis with the cache of many proxies, such as redis://host:6379"),
    "capacity": ("SIZE", "maximum size of all stored answers, such as 4GB (default: 256MB)"),
    "policy": ("NAME", "admission and eviction policy (default: adaptive)"),
    "cost": ("COST", "what to save: usd, seconds, or a blend such as 'usd + 0.01*seconds' (default: usd)"),
    "ttl": ("TIME", "time until an answer expires: 90 (s), 15m, 12h, 30d, none (default: none)"),
    "tls_cert": ("FILE", "PEM file of the certificate, for https"),
    "tls_key": ("FILE", "PEM file of the certificate's private key"),
    "workers": ("N", "number of worker processes (default: 1)"),
}
"""Settings of the core with a flag of their own. Written out, because importing the settings model would slow down
`knapcache --help`, and its packages may not be installed. A test compares the two."""


def flags() -> dict[str, tuple[str, str]]:
    """Return the settings with a flag of their own, those of features, too: placeholder and help of each."""
    return FLAGS | {flag.setting: (flag.metavar, flag.help) for spec in feature_specs() for flag in spec.flags}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that give settings. `settings_from_flags` reads them."""
    option = parser.add_argument
    options.add_config(parser)
    option("--upstream", metavar="URL", help="provider for all requests; local: the model on this machine")
    for name, (metavar, text) in flags().items():
        option(f"--{name.replace('_', '-')}", metavar=metavar, help=text.replace("%", "%%"))
    option(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="any other setting; lists and tables as JSON"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_settings(parser)
    # argparse breaks no line inside a group, and this one is longer than a line.
    parser.usage = "%(prog)s [options]"
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--show-settings", action="store_true", help="print every setting with its source, and exit")
    instead.add_argument(
        "--hash-key", action="store_true", help="read an API key from stdin, print its digest for [[tenants]], and exit"
    )
    instead.add_argument(
        "--new-key", metavar="TENANT", help="print a new API key and its lines for the settings file, and exit"
    )
    instead.add_argument(
        "--new-token", metavar="NAME", help="print a new admin token and its lines for the settings file, and exit"
    )
    instead.add_argument(
        "--rotate-token", action="store_true", help="replace the admin token in the data directory, and exit"
    )
    options.add_json(parser, "with --show-settings: print JSON")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    if args.json and not args.show_settings:
        raise InvalidInput("--json requires --show-settings")
    if args.hash_key:
        print(hash_key(read_key()))
        return
    if args.new_key is not None:
        print(new_key(args.new_key))
        return
    if args.new_token is not None:
        print(new_token(args.new_token))
        return
    require_packages()
    from knapcache.proxy.settings.loading import load, rows

    flags = settings_from_flags(args)
    loaded = load(args.config, flags)
    if args.rotate_token:
        print(rotate_token(loaded.settings))
    elif not args.show_settings:
        args.ends_by_interrupt = True
        from knapcache.proxy.run import run

        run(loaded.settings, partial(load, args.config, flags))
    elif args.json:
        print(json.dumps(rows(loaded), indent=2))
    else:
        print_table([{**row, "value": format_value(row["value"])} for row in rows(loaded)])


def require_packages() -> None:
    """Raise MissingExtra if a package that the proxy imports is not installed."""
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the proxy needs {', '.join(missing)}: {install_command('serve')}")


def settings_from_flags(args: argparse.Namespace) -> dict[str, Any]:
    from knapcache.proxy.settings.loading import from_text, read_text

    found = {name: read_text(getattr(args, name)) for name in flags() if getattr(args, name) is not None}
    if args.upstream is not None:
        found["upstreams"] = [{"url": args.upstream}]
    more = from_text(args.set)
    if duplicates := sorted(found.keys() & more.keys()):
        raise InvalidInput(f"{duplicates[0]} is given twice: by its flag and by --set")
    return found | more


def format_value(value: Any) -> str:
    """Return the value of a setting for the table."""
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, list) and isinstance(value[0], dict):  # upstreams and tenants: without their unset fields
        value = [{name: item for name, item in each.items() if item not in (None, {}, False)} for each in value]
    if isinstance(value, (list, dict)) and not all(isinstance(each, str) for each in value):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else f"{value:,g}" if isinstance(value, float) else str(value)


def read_key() -> str:
    """Read a key from stdin: without echo on a terminal, else the first line."""
    if sys.stdin.isatty():
        return getpass.getpass("API key: ").strip()
    return sys.stdin.readline().strip()


def hash_key(key: str) -> str:
    """Return the digest of a key. Keys short enough to be guessed from their digest are rejected."""
    from knapcache.proxy.settings.secrets import MIN_KEY_LENGTH, digest_of

    if len(key) < MIN_KEY_LENGTH:
        raise InvalidInput(
            f"a tenant's key must have at least {MIN_KEY_LENGTH} characters, not {len(key)}; --new-key creates one"
        )
    return digest_of(key)


def new_key(tenant: str) -> str:
    """Return a key of 256 random bits and the lines that add its tenant to the settings file."""
    check_name(tenant, "a tenant's name")
    key = "kc-" + secrets.token_urlsafe(32)
    return f'{key}\n\n[[tenants]]\nname = "{tenant}"\nkeys = ["{hash_key(key)}"]'


def new_token(name: str) -> str:
    """Return a token of 256 random bits and the lines that add it to the settings file."""
    check_name(name, "a token's name")
    token = secrets.token_urlsafe(32)
    return f'{token}\n\n[[admin_tokens]]\nname = "{name}"\nrole = "read-only"\ndigest = "{hash_key(token)}"'


def check_name(name: str, what: str) -> None:
    """Raise InvalidInput unless a name is valid in the settings."""
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", name):
        raise InvalidInput(f"{what} has 1 to 64 characters from A-Z a-z 0-9 . _ @ -, not {name[:80]!r}")


def rotate_token(settings: Settings) -> str:
    """Replace the token in the data directory, and return the text to print. A running proxy uses the new one."""
    from knapcache.proxy.admin.audit import AuditLog, new_record
    from knapcache.proxy.settings.secrets import TOKEN, data_directory, replace_token

    if settings.derives_admin_token:
        raise InvalidInput("the token is derived from secret: change secret at every proxy, or set admin_token")
    if settings.admin_token is not None or settings.memory_only:
        raise InvalidInput("--rotate-token replaces a generated token; with admin_token or memory_only there is none")
    folder = data_directory(settings.path)
    user = {"name": f"uid {os.getuid()}", "role": "operator", "address": "", "session": ""}
    record = new_record("rotate_token", **user, parameters={"name": "admin"}, status=None)
    audit = AuditLog(folder if settings.audit_log else None, settings.audit_log_bytes)
    try:
        audit.append(record)
        token = replace_token(folder / TOKEN)
        audit.append({**record, "status": 200})
    except OSError as error:
        raise InvalidInput(f"the token in {folder} was not replaced: {error.strerror}") from None
    return token if sys.stdout.isatty() else f"the new token is in {folder / TOKEN}"
