"""The content log as a feature of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from knapcache.cache import Answer
from knapcache.exchange.exchange import Exchange
from knapcache.features.content_log.admin import ContentAdmin
from knapcache.features.content_log.file import FILE_NAME
from knapcache.features.content_log.log import ContentLog
from knapcache.features.content_log.record import MAX_ANSWER, LoggedContent
from knapcache.features.content_log.settings import ContentLogSettings
from knapcache.proxy.admin_routes import AdminServices, Route, SummaryField
from knapcache.proxy.events.events import Event
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.wire.base import Form


class ContentCapture(CallHooks):
    """Collects the content of one request."""

    __slots__ = ("_exchange", "_form", "_log", "_pieces", "_size", "_written")
    name = "content_log"

    def __init__(self, content_log: ContentLog, exchange: Exchange) -> None:
        self._log, self._exchange = content_log, exchange
        self._pieces: list[bytes] = []
        self._size, self._written = 0, False
        self._form: Form = "json"

    def forwarding(self, content_type: str) -> None:
        self._form = "sse" if content_type.startswith("text/event-stream") else "json"

    def forwarded(self, piece: bytes) -> None:
        """Keep a piece of that answer. Of an answer that is too long nothing is kept."""
        self._size += len(piece)
        if self._size <= MAX_ANSWER:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def recorded(self, event: Event, answer: Answer | None) -> None:
        """Queue the request for the log. Of the events of several embeddings, the first one is its line."""
        if self._written:
            return
        self._written = True
        payload, form = b"".join(self._pieces), self._form
        if answer is not None:
            payload, form = answer.payload, answer.meta.get("form") or "json"  # an error has no form, and is plain
        exchange = self._exchange
        content = LoggedContent(event=event, format=exchange.format, body=exchange.body, payload=payload, form=form)
        self._log.append(content, len(exchange.raw))


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
