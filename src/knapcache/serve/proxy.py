"""All that lives as long as a process of the proxy: made from the settings, opened on its event loop, closed in order.

alone      one process: it has the record, whoever owns the store
in a team  the owner of the store has the record, and the others send it theirs (team.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from knapcache.cache import Cache
from knapcache.serve.admin import admin_app
from knapcache.serve.callers import Callers
from knapcache.serve.events import Event, Journal
from knapcache.serve.history import History
from knapcache.serve.local import PRICES, LocalModel
from knapcache.serve.metrics import Metrics
from knapcache.serve.record import Record
from knapcache.serve.requestlog import RequestLog
from knapcache.serve.secrets import admin_token, data_directory, server_secret
from knapcache.serve.settings import Settings
from knapcache.serve.team import Inside, Outside
from knapcache.serve.upstream import Upstreams

WATCH = 0.5
"""Seconds between two looks at who owns the store."""


class Proxy:
    """The parts, by name."""

    upstreams: Upstreams

    def __init__(self, settings: Settings, *, team: bool = False) -> None:
        self.settings = settings
        self.started = time.time()
        self.folder = None if settings.memory_only else data_directory(settings.path)
        self.secret = server_secret(self.folder)
        given = settings.admin_token
        self.admin_token = admin_token(self.folder, given.get_secret_value() if given else None)
        self.callers = Callers(settings, self.secret)
        self.local = (
            LocalModel(settings.local_model, settings.local_threads, settings.local_context)
            if any(upstream.local for upstream in settings.upstreams)
            else None
        )
        self.cache = Cache(
            settings.capacity,
            path=settings.cache_file,
            policy=settings.policy,
            cost=settings.cost,
            ttl=settings.ttl,
            prices={**(PRICES if self.local else {}), **settings.prices},
            fallback=settings.fallback_price,
            secret=self.secret,
            shadows=settings.shadows,
            wait=settings.wait,
            quotas=self.callers.quotas(),
        )
        self.journal = Journal()
        self.ready = False
        """Requests are served: it was opened, and was not told to stop."""
        self.rest: Any = None
        """What answers all that is not the hot path."""
        self._team = team
        self._record: Record | None = None
        self._inside: Inside | None = None
        self._outside: Outside | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin, on the loop that serves."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self.upstreams = Upstreams(self.settings, self._session, self.local)
        if self.local is not None:
            await self.local.start()
        if not self._team or self.cache.owner:
            await self._keep_the_record()
        else:
            assert self.folder is not None
            self.rest = self._outside = Outside(self.folder)
            await self._outside.open()
            self._tasks.append(asyncio.create_task(self._watch()))
        self.journal.listen(self._tell)
        self._tasks.append(asyncio.create_task(self.journal.deliver()))
        self.ready = True

    def _tell(self, events: Sequence[Event]) -> None:
        told = self._record or self._outside
        assert told is not None
        told.listen(events)

    async def _watch(self) -> None:
        """Until it is our turn to own the store."""
        while not self.cache.owner:
            await asyncio.sleep(WATCH)
        outside = self._outside
        assert outside is not None
        await self._keep_the_record()
        self._absorb(outside.take())
        await outside.close()
        self._outside = None

    async def _keep_the_record(self) -> None:
        self._record = Record(self.settings, self.folder, self.cache, self.journal)
        self.rest = admin_app(self)
        if self._team:
            assert self.folder is not None
            self._inside = Inside(self.folder, self.rest, self._absorb)
            await self._inside.open()

    def _absorb(self, events: Sequence[Event]) -> None:
        """What another process has told, or what we would have told one."""
        assert self._record is not None
        self._record.listen(events)

    async def close(self) -> None:
        """Keep what is to be kept, and let go."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._inside is not None:
            await self._inside.close()
        if self._outside is not None:
            await self._outside.close()
        if self._record is not None:
            await self.rest.state.admin.close()
            await asyncio.to_thread(self._record.close)
        if self._session is not None:
            await self._session.close()
        if self.local is not None:
            await self.local.stop()
        await asyncio.to_thread(self.cache.close)

    # What the admin API looks at.

    @property
    def history(self) -> History:
        """Money over time."""
        assert self._record is not None
        return self._record.history

    @property
    def metrics(self) -> Metrics:
        """For Prometheus."""
        assert self._record is not None
        return self._record.metrics

    @property
    def request_log(self) -> RequestLog | None:
        """For the lab."""
        assert self._record is not None
        return self._record.request_log
