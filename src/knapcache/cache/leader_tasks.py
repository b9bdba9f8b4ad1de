"""Calls of single-flight leaders. Each runs in a task of its own, which goes on when the leader is cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from knapcache.cache.values import Answer, Reply

if TYPE_CHECKING:
    from knapcache.cache.replies import PendingFetch

Call = Callable[[], Awaitable[Reply]]


class LeaderTasks:
    """The tasks of one cache."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Answer]] = set()  # an event loop holds its tasks only weakly

    async def run(self, pending: PendingFetch, call: Call) -> Answer:
        """Make the call of a fetch, and complete it. One that does not lead is cancelled with its caller."""
        if not pending.leads:
            return await _complete(pending, call)
        task = asyncio.ensure_future(_complete(pending, call))

        def done(task: asyncio.Task[Answer]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # marks it as retrieved: the caller may have been cancelled
            pending.abandon()  # no effect unless the task was cancelled before its start

        self._tasks.add(task)
        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Wait for the calls that run in this event loop."""
        loop = asyncio.get_running_loop()
        while tasks := [task for task in self._tasks if task.get_loop() is loop]:
            await asyncio.wait(tasks)


async def _complete(pending: PendingFetch, call: Call) -> Answer:
    with pending:
        started = time.perf_counter()
        reply = await call()
        seconds = time.perf_counter() - started
        await pending.wait_for_store()
        return pending.complete(reply, seconds)
