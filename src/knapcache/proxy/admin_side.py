"""The admin API of the owner process: its tokens, its audit log, and the numbers of other proxies."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette

from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.audit import AuditLog
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.shared_sessions import SharedSessions
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.events.events import EventBuffer
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Features
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings
from knapcache.proxy.shared import SharedStoreMember
from knapcache.proxy.storage import Storage


class AdminSide:
    """The admin API, and what it needs beside the pipeline."""

    def __init__(
        self,
        settings: Settings,
        admin_token: str,
        storage: Storage,
        pipeline: EventPipeline,
        events: EventBuffer,
        authenticator: Authenticator,
        started: float,
        features: Features,
    ) -> None:
        self.tokens = AdminTokens(settings, storage.folder, admin_token)
        self._member: SharedStoreMember | None = None
        fields: dict[str, Any] = {
            "history": pipeline.history,
            "recent": pipeline.recent,
            "upstream_health": pipeline.upstream_health,
        }
        if storage.shared is not None:
            assert storage.folder is not None
            storage.shared.may_own = True
            self._member = SharedStoreMember(settings, storage.folder, storage.shared, storage.cache, pipeline, started)
            fields |= self._member.admin_fields
            fields["sessions"] = SharedSessions(self.tokens, storage.shared.documents, storage.secret)
        audit_folder = storage.folder if settings.audit_log else None
        self.app: Starlette = admin_app(
            AdminContext(
                settings=settings,
                tokens=self.tokens,
                audit=AuditLog(audit_folder, settings.audit_log_bytes),
                started=started,
                cache=storage.cache,
                memory_fallback=storage.memory_fallback,
                authenticator=authenticator,
                flush_events=events.flush,
                metrics=pipeline.metrics,
                request_log=None if pipeline.request_log is None else pipeline.request_log.path,
                features=features,
                **fields,
            )
        )

    async def close(self) -> None:
        """Stop what runs for the admin API."""
        await self.app.state.admin.close()

    async def close_member(self) -> None:
        """Publish for the last time. The history must have counted the last events."""
        if self._member is not None:
            await self._member.close()
