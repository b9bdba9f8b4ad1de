"""The data directory, the store and the cache of one process, and the lock of the owner.

If the store cannot be opened (full disk, not a knapcache file, another secret), the proxy still serves. Answers are
then kept in memory, an error is logged, the summary reports it, and the file is left untouched until the next start.
With several workers each process then has its own memory store, and the first to take the lock has the pipeline.

With the setting `store` the entries are in a server that proxies on many machines share. A proxy can start before the
server answers. It does not start if the server answers and the store cannot be used: a wrong setting should end a
rollout.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from knapcache.cache.internal import InternalCache
from knapcache.cache.option_groups import KeyOptions, PolicyOptions, PriceOptions, StoreSource
from knapcache.cache.options import seal_secret
from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import data_directory, server_secret
from knapcache.store.base import wall_clock
from knapcache.store.encryption import read_keys
from knapcache.store.redis.store import RedisStore
from knapcache.store.sqlite.owner_lock import OwnerLock
from knapcache.threads import run_with_deadline

log = logging.getLogger("knapcache.serve")

MAX_MEMORY_FALLBACK = 1 << 30
"""Bytes of memory used instead of a file: the configured capacity may be a disk's and not fit into memory."""


class Storage:
    """Where entries are, and whether this process decides about them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = None if settings.memory_only else data_directory(settings.path)
        """The data directory; None: nothing is written to files."""
        self.secret = server_secret(self.folder, settings.secret.get_secret_value() if settings.secret else None)
        self.encryption_keys = read_keys(settings.encryption_key_env, settings.encryption_key_file)
        self._owner_lock: OwnerLock | None = None
        self.shared: RedisStore | None = None
        """The store that proxies on several machines share; None: there is none."""
        if settings.store is not None:
            # Only the process with the pipeline may own a shared store: its history has what the owner decides.
            self.shared = self._open_shared(own=settings.workers == 1 or self.acquire_ownership())
        self._cache: InternalCache | None = None
        self.memory_fallback = False
        """Whether entries are in memory because the cache's file could not be opened."""

    @property
    def cache(self) -> InternalCache:
        assert self._cache is not None
        return self._cache

    def _open_shared(self, *, own: bool) -> RedisStore:
        """Open the store of the setting `store`. own: become the owner if there is none, now or later."""
        address = self._settings.store_address
        assert address is not None
        secret, keys = seal_secret(self.secret), self.encryption_keys
        store = RedisStore(
            address, self._settings.capacity, own=own, secret=secret, encryption_keys=keys, clock=wall_clock
        )
        store.may_own = own
        return store

    def open(self, quotas: Mapping[str, int], prices: Mapping[str, Any]) -> None:
        """Open the cache: in the shared store, in a file, or in memory if the file cannot be opened.

        quotas   bytes of each namespace with a quota
        prices   of models
        """
        settings, path = self._settings, self._settings.cache_file
        open_source = partial(
            InternalCache,
            policy=PolicyOptions(name=settings.policy, shadows=settings.shadows, quotas=quotas),
            price=PriceOptions(cost=settings.cost, prices=prices, fallback=settings.fallback_price),
            keys=KeyOptions(secret=self.secret),
            ttl=settings.ttl,
            wait=settings.wait,
        )
        if self.shared is not None:
            self._cache = open_source(StoreSource(store=self.shared))
            return
        source = StoreSource(
            path=path,
            capacity=settings.capacity,
            synchronous=settings.synchronous,
            encryption_key=self.encryption_keys or None if path else None,
            exclusive=True,  # the data directory is the proxy's own
        )
        try:
            self._cache = open_source(source)
        except (StoreError, InvalidInput) as error:
            if path is None or not (isinstance(error, StoreError) or path.is_dir()):
                raise  # the settings are wrong, not the file
            capacity = min(settings.capacity, MAX_MEMORY_FALLBACK) // settings.workers
            self._cache, self.memory_fallback = open_source(StoreSource(capacity=capacity)), True
            text = "STORE NOT OPENED: answers are kept in memory (%d bytes) until the next start. Reason: %s"
            log.error(text, capacity, error)

    def acquire_ownership(self) -> bool:
        """Try to take the owner's lock; the operating system frees it when its process ends.

        The store's own lock is not enough: with the memory fallback every process owns a store, and the owner of a
        shared one may be on another machine.
        """
        assert self.folder is not None
        if self._owner_lock is None and (self._settings.store is not None or self.cache.owner):
            with contextlib.suppress(NotOwner):
                self._owner_lock = OwnerLock(self.folder / "pipeline")
        return self._owner_lock is not None

    async def close(self) -> None:
        """Close the store, and release the lock."""
        if not await run_with_deadline(self.cache.close, max(5.0, self._settings.grace)):
            log.error("Store not closed: it does not answer. Committed answers are safe.")
        if self._owner_lock is not None:
            self._owner_lock.release()
