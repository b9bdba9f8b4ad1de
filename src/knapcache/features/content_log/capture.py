"""Collects the body and the answer of one request for the content log."""

from __future__ import annotations

from knapcache.cache import Answer
from knapcache.exchange.exchange import Exchange
from knapcache.features.content_log.log import ContentLog
from knapcache.features.content_log.record import MAX_ANSWER, LoggedContent
from knapcache.proxy.events.events import Event
from knapcache.proxy.hooks import CallHooks
from knapcache.wire.base import Form


class ContentCapture(CallHooks):
    """Collects the content of one request."""

    __slots__ = ("_exchange", "_log", "_pieces", "_size", "_stream", "_written")
    name = "content_log"

    def __init__(self, content_log: ContentLog, exchange: Exchange) -> None:
        self._log, self._exchange = content_log, exchange
        self._pieces: list[bytes] = []
        self._size, self._written, self._stream = 0, False, False

    def forwarding(self, content_type: str) -> None:
        """Prepare for the answer to a request that is sent without the cache."""
        self._stream = content_type.startswith("text/event-stream")

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
        payload, form = b"".join(self._pieces), "sse" if self._stream else "json"
        if answer is not None:
            payload, form = answer.payload, answer.meta.get("form", "json")
        content = LoggedContent(
            event=event,
            format=self._exchange.format,
            body=self._exchange.body,
            payload=payload,
            form=as_form(form),
        )
        self._log.append(content, len(self._exchange.raw))


def as_form(name: str) -> Form:
    """Return the form of a stored answer. An error has none, and is plain."""
    return "compact" if name == "compact" else "sse" if name == "sse" else "json"
