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
from knapcache.proxy.events.published import MergedHealth, MergedHistory, MergedRecent, PublishedProxies, SharedProxies
from knapcache.proxy.events.publisher import ProxyPublisher
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings.secrets import proxy_id
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import shown_url
from knapcache.threads import run_with_deadline

CLOSE_SECONDS = 2.0
"""Seconds that the last publication may take."""


class SharedStoreMember:
    """Publishes for this proxy, in the process that has its event pipeline."""

    def __init__(self, context: ProxyContext, store: RedisStore, pipeline: EventPipeline, started: float) -> None:
        settings, address = context.settings, context.settings.store_address
        assert address is not None
        assert context.folder is not None
        identity = {
            "id": proxy_id(context.folder),
            "host": socket.gethostname()[:255] or "unknown",
            "release": version("knapcache"),
            "started": started,
            "workers": settings.workers,
        }
        history, recent, health = pipeline.history, pipeline.recent, pipeline.upstream_health
        self._publisher = ProxyPublisher(
            store.documents, identity, history, recent, health, owner=lambda: context.cache.owner
        )
        others = PublishedProxies(store.documents, str(identity["id"]), history.totals)
        self.admin_fields: dict[str, Any] = {
            "history": MergedHistory(history, others),
            "recent": MergedRecent(recent, str(identity["host"]), others),
            "upstream_health": MergedHealth(health, others),
            "shared": SharedProxies(self._publisher, others, history, shown_url(address), store.server_state),
        }
        """Fields of the AdminContext with the numbers of all proxies."""
        self._task = asyncio.create_task(self._publisher.run())

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await run_with_deadline(self._publisher.close, CLOSE_SECONDS)


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
        self._member: SharedStoreMember | None = None
        fields: dict[str, Any] = {
            "history": pipeline.history,
            "recent": pipeline.recent,
            "upstream_health": pipeline.upstream_health,
        }
        if store is not None:
            store.may_own = True
            self._member = SharedStoreMember(context, store, pipeline, started)
            fields |= self._member.admin_fields
            fields["sessions"] = SharedSessions(self.tokens, store.documents, context.secret)
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

    async def close_member(self) -> None:
        """Publish for the last time. The history must have counted the last events."""
        if self._member is not None:
            await self._member.close()
