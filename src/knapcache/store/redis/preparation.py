"""Checks made once, when a server first answers: its eviction policy, and the description of the store in it."""

from __future__ import annotations

import logging
from typing import NamedTuple

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import ServerLayout, owner_tag
from knapcache.store.redis.server import RedisServer, as_number
from knapcache.store.redis.urls import Address
from knapcache.store.sqlite.rows import Sealer

log = logging.getLogger("knapcache.store")

FORMAT = 1
MEMORY_FACTOR = 1.3
"""The server's maxmemory, in size limits: below it, fragmentation and replication buffers may leave too little."""


class StoreIdentity(NamedTuple):
    """The values by which a store differs from another one under the same prefix."""

    shards: int
    since: str
    """When it was created, by the clock of the server."""


def prepare(
    server: RedisServer, address: Address, layout: ServerLayout, sealer: Sealer, known: StoreIdentity | None
) -> StoreIdentity:
    """Check the server, and describe the store in it if it is new. known: the store that this process has used.

    InvalidInput for a server that evicts; StoreError for a store of another format, secret or encryption.
    """
    require_no_eviction(server, layout)
    return describe(server, address, layout, sealer, known)


def describe(
    server: RedisServer,
    address: Address,
    layout: ServerLayout,
    sealer: Sealer,
    known: StoreIdentity | None,
    *,
    probe: bool = False,
) -> StoreIdentity:
    """Return the identity of the store in the server; StoreError for one of another format, secret or encryption.

    A server that lost its data has no description. Then this process writes the one that it knows again. If a process
    with another secret was faster, the older store wins: `since` decides, so all processes reach the same result.
    """
    encrypted = 0 if sealer.encryption is None else 1
    new = StoreIdentity(address.shards or layout.shards(cluster=address.kind == "cluster"), "")
    wanted = [FORMAT, (known or new).shards, sealer.secret_mark.hex(), encrypted, (known or new).since]
    found = server.run(scripts.DESCRIBE, [meta_key(address)], *wanted, probe=probe)
    version, shards, secret, was_encrypted, since = (str(value or b"", "ascii", "replace") for value in found)
    place = f"the store with prefix {address.prefix!r}"
    if version != str(FORMAT):
        raise StoreError(f"{place} has format {version}; this version of knapcache reads format {FORMAT}")
    if secret != wanted[2]:
        raise StoreError(f"{place} was written with another secret; all processes must use the same secret")
    if was_encrypted != str(encrypted):
        form = "encrypted: it needs encryption_key" if was_encrypted == "1" else "not encrypted: it takes no key"
        raise StoreError(f"{place} is {form}")
    if not shards.isdigit() or not int(shards):
        raise StoreError(f"{place} is damaged: it has {shards!r} shards")
    return StoreIdentity(int(shards), since)


def meta_key(address: Address) -> bytes:
    """Return the key of the description."""
    return owner_tag(address.prefix) + b":meta"


def require_no_eviction(server: RedisServer, layout: ServerLayout) -> None:
    """Raise InvalidInput if a primary may evict keys by itself: that would break the books."""
    limits = []
    for info in server.each_primary("INFO", "memory").values():
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise InvalidInput(
                f"maxmemory-policy of the server must be noeviction, not {policy}: knapcache decides what to evict"
            )
        limits.append(as_number(info.get("maxmemory", 0)))
    if all(limits) and sum(limits) < MEMORY_FACTOR * layout.size_limit:
        log.warning(
            "maxmemory of the server is %d bytes; a cache of %d bytes needs at least %.1f times as much",
            sum(limits), layout.size_limit, MEMORY_FACTOR,
        )  # fmt: skip
