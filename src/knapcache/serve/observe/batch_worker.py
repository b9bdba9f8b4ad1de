"""Work behind the event loop: one thread, and a queue before it that cannot grow without bound.

Disks, collectors and terminals may hang. Whoever has something for them hands it over and goes on; what does not fit
into the queue is lost, the newest first, and counted.

    offered = done + lost + waiting,    waiting ≤ most
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
MOST = 100_000
"""Things that may wait: some seconds of the fastest traffic."""

log = logging.getLogger(__name__)


class BatchWorker(Generic[T]):
    """A thread that does `work`, batch by batch, in the order in which they were offered."""

    def __init__(self, name: str, work: Callable[[Sequence[T]], None], most: int = MOST) -> None:
        self.lost = 0
        self._name, self._work, self._most = name, work, most
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._queue: queue.SimpleQueue[Sequence[T] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"knapcache-{name}", daemon=True)
        self._thread.start()

    def offer(self, batch: Sequence[T]) -> None:
        """Hand over; never waits for the thread's work. The batch must not be changed afterwards."""
        with self._lock:
            room = 0 if self._closed else self._most - self._waiting
            if len(batch) > room:
                self.lost += len(batch) - room
                batch = batch[:room]
            if batch:
                self._waiting += len(batch)
                self._queue.put(batch)

    def lose(self, count: int) -> None:
        """The work could not be done for so many."""
        with self._lock:
            self.lost += count

    def close(self, seconds: float = 5.0) -> bool:
        """Finish what waits, and stop. False where that takes longer: what is left is lost."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._lock:
                self.lost, self._waiting = self.lost + self._waiting, 0
            return False
        return True

    def _run(self) -> None:
        told = False
        while (batch := self._queue.get()) is not None:
            try:
                self._work(batch)
            except Exception:  # an edge of the proxy: a thread that dies here would be missed by nobody, for ever
                self.lose(len(batch))
                if not told:  # once: a fault in every batch would fill the log
                    told = True
                    log.exception("%s: some of it is lost", self._name)
            with self._lock:
                self._waiting = max(0, self._waiting - len(batch))
