"""The parts of a proxy process that serve HTTP requests, as a protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from knapcache.cache.internal import InternalCache
from knapcache.price.meter import Meter
from knapcache.proxy.events.events import EventBuffer
from knapcache.proxy.features import Features
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings
from knapcache.proxy.upstream.upstreams import Upstreams
from knapcache.threads import DeadlinePool


class ProxyProcess(Protocol):
    """One process of the proxy (proxy.py)."""

    settings: Settings
    authenticator: Authenticator
    upstreams: Upstreams
    features: Features
    meter: Meter
    body_pool: DeadlinePool

    @property
    def cache(self) -> InternalCache:
        """The cache."""

    @property
    def events(self) -> EventBuffer:
        """The events of this process."""

    @property
    def admin_app(self) -> Callable[..., Awaitable[None]] | None:
        """The ASGI app for everything but /v1: the admin API, or the way to the owner's."""

    async def open(self) -> None:
        """Start serving on the running event loop."""

    async def close(self) -> None:
        """Stop serving."""

    def not_ready(self) -> str:
        """Return why this process should get no requests yet, or no more; empty: it should."""

    def failing_upstreams(self) -> list[str]:
        """Return one line for each upstream that fails now."""
