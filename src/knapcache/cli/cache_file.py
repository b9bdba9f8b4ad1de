"""The cache that a command reads or changes: its place, its secret, its encryption keys, and the names in it.

PATH is a cache file, the data directory of a proxy, which has the secret beside the file, or the URL of a cache on
Valkey or Redis. With --config, the proxy's settings give the directory or the URL, the secret, the encryption key and
the tenants. A secret that neither a file nor the settings give is that of the environment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knapcache.cli import options
from knapcache.errors import InvalidInput, reason_text

FILE_NAME, SECRET_NAME = "cache.sqlite", "secret"
"""Files in a data directory."""
SECRET_VARIABLE, CONFIG_VARIABLE = "KNAPCACHE_SECRET", "KNAPCACHE_CONFIG"
HISTORY_NAME = "history.json"
"""File in a data directory with the names of the tenants that have sent requests."""
SHORT_KEY = 12
"""Hex digits of a key that a table shows, unless that is ambiguous."""
MAX_CANDIDATES = 10
NAMESPACE = re.compile(r"[0-9a-f]{32}")
HEX = re.compile(r"[0-9a-f]{1,64}")
SECRET_HELP = f"file with the secret of the cache (default: that of the data directory, or {SECRET_VARIABLE})"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that commands on one cache share."""
    option = parser.add_argument
    option(
        "path",
        metavar="PATH",
        nargs="?",
        help="cache file, data directory of a proxy, or URL of Valkey or Redis (default: that of --config)",
    )
    options.add_config(parser)
    option("--secret-file", metavar="FILE", type=Path, help=SECRET_HELP)
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--encryption-key-file", metavar="FILE", type=Path, help="file with the encryption key")
    keys.add_argument("--encryption-key-env", metavar="VAR", help="environment variable with the encryption key")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select entries."""
    option = parser.add_argument
    option("--model", metavar="NAME", help="only entries of this model and of its dated versions")
    option("--tag", metavar="TAG", action="append", help="only entries with this tag; repeated: with any of the tags")
    option("--tenant", metavar="NAME", help="only entries of this tenant or group, or of this namespace")


@dataclass(frozen=True)
class TenantNames:
    """Names of namespaces. The proxy stores an entry under a digest of its tenant's name."""

    secret: bytes | None = None
    """The secret of the proxy; None for a cache of the library, whose namespaces are names already."""
    configured: tuple[tuple[str, str], ...] = ()
    """Kind and name of each tenant and group in the settings."""
    principals: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """Owners of namespaces, by namespace."""

    def __post_init__(self) -> None:
        for principal in (("anonymous",), ("everyone",), *self.configured):
            if self.secret is not None:
                self.principals[self._namespace(*principal)] = principal

    def _namespace(self, *principal: str) -> str:
        from knapcache.proxy.settings.secrets import principal_namespace

        assert self.secret is not None
        return principal_namespace(self.secret, *principal)

    def name_of(self, namespace: str) -> str:
        """Return the name of a namespace, as the dashboard shows it."""
        known = self.principals.get(namespace)
        return known[-1] if known else (f"caller-{namespace[:8]}" if NAMESPACE.fullmatch(namespace) else namespace)

    def namespace_of(self, name: str) -> str:
        """Return the namespace of a tenant or group; in a cache of the library, the name itself."""
        if self.secret is None:
            return name
        known = [principal for principal in self.principals.values() if principal[-1] == name]
        return self._namespace(*(known[0] if known else ("tenant", name)))

    def translated(self, namespace: str, principal: tuple[str, ...] | None) -> str:
        """Return the namespace here of what has a namespace in another cache. One that is not known stays as it is."""
        return namespace if self.secret is None or principal is None else self._namespace(*principal)

    def find(self, name: str, namespaces: Collection[str]) -> list[str]:
        """Return those of the namespaces that have this name: a tenant's, a group's, or the namespace itself."""
        if self.secret is not None:
            for kind in ("tenant", "group"):
                self.principals.setdefault(self._namespace(kind, name), (kind, name))
        return [each for each in namespaces if each == name or self.name_of(each) == name]


@dataclass(frozen=True)
class CacheLocation:
    """A cache file or URL, and what is needed to open it."""

    place: str | Path
    secret: bytes | None
    keys: tuple[bytes, ...]
    names: TenantNames
    url: str = "http://127.0.0.1:8080"
    """Where the proxy of this cache listens."""

    def __str__(self) -> str:
        """Return the place as messages show it."""
        from knapcache.cache.opening import place_name

        return place_name(self.place)


def locate(args: argparse.Namespace, *, create: bool = False) -> CacheLocation:
    """Return the cache that the arguments name. `create`: a data directory may be one without a cache."""
    from knapcache.store.encryption import read_keys

    config = args.config
    if config is None and args.path is None and os.environ.get(CONFIG_VARIABLE):
        config = Path(os.environ[CONFIG_VARIABLE])
    settings = load_settings(config) if config is not None else None
    place, given = args.path, None
    if settings is not None:
        given = proxy_secret(settings)
        if place is None:
            place = str(settings.path) if settings.store is None else settings.store.get_secret_value()
            if create and settings.store is None:
                from knapcache.proxy.settings.secrets import data_directory

                data_directory(settings.path)
    if place is None:
        raise InvalidInput(
            "give the path of a cache file or data directory, the URL of a cache, or --config with the proxy's settings"
        )
    variable, file = args.encryption_key_env, args.encryption_key_file
    if settings is not None and variable is None and file is None:
        variable, file = settings.encryption_key_env, settings.encryption_key_file
    found, secret = resolve(place, args.secret_file, given, create=create)
    tenants: tuple[Any, ...] = settings.tenants if settings is not None else ()
    configured = {("group", each.group) if each.group else ("tenant", each.name) for each in tenants}
    names = TenantNames(raw_secret(secret), tuple(sorted(configured | seen_tenants(found))))
    url = CacheLocation.url if settings is None else proxy_url(settings)
    return CacheLocation(found, secret, read_keys(variable, file), names, url)


def seen_tenants(place: str | Path) -> set[tuple[str, str]]:
    """Return the tenants in the history of a data directory, each as a tenant and as a group: it has names only."""
    if isinstance(place, str):
        return set()
    try:
        names = list(json.loads(place.with_name(HISTORY_NAME).read_bytes())["tenants"])
    except (OSError, ValueError, TypeError, KeyError):
        return set()
    return {(kind, name) for name in names for kind in ("tenant", "group")}


def proxy_url(settings: Any) -> str:
    """Return the address of a proxy on this machine, from its settings."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "[::]") else settings.host
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http{'s' if settings.tls_cert is not None else ''}://{host}:{settings.port}"


def proxy_secret(settings: Any) -> bytes | None:
    """Return the secret that the settings give; for a store on a server also that of the proxy's data directory."""
    if settings.secret is not None:
        return bytes(settings.secret.get_secret_value().encode())
    beside = settings.path / SECRET_NAME
    return read_secret(beside) if settings.store is not None and beside.is_file() else None


def load_settings(config: Path) -> Any:
    """Return the settings of a proxy."""
    from knapcache.proxy.settings.loading import load

    return load(config, secrets=False).settings


def resolve(
    place: str, secret_file: Path | None, given: bytes | None = None, *, create: bool = False
) -> tuple[str | Path, bytes | None]:
    """Return the file or URL of a cache, and its secret.

    The secret is that of `secret_file`, else `given`, else that of a data directory, else that of the environment, else
    with `create` a new one, which a data directory without a cache gets.
    """
    from knapcache.cache.opening import is_url

    if secret_file is not None:
        given = read_secret(secret_file)
    if is_url(place):
        return place, given or environment_secret()
    path = Path(place)
    if not path.is_dir():
        if not create and path.is_file() and path.stat().st_size == 0:
            raise InvalidInput(f"{path} is an empty file, not a cache")
        return path, given  # a file of the library, which the environment of a proxy says nothing about
    file = path / FILE_NAME
    new = not file.is_file()
    if new and not create:
        raise InvalidInput(f"{path} is a directory without {FILE_NAME}: it must be a cache file or a data directory")
    beside = path / SECRET_NAME
    secret = given or (read_secret(beside) if beside.is_file() else environment_secret())
    if new and secret is None:
        from knapcache.proxy.settings.secrets import server_secret

        secret = server_secret(path).hex().encode()
    return file, secret


def environment_secret() -> bytes | None:
    """Return the secret in the environment, where the proxy takes it from, or None."""
    found = os.environ.get(SECRET_VARIABLE, "").strip().lower().encode()
    return checked_secret(found, SECRET_VARIABLE) if found else None


def read_secret(file: Path) -> bytes:
    """Return the secret in a file, without its line end."""
    try:
        found = file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise InvalidInput(f"cannot read the secret from {file}: {reason_text(error)}") from None
    return checked_secret(found, str(file))


def checked_secret(secret: bytes, source: str) -> bytes:
    """Return a secret, or raise InvalidInput if no cache can have it."""
    if not 16 <= len(secret) <= 64:
        raise InvalidInput(f"{source}: a secret must have 16 to 64 bytes, such as 64 hex digits; it has {len(secret)}")
    return secret


def raw_secret(secret: bytes | None) -> bytes | None:
    """Return the secret of a proxy, which its file has in hex; None for another one."""
    if secret is None or not re.fullmatch(rb"[0-9a-f]{64}", secret):
        return None
    return bytes.fromhex(secret.decode())


def find_key(text: str, keys: Iterable[str]) -> str | None:
    """Return the only key that begins with these hex digits; None if there is none. Raises InvalidInput.

    A whole key is returned as it is, whether there is such an entry or not.
    """
    prefix = text.strip().rstrip("…").lower()
    if not HEX.fullmatch(prefix):
        raise InvalidInput(f"a key is 64 hex digits, or the first ones of them, not {text[:80]!r}")
    if len(prefix) == 64:
        return prefix
    found = sorted(key for key in keys if key.startswith(prefix))
    if len(found) > 1:
        length = short_length(found)
        shown = ", ".join(key[:length] for key in found[:MAX_CANDIDATES])
        more = f" and {len(found) - MAX_CANDIDATES} more" if len(found) > MAX_CANDIDATES else ""
        raise InvalidInput(f"{len(found)} keys begin with {prefix}: {shown}{more}; give more digits")
    return found[0] if found else None


def short_length(keys: Collection[str]) -> int:
    """Return how many digits tell these keys apart, at least SHORT_KEY."""
    ordered = sorted(keys)
    length = SHORT_KEY
    for one, other in itertools.pairwise(ordered):
        while one[:length] == other[:length] and length < 64:
            length += 4
    return length
