"""Waiting for a store whose write queue is full, so that no answer that was paid for is dropped.

    A caller waits until the queue has space, at most MAX_WAIT seconds.
    A queue without space for STALL_SECONDS is stalled: the disk hangs. Then no caller waits for COOLDOWN seconds.

A disk that fails quickly (full, removed) never fills the queue. No caller waits for a store that does not answer either
(`writes_stalled`).

The queue is polled, so every store works. On an event loop one timer polls for all its coroutines. A blocking caller in
the thread of a running event loop does not wait: it would block the loop.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable

from knapcache.store.base import Store

MAX_WAIT = 15.0
"""Seconds that one caller waits at most, while the queue has space now and then."""
STALL_SECONDS = 5.0
"""Seconds without space after which the queue is stalled."""
COOLDOWN = 60.0
"""Seconds during which no caller waits for a queue that was stalled."""
POLL = 0.005
POLLS = 50
"""Polls after which coroutines look at their own time limit."""


class WriteBackpressure:
    """Makes callers wait while the write queue of a store is full."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._full_since = self._checked = self._resume = -COOLDOWN
        self._spaces: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Event]
        self._spaces = weakref.WeakKeyDictionary()

    def wait(self) -> None:
        """Block the thread until there is space, or until waiting is pointless."""
        started = self._clock()
        if asyncio._get_running_loop() is None:
            while self._must_wait(started):
                time.sleep(POLL)

    async def wait_async(self) -> None:
        """Wait like `wait`, without blocking the event loop."""
        started, loop = self._clock(), asyncio.get_running_loop()
        while self._must_wait(started):
            space = self._spaces.get(loop)
            if space is None or space.is_set():
                space = self._spaces[loop] = asyncio.Event()
                self._poll(loop, space, POLLS)
            await space.wait()

    def _must_wait(self, started: float) -> bool:
        if not self._store.write_backlog_full or self._store.writes_stalled:
            self._full_since = self._clock()
            return False
        now = self._clock()
        if now < self._resume:
            return False
        if now - self._checked > 1.0:  # not looked at: it may have had space in between
            self._full_since = now
        self._checked = now
        if now - self._full_since >= STALL_SECONDS:
            self._resume = now + COOLDOWN
            return False
        return now - started < MAX_WAIT

    def _poll(self, loop: asyncio.AbstractEventLoop, space: asyncio.Event, polls: int) -> None:
        if polls and self._store.write_backlog_full:
            self._checked = self._clock()
            loop.call_later(POLL, self._poll, loop, space, polls - 1)
        else:
            space.set()
