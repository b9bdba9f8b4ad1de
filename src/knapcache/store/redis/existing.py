"""Open a store that is in a server already, for commands, and describe it.

A command does not know the capacity of the cache, and must not change it: it is the sum of the shards' limits. Nor may
it create a store under a prefix that was mistyped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.encryption import Encryption
from knapcache.store.redis.layout import MIN_SIZE_LIMIT, KeyNames, ServerLayout, owner_tag
from knapcache.store.redis.membership import IDENTITY, identity_in, require_no_eviction
from knapcache.store.redis.server import RedisServer, as_number
from knapcache.store.redis.server_state import NodeBreakers
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import Address, parse, shown_url
from knapcache.store.size_limits import size_limit_of
from knapcache.store.sqlite.rows import Sealer

MIN_TIMEOUT = 5.0
"""Seconds that a reply may take. The default of a URL is for requests, which go upstream instead of waiting."""


class ServerOverview(NamedTuple):
    """A store in a server, and the server. `inspect --json` has these names."""

    engine: str
    """Such as "Valkey 9.1.0"."""
    topology: str
    """Such as "cluster of 3 primaries and 3 replicas"."""
    shards: int
    owner: bool
    """Whether a process owns the store."""
    entries: int
    used: int
    limit: int
    """The capacity: bytes for entries."""
    nursery_used: int
    nursery_limit: int


class ServerCheck(NamedTuple):
    """What `check_server` finds."""

    name: str
    """Such as "Valkey 9.1.0"."""
    exists: bool
    """Whether the server has a store with the prefix."""
    clock_ahead: float
    """Seconds that its clock is ahead of this machine's, with an error of half the time of a reply."""


def check_server(address: Address, size_limit: int, secret: bytes, encryption_keys: Sequence[bytes]) -> ServerCheck:
    """Check whether a process could use a store of this size in the server. Writes nothing.

    InvalidInput if the server may evict keys by itself; StoreError if it does not answer, or has a store of another
    format, secret or encryption. Logs a warning if its memory is too small.
    """
    sealer = Sealer(secret, Encryption(encryption_keys) if encryption_keys else None)
    server, key = RedisServer(address, address.timeout, NodeBreakers()), owner_tag(address.prefix) + b":meta"
    try:
        require_no_eviction(server, ServerLayout.of(size_limit))
        names = {server_name(info) for info in server.each_primary("INFO", "server").values()}
        begin = time.time()
        seconds, microseconds = next(iter(server.each_primary("TIME").values()))
        now = (begin + time.time()) / 2
        found = server.command(key, "HMGET", key, *IDENTITY)
    finally:
        server.close()
    if found[0] is not None:
        identity_in(found, address, sealer)
    return ServerCheck(" and ".join(sorted(names)), found[0] is not None, seconds + microseconds / 1e6 - now)


def command_address(scheme: str, location: str) -> Address:
    """Return the address of `scheme:location` for a command: with more patience, and without a near cache."""
    address = parse(scheme, location)
    return replace(address, timeout=max(address.timeout, MIN_TIMEOUT), near=0)


def place_of(address: Address) -> str:
    """Return where a store is, without user and password."""
    return f"{shown_url(address)}, prefix {address.prefix}"


def secret_of(address: Address, secrets: Sequence[bytes]) -> bytes:
    """Return that of some secrets which the seals of the store at an address have.

    InvalidInput if there is no store; StoreError if it has none of them, or if the server does not answer.
    """
    mark = _existing_meta(address)[1]
    for secret in secrets:
        if Sealer(secret).secret_mark.hex() == mark:
            return secret
    problem = "a secret, and none was given" if secrets == [b""] else "another secret than the one given"
    raise StoreError(f"{place_of(address)}: the cache was written under {problem}")


def open_existing(address: Address, secret: bytes, encryption_keys: Sequence[bytes] = (), *, own: bool) -> RedisStore:
    """Open the store at an address with the capacity that it has. `own`: become the owner if there is none.

    InvalidInput if there is no store; StoreError if the server does not answer, or for another secret.
    """
    capacity = capacity_in(address, _existing_meta(address)[0])
    size_limit = server_size_limit(capacity) if capacity else MIN_SIZE_LIMIT
    store = RedisStore(address, size_limit, own=own, secret=secret, encryption_keys=encryption_keys)
    try:
        store._member.attachment()  # StoreError if the server did not answer
    except StoreError:
        store.close()
        raise
    return store


def stored_capacity(address: Address) -> int | None:
    """Return the capacity of the store at an address; None if there is no store, or if it never had an owner."""
    meta = _meta(address)
    return None if meta is None else capacity_in(address, meta[0]) or None


def server_size_limit(capacity: int) -> int:
    """Return the size limit of a store with this capacity."""
    return size_limit_of(capacity, lambda size_limit: ServerLayout.of(size_limit).capacity, MIN_SIZE_LIMIT)


def capacity_in(address: Address, shards: int) -> int:
    """Return the sum of the limits of a store's shards; 0 if it never had an owner."""
    server = RedisServer(address, address.timeout, NodeBreakers())
    try:
        keys = KeyNames(address.prefix, shards).totals
        return sum(max(0, as_number(server.command(key, "HGET", key, "limit"))) for key in keys)
    finally:
        server.close()


def overview(store: RedisStore) -> ServerOverview:
    """Describe a store and its server. StoreError when the server does not answer."""
    attachment, server = store._member.attachment(), store._member.server
    names = attachment.names
    servers = list(server.each_primary("INFO", "server").values())
    replication = server.each_primary("INFO", "replication").values()
    replicas = sum(int(info.get("connected_slaves", 0)) for info in replication)
    totals = attachment.reader.shard_totals()
    nursery = [as_number(server.command(key, "HGET", key, "nroom")) for key in names.totals]
    return ServerOverview(
        engine=" and ".join(sorted({server_name(info) for info in servers})),
        topology=_topology(store.address, len(servers), replicas),
        shards=names.shards,
        owner=bool(server.command(names.owner, "EXISTS", names.owner)),
        entries=sum(shard[1] for shard in totals),
        used=sum(shard[0] for shard in totals),
        limit=sum(max(0, shard[3]) for shard in totals),
        nursery_used=sum(shard[2] for shard in totals),
        nursery_limit=sum(max(0, limit) for limit in nursery),
    )


def server_name(info: dict[str, object]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of an unknown version')}"


def _topology(address: Address, primaries: int, replicas: int) -> str:
    many = "no replica" if not replicas else "1 replica" if replicas == 1 else f"{replicas} replicas"
    if address.kind == "cluster":
        return f"cluster of {primaries} {'primary' if primaries == 1 else 'primaries'} and {many}"
    return f"Sentinel, {many}" if address.kind == "sentinel" else f"one server, {many}"


def _existing_meta(address: Address) -> tuple[int, str]:
    meta = _meta(address)
    if meta is None:
        raise InvalidInput(f"{place_of(address)}: the server has no cache with this prefix")
    return meta


def _meta(address: Address) -> tuple[int, str] | None:
    """Return the number of shards and the mark of the secret; None if there is no store. StoreError."""
    server, key = RedisServer(address, address.timeout, NodeBreakers()), owner_tag(address.prefix) + b":meta"
    try:
        shards, mark = server.command(key, "HMGET", key, "shards", "secret")
    finally:
        server.close()
    return None if shards is None else (as_number(shards), str(mark or b"", "ascii", "replace"))
