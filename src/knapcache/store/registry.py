"""Open a store by URL or path.

    memory:                   MemoryStore
    PATH, sqlite:PATH         SqliteStore in the file PATH
    sqlite:///ABSOLUTE/PATH   the same
    redis://HOST:PORT/DB      RedisStore in a Valkey or Redis server; redis/urls.py lists all forms

A scheme is two or more letters, or such words joined by "+", before a colon at the beginning of a text. Everything else
is a path, such as "a:b.db" and every pathlib.Path. A path that looks like a URL can be written as "./name:1.db". Paths
are taken literally: there is no percent-decoding and no query.

To add a store: a package with an opener, and one line in STORES. The opener gets the text after the colon.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable

from knapcache.errors import InvalidInput
from knapcache.store.base import Store, StoreOptions
from knapcache.store.memory import MemoryStore
from knapcache.store.redis import urls as redis_urls
from knapcache.store.sqlite.store import SqliteStore


def open_redis(scheme: str, location: str, options: StoreOptions) -> Store:
    """Open a store in Valkey or Redis. Its modules are imported here: most programs do not need them."""
    from knapcache.store.redis.store import RedisStore

    return RedisStore.open(scheme, location, options)


STORES: dict[str, Callable[[str, StoreOptions], Store]] = {
    "memory": MemoryStore.open,
    "sqlite": SqliteStore.open,
    **{scheme: functools.partial(open_redis, scheme) for scheme in redis_urls.SCHEMES},
}

_SCHEME = re.compile(r"([A-Za-z]{2,}(?:\+[A-Za-z]+)?):")


def open_store(url: str | os.PathLike[str], options: StoreOptions) -> Store:
    """Open the store at a URL or path: as its owner, or as a reader while another process owns it."""
    if options.synchronous not in ("normal", "full"):
        raise InvalidInput(f"synchronous must be 'normal' or 'full', not {options.synchronous!r}")
    scheme, location = split_url(url)
    if scheme not in STORES:
        known = ", ".join(f"{name}:" for name in STORES if "+" not in name)
        # The rest of the URL may hold a password.
        raise InvalidInput(f"unknown store {scheme}:, known are {known}; a file of such a name needs ./ before it")
    return STORES[scheme](location, options)


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Return scheme and location; a path is ("sqlite", path)."""
    text = os.fspath(url)
    match = _SCHEME.match(text) if isinstance(url, str) else None
    if match is not None:
        return match[1].lower(), text[match.end() :]
    # Two slashes would begin a URL's host; in a path they mean the same as one.
    return "sqlite", "/" + text.lstrip("/") if text.startswith("//") else text
