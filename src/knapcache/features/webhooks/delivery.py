"""Webhooks: a POST for each change of state, sent in the background.

    {"event": "upstream_down", "time": 1763300000.0, "id": "…", "proxy": "host", …}

    x-knapcache-event       the event
    x-knapcache-delivery    the id; the same in every attempt
    x-knapcache-signature   sha256=HEX: HMAC-SHA256 of the body with the webhook's secret

Delivery is at least once, in order: each webhook has a queue of MAX_QUEUED events and one request at a time. A response
of 2xx ends a delivery. Without a response, and after 408, 429 or 5xx, it is tried again, MAX_ATTEMPTS times in all.
Redirects are not followed: they could lead into the proxy's own network. If the queue is full, the event is dropped,
and the log says so. `put` never waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from knapcache.errors import UpstreamFailed
from knapcache.features.webhooks.settings import WebhookSettings
from knapcache.proxy.upstream.client import Client, encode_headers

log = logging.getLogger("knapcache.serve")

MAX_QUEUED = 100
MAX_ATTEMPTS = 6
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
"""Seconds before the second attempt, four times as long before each further one."""
TIMEOUT = 10.0
RETRIED = (408, 429)
MAX_RESPONSE = 65_536

Post = Callable[[str, str, dict[str, str], bytes], Awaitable[int]]
"""Sends a body to a base URL and a path with headers, and returns the status. Raises UpstreamFailed."""


class WebhookClient:
    """The proxy's HTTP client, which follows no redirects."""

    def __init__(self) -> None:
        self._client = Client("the webhook", TIMEOUT, TIMEOUT, TIMEOUT, max_body=MAX_RESPONSE)
        self.close = self._client.close

    async def post(self, base: str, path: str, headers: dict[str, str], body: bytes) -> int:
        """Send a body, and return the status. Raises UpstreamFailed."""
        response = await self._client.request("POST", base, path, encode_headers(headers.items()), body)
        try:
            return response.status
        finally:
            await response.close()


class WebhookDelivery(NamedTuple):
    """The last delivery of a webhook."""

    event: str
    time: float
    delivered: bool
    error: str


def signature(secret: bytes, body: bytes) -> str:
    """Return the value of x-knapcache-signature."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


class Webhook:
    """One webhook: its queue, and the task that empties it."""

    def __init__(
        self, settings: WebhookSettings, post: Post, pause: Callable[[float], Awaitable[Any]] = asyncio.sleep
    ) -> None:
        self.settings, self._post, self._pause = settings, post, pause
        self._secret = settings.secret
        parts = urlsplit(settings.url)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_QUEUED)
        self.last: WebhookDelivery | None = None

    def put(self, message: dict[str, Any]) -> None:
        """Queue an event, if the webhook wants it."""
        if not self.settings.wants(message["event"]):
            return
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            log.error(
                "Webhook %s: event %s dropped, because %d wait.", self.settings.name, message["event"], MAX_QUEUED
            )

    async def run(self) -> None:
        """Deliver events until the task is cancelled. Those that are not delivered then are lost."""
        while True:
            message = await self._queue.get()
            await self.deliver(message)
            self._queue.task_done()

    async def deliver(self, message: dict[str, Any], attempts: int = MAX_ATTEMPTS) -> WebhookDelivery:
        """Deliver one event, with retries, and return the result. A failure is logged."""
        body = json.dumps(message, separators=(",", ":")).encode()  # orjson refuses lone surrogates in a reason
        headers = {
            "content-type": "application/json",
            "user-agent": "knapcache",
            "x-knapcache-event": message["event"],
            "x-knapcache-delivery": message["id"],
        }
        if self._secret is not None:
            headers["x-knapcache-signature"] = signature(self._secret, body)
        for attempt in range(attempts):
            try:
                status = await self._post(self._base, self._path, headers, body)
            except UpstreamFailed as failure:
                error, retried = failure.reason or str(failure), True
            else:
                error = "" if 200 <= status < 300 else f"status {status}"
                retried = status >= 500 or status in RETRIED
            # Also before a retry: the dashboard shows at once that deliveries fail.
            self.last = WebhookDelivery(message["event"], time.time(), not error, error)
            if not retried or attempt + 1 == attempts:
                break
            await self._pause(min(MAX_PAUSE, FIRST_PAUSE * 4**attempt))
        assert self.last is not None
        if self.last.error:
            log.error("Webhook %s: event %s not delivered: %s", self.settings.name, message["event"], self.last.error)
        return self.last


def message_of(event: str, **fields: Any) -> dict[str, Any]:
    return {"event": event, "time": time.time(), "id": secrets.token_hex(8), "proxy": socket.gethostname(), **fields}
