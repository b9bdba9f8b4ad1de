"""Parse the URL of a Valkey or Redis store.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]                     one server
    redis+unix:///PATH/TO/SOCKET                                 one server, by its socket; also unix://
    redis+cluster://HOST[:PORT][,HOST[:PORT]…]                   a cluster; the hosts are starting points
    redis+sentinel://HOST[:PORT][,HOST[:PORT]…]/MASTER[/DB]      the primary that Sentinel names

`rediss` instead of `redis` connects with TLS; `valkey` and `valkeys` are synonyms. The query takes the options of
`Address`: prefix, timeout, near, shards, ca, cert, key. User and password are percent-decoded. Without them in the URL,
they come from the environment: KNAPCACHE_STORE_USER and KNAPCACHE_STORE_PASSWORD for the servers,
KNAPCACHE_SENTINEL_USER and KNAPCACHE_SENTINEL_PASSWORD for Sentinel.

No message repeats the URL: it may hold a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from knapcache.errors import InvalidInput
from knapcache.units import parse_bytes

PORT, SENTINEL_PORT = 6379, 26379
TIMEOUT = 0.24
"""Seconds. A request that waits for it is answered at most 250 ms later."""
MAX_SHARDS = 1024
FORMS = (
    "redis://HOST:PORT/DB, redis+unix:///PATH, redis+cluster://HOST:PORT,… or redis+sentinel://HOST:PORT,…/MASTER; "
    "rediss for TLS, valkey as a synonym"
)
_KINDS = {"": "server", "unix": "unix", "cluster": "cluster", "sentinel": "sentinel"}
_OPTIONS = ("prefix", "timeout", "near", "shards", "ca", "cert", "key")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

SCHEMES = (
    *(f"{name}+{kind}".rstrip("+") for name in ("redis", "valkey") for kind in _KINDS),
    *(f"{name}+{kind}".rstrip("+") for name in ("rediss", "valkeys") for kind in _KINDS if kind != "unix"),
    "unix",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a store is, and how to connect to it."""

    kind: str
    """"server", "unix", "cluster" or "sentinel"."""
    hosts: tuple[tuple[str, int], ...] = ()
    socket: str = ""
    """Path of the socket, for "unix"."""
    master: str = ""
    """Name of the primary, for "sentinel"."""
    db: int = 0
    tls: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_user: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    prefix: str = "knapcache"
    """First part of every key. Stores of different prefixes do not see each other."""
    timeout: float = TIMEOUT
    """Seconds that a connection attempt or a reply may take."""
    near: int | None = None
    """Bytes of recently read entries that this process keeps in memory; None: the store chooses."""
    shards: int | None = None
    """Shards of a new store; None: the store chooses. An existing store keeps its number."""
    ca: str | None = None
    """File with the certificates that may sign the server's; None: those of the system."""
    cert: str | None = None
    """File with the client's certificate."""
    key: str | None = None
    """File with the key of the client's certificate."""


def parse(scheme: str, location: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Return the address of `scheme:location`, or raise InvalidInput."""
    if scheme not in SCHEMES or not location.startswith("//"):
        raise InvalidInput(f"a store's URL must be {FORMS}")
    name, _, kind = scheme.partition("+")
    kind = "unix" if scheme == "unix" else _KINDS[kind]
    rest, _, query = location[2:].partition("?")
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not colon and kind != "unix":
        raise InvalidInput("a store's URL must have USER:PASSWORD or :PASSWORD before the @")
    options = _options(query)
    tls = name in ("rediss", "valkeys")
    if not tls and {"ca", "cert", "key"} & options.keys():
        raise InvalidInput("ca, cert and key are for TLS: the URL must begin with rediss or valkeys")
    return Address(
        kind=kind,
        hosts=() if kind == "unix" else _hosts(hosts, SENTINEL_PORT if kind == "sentinel" else PORT),
        **_place(kind, path),
        tls=tls,
        user=unquote(user) or environment.get("KNAPCACHE_STORE_USER") or None,
        password=unquote(password) or environment.get("KNAPCACHE_STORE_PASSWORD") or None,
        sentinel_user=environment.get("KNAPCACHE_SENTINEL_USER") or None,
        sentinel_password=environment.get("KNAPCACHE_SENTINEL_PASSWORD") or None,
        **options,
    )


def shown_url(address: Address) -> str:
    """Return the URL of a store without user, password and options: it may be logged and displayed."""
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts)
    kind = "" if address.kind == "server" else f"+{address.kind}"
    path = {"unix": address.socket, "sentinel": f"/{address.master}"}.get(address.kind, "")
    db = f"/{address.db}" if address.db else ""
    return f"redis{'s' if address.tls else ''}{kind}://{hosts}{path}{db}"


def _place(kind: str, path: str) -> dict[str, Any]:
    """Return socket, master and db from the path of the URL."""
    if kind == "unix":
        if not path:
            raise InvalidInput("redis+unix must be followed by :///PATH/TO/SOCKET")
        return {"socket": "/" + unquote(path)}
    first, _, second = path.partition("/")
    if kind == "sentinel":
        if not first:
            raise InvalidInput("redis+sentinel://HOST:PORT,… must be followed by /MASTER, the name of the primary")
        return {"master": unquote(first), "db": _db(second)}
    if kind == "cluster" and path:
        raise InvalidInput("redis+cluster://HOST:PORT,… must have nothing after the hosts: a cluster has one database")
    if second:
        raise InvalidInput("redis://HOST:PORT may be followed by /DB only")
    return {"db": _db(first)}


def _db(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise InvalidInput("the database at the end of the URL must be a number")  # it may be a part of a password
    return int(text or 0)


def _hosts(text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]@/\s]*)(?::(\d{1,5}))?", part)
        if match is None or not 0 < int(match[2] or default_port) < 1 << 16:
            raise InvalidInput("each host in a store's URL must be HOST or HOST:PORT, separated by commas")
        found.append((match[1].strip("[]") or "localhost", int(match[2] or default_port)))
    return tuple(found)


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS or name in options:
            # Not with the name: it may be a part of a password.
            raise InvalidInput(f"a store's URL may have each of the options {', '.join(_OPTIONS)} once, and no other")
        if name == "prefix" and not _PREFIX.fullmatch(text):
            raise InvalidInput(f"prefix must be 1 to 64 letters, digits and _ . : -, not {text!r}")
        if name == "timeout":
            options[name] = _timeout(text)
        elif name == "near":
            options[name] = 0 if text == "0" else parse_bytes(text)
            if options[name] is None:
                raise InvalidInput(f"near must be a number of bytes such as 64MB, or 0, not {text!r}")
        elif name == "shards":
            if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_SHARDS):
                raise InvalidInput(f"shards must be a number from 1 to {MAX_SHARDS}, not {text!r}")
            options[name] = int(text)
        else:
            options[name] = text
    return options


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 60.0:
        raise InvalidInput(f"timeout must be 0.01 to 60 seconds, not {text!r}")
    return seconds
