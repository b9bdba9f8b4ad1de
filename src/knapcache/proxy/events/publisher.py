"""Publishes what one proxy knows for the other proxies of a shared store: its status, and its history in parts.

    kind             content                                         published                    lives
    status           host, version, role, health, recent requests    every INTERVAL seconds       STATUS_SECONDS
    open             totals and the rows that may change             every INTERVAL, if changed   HISTORY_SECONDS
    minutes, hours,  rows that do not change (shared_documents.py)      when their boundary moves    HISTORY_SECONDS
    days

The event loop only copies the newest events. A thread packs, compresses and sends: 3 ms in INTERVAL seconds. While the
server is away, or takes no writes, nothing is published; the next success publishes everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from knapcache.errors import InvalidInput, StoreError
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.history import History
from knapcache.proxy.events.recent import RecentRequests
from knapcache.proxy.events.shared_documents import CLOSED, MAX_EVENTS, MAX_ROWS, Boundary, encode_part, encode_status
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.store.redis.documents import MAX_DOCUMENT, Documents

log = logging.getLogger("knapcache.serve")

INTERVAL = 2.0
STATUS_SECONDS = 10.0
HISTORY_SECONDS = 32 * 86_400.0
"""How long the history of a proxy that has ended is part of the sums."""
MAX_PROXIES = 128
"""Proxies whose documents are kept, running ones and those that have ended. The least recent ones are removed first."""


class ProxyPublisher:
    """Publishes for one proxy. identity: id, host, release, started and workers of its status."""

    def __init__(
        self,
        documents: Documents,
        identity: dict[str, Any],
        history: History,
        recent: RecentRequests,
        health: UpstreamHealth,
        owner: Callable[[], bool],
    ) -> None:
        self.documents, self.identity = documents, identity
        self._history, self._recent, self._health, self.is_owner = history, recent, health, owner
        self._lock = threading.Lock()
        self._published: int | None = None
        """`History.changes` of the last published part `open`."""
        self._boundary: Boundary | None = None
        self._refused = False

    async def run(self) -> None:
        """Publish every INTERVAL seconds until cancelled."""
        while True:
            recent, upstreams = self._recent.newest(MAX_EVENTS), self._health.report()
            await asyncio.to_thread(self.publish, recent, upstreams)
            await asyncio.sleep(INTERVAL)

    def publish(self, recent: list[tuple[int, Event]], upstreams: list[dict[str, Any]]) -> None:
        """Publish everything that has changed, if the server takes it."""
        with self._lock:
            try:
                self._publish_history()
                status = self.identity | {
                    "time": time.time(),
                    "owner": self.is_owner(),
                    "requests": self._history.total().requests,
                    "upstreams": upstreams,
                }
                self._put("status", encode_status(status, recent), STATUS_SECONDS)
            except StoreError:  # the store logs its state
                self._published = self._boundary = None  # the server may have lost its data

    def _publish_history(self) -> None:
        boundary, changes = self._history.boundary(), self._history.changes
        if changes == self._published and boundary == self._boundary:
            return
        for kind in CLOSED:  # first, so that no reader of `open` finds rows missing
            if self._boundary is None or getattr(boundary, kind) != getattr(self._boundary, kind):
                self._put(kind, self._closed_part(boundary, kind), HISTORY_SECONDS)
        self._put("open", encode_part(boundary, self._history.part(boundary)), HISTORY_SECONDS)
        self._published, self._boundary = changes, boundary

    def _closed_part(self, boundary: Boundary, kind: str) -> bytes:
        """Return the document of a closed part. With many shadows it may be too large: then it has fewer rows."""
        limit = MAX_ROWS
        while True:
            document = encode_part(boundary, self._history.part(boundary, kind, limit))
            if len(document) <= MAX_DOCUMENT or limit <= 1:
                return document
            limit //= 2

    def _put(self, kind: str, content: bytes, seconds: float) -> None:
        try:
            self.documents.put(kind, self.identity["id"], content, seconds, limit=MAX_PROXIES)
        except InvalidInput as error:
            if not self._refused:
                log.error("Numbers of this proxy not published: %s of %s: %s", kind, self.identity["id"], error)
            self._refused = True

    def close(self) -> None:
        """Publish the last history, and remove the status."""
        with self._lock, contextlib.suppress(StoreError):
            self._publish_history()
            self.documents.remove("status", self.identity["id"])
