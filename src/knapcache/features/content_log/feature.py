"""The content log as a feature of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from knapcache.features.content_log.admin import ContentAdmin
from knapcache.features.content_log.capture import ContentCapture
from knapcache.features.content_log.file import FILE_NAME
from knapcache.features.content_log.log import ContentLog
from knapcache.features.content_log.settings import ContentLogSettings
from knapcache.proxy.admin_routes import AdminServices, Route, SummaryField
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks


class ContentLogFeature(Feature):
    """Writes requests and answers with their text."""

    name = "content_log"
    sees_hits = True

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        assert context.folder is not None, "settings refuse content_log with memory_only"
        settings = context.settings
        assert isinstance(settings, ContentLogSettings)
        path = context.folder / FILE_NAME
        self.log = ContentLog(path, settings.content_log_bytes, settings.content_log_days, settings.redact)

    def start(self) -> None:
        self.run(self.log.expire_periodically())

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:
        return ContentAdmin(self.context.settings, admin).routes()

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        text = "Whether operators can search the content log: see GET /log."
        return [SummaryField("content_log", bool, text, lambda: self.context.settings.show_content)]

    def begin(self, call: CallContext) -> CallHooks | None:
        return None if call.exchange is None else ContentCapture(self.log, call.exchange)

    async def close(self) -> None:
        await asyncio.to_thread(self.log.close)
