"""Opens a shared store, publishes the numbers of this proxy in it, and reads those of the other proxies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

from knapcache.cache.internal import InternalCache
from knapcache.cache.options import seal_secret
from knapcache.proxy.events.merged import MergedHealth, MergedHistory, MergedRecent, SharedProxies
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.events.published import PublishedProxies
from knapcache.proxy.events.publisher import ProxyPublisher
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import proxy_id
from knapcache.store.base import wall_clock
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import shown_url
from knapcache.threads import run_with_deadline

CLOSE_SECONDS = 2.0
"""Seconds that the last publication may take."""


def open_shared_store(settings: Settings, secret: bytes, keys: tuple[bytes, ...], *, own: bool) -> RedisStore:
    """Open the store of the setting `store`. own: become the owner if there is none, now or later."""
    address = settings.store_address
    assert address is not None
    store = RedisStore(
        address, settings.capacity, own=own, secret=seal_secret(secret), encryption_keys=keys, clock=wall_clock
    )
    store.may_own = own
    return store


class SharedStoreMember:
    """Publishes for this proxy, in the process that has its event pipeline."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        store: RedisStore,
        cache: InternalCache,
        pipeline: EventPipeline,
        started: float,
    ) -> None:
        address = settings.store_address
        assert address is not None
        identity = {
            "id": proxy_id(folder),
            "host": socket.gethostname()[:255] or "unknown",
            "release": version("knapcache"),
            "started": started,
            "workers": settings.workers,
        }
        history, recent, health = pipeline.history, pipeline.recent, pipeline.upstream_health
        self._publisher = ProxyPublisher(store.documents, identity, history, recent, health, owner=lambda: cache.owner)
        others = PublishedProxies(store.documents, str(identity["id"]), history.totals)
        self.admin_fields: dict[str, Any] = {
            "history": MergedHistory(history, others),
            "recent": MergedRecent(recent, str(identity["host"]), others),
            "upstream_health": MergedHealth(health, others),
            "shared": SharedProxies(self._publisher, others, history, shown_url(address), store.engine_state),
        }
        """Fields of the AdminContext with the numbers of all proxies."""
        self._task = asyncio.create_task(self._publisher.run())

    async def close(self) -> None:
        """Publish for the last time. The history must have counted the last events."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await run_with_deadline(self._publisher.close, CLOSE_SECONDS)
