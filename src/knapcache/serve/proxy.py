"""All that lives as long as a process of the proxy: made from the settings, opened on its event loop, closed in order.

alone      one process: it has the record, whoever owns the store
in a team  the owner of the store has the record, and the others send it theirs (team.py)

A file that cannot be opened (a full disk, somebody else's database, another secret) is no reason not to answer: then
answers are kept in memory, the log and the summary say so loudly, and the file stays as it is until the next start. In
a team each process then has a memory of its own, and whoever is first has the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from knapcache.cache import Cache
from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.serve.admin.app import admin_app
from knapcache.serve.http.auth import Authenticator
from knapcache.serve.observe.events import Event, EventBuffer
from knapcache.serve.observe.history import History
from knapcache.serve.observe.metrics import Metrics
from knapcache.serve.observe.pipeline import EventPipeline
from knapcache.serve.observe.request_log import RequestLog
from knapcache.serve.settings import Settings
from knapcache.serve.settings.secrets import admin_token, data_directory, server_secret
from knapcache.serve.upstream.embedded_model import PRICES, EmbeddedModel
from knapcache.serve.upstream.upstream import Upstreams
from knapcache.serve.workers.owner_link import OwnerClient, OwnerServer
from knapcache.store.sqlite.database import Ownership
from knapcache.threads import run_with_deadline

log = logging.getLogger("knapcache.serve")

WATCH = 0.5
"""Seconds between two looks at who owns the store."""
MOST_MEMORY = 1 << 30
"""Bytes of memory in place of a file. Who gives answers a large disk has not said that there is as much memory."""


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
        self.callers = Authenticator(settings, self.secret)
        self.local = (
            EmbeddedModel(settings.local_model, settings.local_threads, settings.local_context)
            if any(upstream.local for upstream in settings.upstreams)
            else None
        )
        self.cache, self.store_lost = open_cache(
            settings,
            policy=settings.policy,
            cost=settings.cost,
            ttl=settings.ttl,
            prices={**(PRICES if self.local else {}), **settings.prices},
            fallback=settings.fallback_price,
            secret=self.secret,
            shadows=settings.shadows,
            wait=settings.wait,
            quotas=self.callers.quotas(),
            synchronous=settings.synchronous,
        )
        self.upstreams = Upstreams(settings, self.local)
        self.journal = EventBuffer()
        self.ready = False
        """Requests are served: it was opened, and was not told to stop."""
        self.rest: Any = None
        """What answers all that is not the hot path."""
        self._team = team
        self._turn: Ownership | None = None
        self._record: EventPipeline | None = None
        self._inside: OwnerServer | None = None
        self._outside: OwnerClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin, on the loop that serves."""
        if self.local is not None:
            await self.local.start()
        if not self._team or self._our_turn():
            await self._keep_the_record()
        else:
            assert self.folder is not None
            self.rest = self._outside = OwnerClient(self.folder)
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
        """Until it is our turn to own the store, and to keep the record."""
        while not self._our_turn():
            await asyncio.sleep(WATCH)
        outside = self._outside
        assert outside is not None
        await self._keep_the_record()
        self._absorb(outside.take())
        await outside.close()
        self._outside = None

    def _our_turn(self) -> bool:
        """Owners of a memory are many, so there is a lock for the record as well. Free with the end of a process."""
        assert self.folder is not None
        if self._turn is None and self.cache.owner:
            with contextlib.suppress(NotOwner):
                self._turn = Ownership(self.folder / "record")
        return self._turn is not None

    async def _keep_the_record(self) -> None:
        self._record = EventPipeline(self.settings, self.folder, self.cache, self.journal)
        self.rest = admin_app(self)
        if self._team:
            assert self.folder is not None
            self._inside = OwnerServer(self.folder, self.rest, self._absorb)
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
        self.upstreams.close()
        if self.local is not None:
            await self.local.stop()
        if not await run_with_deadline(self.cache.close, max(5.0, self.settings.grace)):
            log.error("the store does not answer, and is left as it is: what was kept before is safe")
        if self._turn is not None:
            self._turn.release()

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


def open_cache(settings: Settings, **options: Any) -> tuple[Cache, bool]:
    """The cache, and whether its file could not be opened, and it is in memory instead."""
    path = settings.cache_file
    try:
        return Cache(settings.capacity, path=path, **options), False
    except (StoreError, InvalidInput) as error:
        if path is None or not (isinstance(error, StoreError) or path.is_dir()):
            raise  # the settings cannot be used
        room = min(settings.capacity, MOST_MEMORY) // settings.workers
        cache = Cache(room, **options)
        log.error(
            "THE STORE CANNOT BE OPENED, and answers are kept in %d bytes of memory until the next start: %s",
            room,
            error,
        )
        return cache, True
