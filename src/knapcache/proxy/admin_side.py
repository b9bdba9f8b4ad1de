"""The admin API of the owner process: its tokens, its audit log, and the numbers of other proxies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette

from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.audit import AuditLog
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.shared_sessions import SharedSessions
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.events.published import SharedProxies
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings.secrets import proxy_id
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import shown_url
from knapcache.threads import run_with_deadline

CLOSE_SECONDS = 2.0
"""Seconds that the last publication may take."""


def shared_proxies(context: ProxyContext, store: RedisStore, pipeline: EventPipeline, started: float) -> SharedProxies:
    """Return the proxies of a shared store, with this one."""
    assert context.folder is not None
    assert context.settings.store_address is not None
    return SharedProxies(
        store.documents,
        shown_url(context.settings.store_address),
        store.server_state,
        {
            "id": proxy_id(context.folder),
            "host": socket.gethostname()[:255] or "unknown",
            "release": version("knapcache"),
            "started": started,
            "workers": context.settings.workers,
        },
        pipeline.history,
        pipeline.recent,
        pipeline.upstream_health,
        owner=lambda: context.cache.owner,
    )


class AdminSide:
    """The admin API, and what it needs beside the pipeline."""

    def __init__(
        self,
        context: ProxyContext,
        pipeline: EventPipeline,
        authenticator: Authenticator,
        admin_token: str,
        *,
        started: float,
        memory_fallback: bool,
    ) -> None:
        settings, store = context.settings, context.shared_store
        self.tokens = AdminTokens(settings, context.folder, admin_token)
        self._shared: SharedProxies | None = None
        fields: dict[str, Any] = {
            "history": pipeline.history,
            "recent": pipeline.recent,
            "upstream_health": pipeline.upstream_health,
        }
        if store is not None:
            store.may_own = True
            self._shared = shared = shared_proxies(context, store, pipeline, started)
            self._publishing = asyncio.create_task(shared.publisher.run())
            sessions = SharedSessions(self.tokens, store.documents, context.secret)
            fields = {"history": shared.history, "recent": shared.recent, "upstream_health": shared.health}
            fields |= {"shared": shared, "sessions": sessions}
        audit_folder = context.folder if settings.audit_log else None
        self.app: Starlette = admin_app(
            AdminContext(
                settings=settings,
                tokens=self.tokens,
                audit=AuditLog(audit_folder, settings.audit_log_bytes),
                started=started,
                cache=context.cache,
                memory_fallback=memory_fallback,
                authenticator=authenticator,
                flush_events=context.events.flush,
                metrics=pipeline.metrics,
                request_log=None if pipeline.request_log is None else pipeline.request_log.path,
                features=context.features,
                **fields,
            )
        )

    async def close(self) -> None:
        await self.app.state.admin.close()

    async def close_shared(self) -> None:
        """Publish for the last time. The history must have counted the last events."""
        if self._shared is not None:
            self._publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._publishing
            await run_with_deadline(self._shared.publisher.close, CLOSE_SECONDS)
