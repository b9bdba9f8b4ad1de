"""All that lives as long as the proxy: made from the settings, opened on the event loop, closed in the order of use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import aiohttp

from knapcache.cache import Cache
from knapcache.serve.callers import Callers
from knapcache.serve.events import Journal
from knapcache.serve.secrets import admin_token, data_directory, server_secret
from knapcache.serve.upstream import Upstreams

if TYPE_CHECKING:
    from knapcache.serve.settings import Settings


class Proxy:
    """The parts, by name."""

    upstreams: Upstreams

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = time.time()
        self.folder = None if settings.memory_only else data_directory(settings.path)
        self.secret = server_secret(self.folder)
        given = settings.admin_token
        self.admin_token = admin_token(self.folder, given.get_secret_value() if given else None)
        self.callers = Callers(settings, self.secret)
        self.cache = Cache(
            settings.capacity,
            path=settings.cache_file,
            policy=settings.policy,
            cost=settings.cost,
            ttl=settings.ttl,
            prices=settings.prices,
            fallback=settings.fallback_price,
            secret=self.secret,
            shadows=settings.shadows,
            wait=settings.wait,
        )
        self.journal = Journal()
        self.ready = False
        """Requests are served: it was opened, and was not told to stop."""
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin, on the loop that serves."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self.upstreams = Upstreams(self.settings, self._session, None)
        self._tasks = [asyncio.create_task(self.journal.deliver())]
        self.ready = True

    async def close(self) -> None:
        """Keep what is to be kept, and let go."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(self.cache.close)
