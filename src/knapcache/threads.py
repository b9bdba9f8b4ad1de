"""Work that may wait for a disk, done by a few threads beside the event loop.

    do(work)             some thread will; nobody waits
    await wait(work, s)  its result, or LATE s seconds after it was begun; work that is not begun while nothing else is
                         done for s seconds, or within PATIENCE times s, is not begun any more

Threads start when there is something to do for which none is free, THREADS at most, and are daemons: a program ends
even when its disk does not answer. Rejected: concurrent.futures, whose threads are joined at the end of the program,
and which takes a lock and two futures for each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

THREADS = 4
PATIENCE = 4
"""A crowd is let through as long as it moves, but not for ever. To give up on all who have not had their turn after s
seconds would turn a burst of hits into a burst of calls that are paid for, with a disk that is in good health."""


class Late:
    """The type of LATE."""


LATE: Final = Late()
"""Nothing was heard in time."""


class Task:
    """One piece of work."""

    __slots__ = ("began", "left", "told", "work")

    def __init__(self, work: Callable[[], Any], told: Callable[[Any], None] | None = None) -> None:
        self.work = work
        self.told = told
        self.began = 0.0
        self.left = False
        """Nobody wants it any more."""


class DeadlinePool:
    """Threads, and what they have to do."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._name, self._most = name, threads
        self.forked()

    def forked(self) -> None:
        """In a child: threads are not inherited."""
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0  # queued or under way
        self._done = 0
        self._closed = False

    def do(self, work: Callable[[], Any]) -> bool:
        """Have it done. `work` raises nothing. False: it is too late for that."""
        return self._put(Task(work))

    async def wait(self, work: Callable[[], Any], seconds: float) -> tuple[Any, bool]:
        """Its result, or LATE; and whether it was begun. `work` raises nothing."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def arrived(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        def told(result: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(arrived, result)

        task = Task(work, told)
        if not self._put(task):
            return LATE, False
        timer: asyncio.TimerHandle

        def due(turns: int, done: int) -> None:
            nonlocal timer
            remaining = task.began + seconds - time.monotonic() if task.began else seconds
            if remaining > 0 and (task.began or (turns and self._done != done)):
                timer = loop.call_later(remaining, due, turns - 1, self._done)
            else:
                arrived(LATE)

        timer = loop.call_later(seconds, due, PATIENCE - 1, self._done)
        try:
            return await future, task.began > 0
        finally:
            task.left = True
            timer.cancel()

    def _put(self, task: Task) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._busy += 1
            if self._busy > self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self.run, name=self._name, daemon=True).start()
            self._queue.put(task)
            return True

    def run(self) -> None:
        """What each thread does."""
        try:
            while (task := self._queue.get()) is not None:
                try:
                    if not task.left:
                        task.began = time.monotonic()
                        result = task.work()
                        if task.told is not None:
                            task.told(result)
                finally:
                    with self._lock:
                        self._busy -= 1
                        self._done += 1
                del task  # whatever it holds is not held while we wait for the next
        finally:
            with self._lock:
                self._threads -= 1

    def close(self) -> None:
        """No more work; threads end with what they have."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._threads):
                    self._queue.put(None)
