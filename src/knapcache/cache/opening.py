"""Open the stores that commands work on: files of SQLite, and URLs of Valkey or Redis.

A command has the secret of the cache; the seals of the store have one that is derived from it. The proxy's secret is
saved in hex, so a text of hex digits may stand for the bytes or for itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from knapcache.cache.options import seal_secret
from knapcache.cache.snapshot import read_snapshot
from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.store.base import Store
from knapcache.store.redis.urls import SCHEMES, Address
from knapcache.store.registry import split_url
from knapcache.store.size_limits import size_limit_of
from knapcache.store.sqlite.database import has_other_secret
from knapcache.store.sqlite.files import require_own_files
from knapcache.store.sqlite.layout import MIN_SIZE_LIMIT, DiskLayout
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore, is_open_here

StorePlace = str | os.PathLike[str]
"""A path, or a URL of Valkey or Redis."""


def is_url(place: StorePlace) -> bool:
    """Return whether a place is a URL of Valkey or Redis."""
    return split_url(place)[0] in SCHEMES


def place_name(place: StorePlace) -> str:
    """Return a place as messages show it: without user and password."""
    if not is_url(place):
        return os.fspath(place)
    from knapcache.store.redis.existing import place_of

    return place_of(_address(place))


def existing(path: StorePlace) -> Path:
    """Return the path of a cache file that exists: looking must not create one, nor touch another program's."""
    found = Path(path)
    if not found.is_file():
        raise InvalidInput(f"{found}: no such file")
    if not is_open_here(found):
        require_own_files(found)
    return found


def open_to_read(place: StorePlace, secret: bytes | None = None, keys: Sequence[bytes] = ()) -> Store:
    """Open the store as a reader. `keys`: those that it is encrypted with."""
    return _open(place, secret, keys, own=False)


def open_to_write(place: StorePlace, secret: bytes | None = None, keys: Sequence[bytes] = ()) -> Store:
    """Open the file of a store as its owner; NotOwner while another process owns it."""
    return _open(place, secret, keys, own=True)


def _open(place: StorePlace, secret: bytes | None, keys: Sequence[bytes], *, own: bool) -> Store:
    seals = seals_of(place, secret)
    if is_url(place):
        from knapcache.store.redis.existing import open_existing

        return open_existing(_address(place), seals, keys, own=own)
    return SqliteStore.open_file(Path(place), own=own, secret=seals, encryption_keys=keys)


def seals_of(place: StorePlace, secret: bytes | None) -> bytes:
    """Return the secret of the seals of a store that exists, from the secret of its cache. StoreError."""
    if not is_url(place):
        return seal_secret_of(existing(place), secret)
    from knapcache.store.redis.existing import secret_of

    return secret_of(_address(place), seal_secrets(secret))


def seal_secret_of(path: Path, secret: bytes | None, *, trace: bool = True) -> bytes:
    """Return the secret of a file's seals, from the secret of its cache: raw, or in hex as the proxy saves its own.

    trace: as in `has_other_secret`. StoreError.
    """
    for seals in seal_secrets(secret):
        if not has_other_secret(path, seals, trace=trace):
            return seals
    problem = "a secret, and none was given" if secret is None else "another secret than the one given"
    raise StoreError(f"{path} was written under {problem}")


def seal_secrets(secret: bytes | None) -> list[bytes]:
    """Return the secrets that seals may have, from the secret of a cache."""
    return [seal_secret(form) for form in secret_forms(secret)]


def secret_forms(secret: bytes | None) -> list[bytes | None]:
    """Return what the secret of a cache may be: the bytes themselves, and what they stand for in hex."""
    if secret is not None and len(secret) % 2 == 0 and re.fullmatch(rb"[0-9a-f]{32,128}", secret):
        return [secret, bytes.fromhex(secret.decode())]
    return [secret]


def secret_in_use(place: StorePlace, secret: bytes | None) -> bytes | None:
    """Return the secret of a cache that exists, in the form in which its keys use it; None: it has none."""
    seals = seals_of(place, secret)
    return next(form for form in secret_forms(secret) if seal_secret(form) == seals)


def open_as_owner(place: StorePlace, secret: bytes | None, keys: Sequence[bytes], capacity: int | None) -> Store:
    """Open a store as its owner, to import entries. NotOwner, StoreError.

    secret     in the form in which the keys of the cache use it
    capacity   size limit of a store that does not exist yet; None: the store exists and has one
    """
    size_limit, seals = capacity or _stored_size_limit(place, secret, keys), seal_secret(secret)
    if not is_url(place):
        return SqliteStore(Path(place), size_limit, SqliteOptions(secret=seals, encryption_keys=keys), own=True)
    from knapcache.store.redis.store import RedisStore

    store = RedisStore(_address(place), size_limit, own=True, secret=seals, encryption_keys=keys)
    try:
        if not store.owner:
            store.load_snapshot()  # StoreError if the server does not answer
            raise NotOwner(f"{place_name(place)} is owned by another process")
    except BaseException:
        store.close()
        raise
    return store


def _stored_size_limit(place: StorePlace, secret: bytes | None, keys: Sequence[bytes]) -> int:
    """Return the size limit of a store that exists, or what it holds if that is more."""
    with closing(open_to_read(place, secret, keys)) as store:
        used = store.size_limit if isinstance(store, SqliteStore) else store.totals().size
        return max(used, size_limit_of_store(store) or 0)


def store_exists(place: StorePlace) -> bool:
    """Return whether there is a store. StoreError if a server does not answer."""
    if not is_url(place):
        return Path(place).exists()
    from knapcache.store.redis.existing import stored_capacity

    return stored_capacity(_address(place)) is not None


def snapshot_capacity(store: Store) -> int | None:
    """Return the capacity of the policy in a store's snapshot, if there is one."""
    snapshot = read_snapshot(store.load_snapshot() or b"")
    return None if snapshot is None else snapshot.policy.capacity


def size_limit_of_store(store: Store) -> int | None:
    """Return the size limit that a store's owner was opened with; None if it is not known."""
    if isinstance(store, SqliteStore):
        capacity = snapshot_capacity(store)
        return None if capacity is None else disk_size_limit(capacity)
    return store.size_limit


def disk_size_limit(capacity: int) -> int:
    """Return the size limit of a SQLite store with this capacity."""
    return size_limit_of(capacity, lambda size_limit: DiskLayout.of(size_limit).capacity, MIN_SIZE_LIMIT)


def _address(place: StorePlace) -> Address:
    from knapcache.store.redis.existing import command_address

    return command_address(*split_url(place))
