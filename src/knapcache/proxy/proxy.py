"""One process of the proxy: its objects are built from the settings, opened on its event loop, and closed in order.

storage      the data directory, the store and the cache (storage.py)
upstreams    providers, groups and the embedded model (upstream/upstreams.py)
features     parts that can be left out (features.py)
flow         events on their way to the pipeline, which the owner process has (event_flow.py)
admin        the admin API, in the owner process (admin_side.py)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from knapcache.cache.internal import InternalCache
from knapcache.errors import InvalidInput
from knapcache.price.meter import USD_PER_SECOND, Meter
from knapcache.proxy.admin_side import AdminSide
from knapcache.proxy.event_flow import EventFlow
from knapcache.proxy.events.events import EventBuffer
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.features import Features, ProxyContext
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import LoadedSettings
from knapcache.proxy.settings.secrets import admin_token
from knapcache.proxy.storage import Storage
from knapcache.proxy.upstream.upstreams import Upstreams
from knapcache.threads import DeadlinePool

log = logging.getLogger("knapcache.serve")

Load = Callable[[], LoadedSettings]
RELOADED = ("admin_token", "admin_tokens", "tenants")
"""Settings of the core that SIGHUP applies. Those of features are in their specs."""


class Proxy:
    """One process of the proxy."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.started = settings, time.time()
        self.storage = Storage(settings)
        self.admin_token = admin_token(self.storage.folder, settings.fixed_admin_token)
        self.authenticator = Authenticator(settings, self.storage.secret)
        self._quotas = self.authenticator.quotas()
        self.upstreams = Upstreams(settings)
        embedded = self.upstreams.embedded_model
        prices: dict[str, Any] = {**({embedded.name: None} if embedded else {}), **settings.prices}
        self.storage.open(self._quotas, prices)
        self.meter = Meter(settings.cost, prices, settings.fallback_price or USD_PER_SECOND)
        self.body_pool = DeadlinePool("knapcache-bodies", threads=1)
        """Parses long bodies. One thread: of several, each could hold the interpreter's lock before the event loop's
        turn comes, and each needs the memory of its body."""
        self.flow = EventFlow(self.storage.acquire_ownership, self._become_owner)
        self.features = Features()
        self.features.open(
            ProxyContext(
                settings=settings,
                folder=self.storage.folder,
                secret=self.storage.secret,
                encryption_keys=self.storage.encryption_keys,
                cache=self.cache,
                shared_store=self.storage.shared,
                upstreams=self.upstreams,
                meter=self.meter,
                events=self.events,
                body_pool=self.body_pool,
                features=self.features,
            )
        )
        self._admin: AdminSide | None = None
        """None: another process has it."""
        self.ready = False
        """Whether requests are served: after `open`, before `close`."""

    @property
    def cache(self) -> InternalCache:
        return self.storage.cache

    @property
    def events(self) -> EventBuffer:
        return self.flow.buffer

    @property
    def admin_app(self) -> Callable[..., Awaitable[None]] | None:
        """The ASGI app for everything but /v1: the admin API, or the way to the owner's."""
        return self.flow.client if self._admin is None else self._admin.app

    async def open(self) -> None:
        await self.upstreams.open()
        self.features.start()
        await self.flow.open(self.storage.folder, alone=self.settings.workers == 1)
        self.ready = True

    async def _become_owner(self) -> EventPipeline:
        """Open the event pipeline and the admin API, and serve both to the other processes."""
        storage, settings = self.storage, self.settings
        pipeline = EventPipeline(
            settings,
            storage.folder,
            storage.cache,
            self.events,
            self.features,
            self.flow.watchdog,
            storage.encryption_keys,
        )
        self.features.become_owner(pipeline)
        if storage.memory_fallback:
            self.features.context.notify("store_fallback", path=str(settings.cache_file))
        self._admin = AdminSide(
            self.features.context,
            pipeline,
            self.authenticator,
            self.admin_token,
            started=self.started,
            memory_fallback=storage.memory_fallback,
        )
        if settings.workers > 1:
            assert storage.folder is not None
            await self.flow.serve_workers(storage.folder, self._admin.app, pipeline, self.features)
        return pipeline

    def not_ready(self) -> str:
        """Return why this process should get no requests yet, or no more; empty: it should."""
        return self.features.not_ready() if self.ready else "the proxy is starting or stopping"

    def failing_upstreams(self) -> list[str]:
        """Return one line for each upstream that fails now. Only the owner process knows them."""
        pipeline = self.flow.pipeline
        states = [] if pipeline is None else pipeline.upstream_health.report()
        return [f"upstream {one['name']} fails: {one['reason']}" for one in states if one["failing_now"]]

    async def reload(self, load: Load) -> None:
        """Read the settings again, and apply those that need no restart.

        An error changes nothing. Other settings need a restart; the log names those that have changed.
        """
        try:
            new = (await asyncio.to_thread(load)).settings
            if bool(new.tenants) != bool(self.settings.tenants):
                raise InvalidInput("tenants: the step from no tenants to some, or back, needs a restart")
            names = (*RELOADED, *(name for spec in feature_specs() for name in spec.reloaded))
            applied = self.settings.model_copy(update={name: getattr(new, name) for name in names})
            if self._admin is not None:
                await asyncio.to_thread(self._admin.tokens.apply, applied)
        except InvalidInput as error:
            log.error("Settings not reloaded: %s", error)
            return
        self.authenticator.replace_tenants(applied.tenants)
        self.features.configure(applied)
        self.settings = applied
        log.info("Settings reloaded: %s.", ", ".join(names))
        others = [name for name in Settings.model_fields if getattr(new, name) != getattr(applied, name)]
        if self.authenticator.quotas() != self._quotas:
            others.append("quota of tenants")
        if others:
            log.warning("Changed settings that need a restart: %s", ", ".join(others))

    async def close(self) -> None:
        """Stop serving: flush events, write files, close connections."""
        self.ready = False
        self.body_pool.close()
        await self.flow.stop()
        await self.features.close()
        await self.flow.close()
        if self._admin is not None:
            await self._admin.close()
        if self.flow.pipeline is not None:
            await asyncio.to_thread(self.flow.pipeline.close)
        if self._admin is not None:
            await self._admin.close_shared()
        await self.upstreams.close()
        await self.storage.close()
