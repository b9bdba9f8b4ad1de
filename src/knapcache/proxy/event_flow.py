"""Pass the events of a process to the pipeline, which only the owner process has.

the owner        has the pipeline; with several workers it also serves its admin API to the others
another worker   sends its events to the owner, and forwards admin requests to it (workers/owner_link.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from knapcache.proxy.events.events import EventBuffer
from knapcache.proxy.events.loop_watchdog import LoopWatchdog
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Features
from knapcache.proxy.workers.owner_link import OwnerClient, OwnerServer

log = logging.getLogger("knapcache.serve")

OWNER_POLL = 0.5
"""Seconds between two attempts to become the owner."""
LAST_EVENTS_TIMEOUT = 5.0
"""Seconds that a closing process tries to become the owner, to record the events that no owner has received."""

BecomeOwner = Callable[[], Awaitable[EventPipeline]]
"""Opens the pipeline and the admin API in this process."""


class EventFlow:
    """The events of one process.

    acquire        tries to become the owner
    become_owner   opens the pipeline and the admin API in this process
    """

    def __init__(self, acquire: Callable[[], bool], become_owner: BecomeOwner) -> None:
        self.buffer = EventBuffer()
        self.watchdog = LoopWatchdog()
        self.pipeline: EventPipeline | None = None
        """None: this process is not the owner."""
        self.client: OwnerClient | None = None
        """The way to the owner; None: this process is the owner."""
        self._acquire, self._become_owner = acquire, become_owner
        self._server: OwnerServer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, folder: Path | None, *, alone: bool) -> None:
        """Start on the running event loop. alone: there is no other worker."""
        if alone or self._acquire():
            await self._open_pipeline()
        else:
            assert folder is not None
            self.client = OwnerClient(folder)
            self.client.start()
            self.buffer.add_consumer(self.client)
            self._tasks.append(asyncio.create_task(self._wait_for_ownership()))
        self._tasks.append(asyncio.create_task(self.buffer.flush_periodically()))
        self.watchdog.start()

    async def _open_pipeline(self) -> None:
        self.pipeline = await self._become_owner()
        self.buffer.add_consumer(self.pipeline)

    async def serve_workers(
        self, folder: Path, app: Callable[..., Awaitable[None]], pipeline: EventPipeline, features: Features
    ) -> None:
        self._server = OwnerServer(folder, app, pipeline, features)
        await self._server.open()

    async def _wait_for_ownership(self) -> None:
        """Poll until this process is the owner, then replace the owner client by the pipeline."""
        while not self._acquire():
            await asyncio.sleep(OWNER_POLL)
        client = self.client
        assert client is not None
        self.buffer.remove_consumer(client)
        unsent = await client.stop()  # first: it must not send to the server that we open next
        await self._open_pipeline()
        assert self.pipeline is not None
        self.pipeline.consume(unsent)
        self.pipeline.consume_notes(client.unsent_notes)
        self.client = None
        client.close()

    async def _deliver_last_events(self, client: OwnerClient) -> None:
        """Send the last events to the owner. If it ended first, become the owner and consume them here."""
        unsent = await client.stop(send_unsent=True)
        if (unsent or client.unsent_notes) and self.pipeline is None:
            try:
                await asyncio.wait_for(self._wait_for_ownership(), LAST_EVENTS_TIMEOUT)
            except TimeoutError:
                log.error("%d events dropped: the owner process did not accept them.", len(unsent))
        client.close()

    async def stop(self) -> None:
        """Flush the events for the last time, and stop the tasks."""
        self.watchdog.stop()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def close(self) -> None:
        """Deliver the last events, and stop to serve workers. `stop` was called before."""
        if self.client is not None:
            await self._deliver_last_events(self.client)
        if self._server is not None:
            await self._server.close()
