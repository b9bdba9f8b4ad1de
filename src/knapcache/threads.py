"""Helpers for work that may block a thread.

    DeadlinePool        a few threads; the event loop waits for a result, until a deadline, or not at all
    BatchWorker         one thread and a bounded queue of batches; the caller never waits
    PeriodicThread      one thread that calls a method again and again
    run_with_deadline   one call in a thread of its own; the event loop waits until a deadline
    run_blocking        a coroutine in which every wait blocks the thread, so that blocking callers share async code

All threads are daemons, so the program ends even while a disk or a collector hangs. Rejected: concurrent.futures and
asyncio.to_thread. The interpreter joins their threads at exit, and each call takes a lock and two futures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import chain
from typing import Any, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 4
"""Threads of one DeadlinePool."""
MAX_QUEUE_TIMEOUTS = 4
"""Timeouts that queued work waits for a thread, as long as the pool makes progress. With only one timeout, a burst of
hits on a healthy disk would become a burst of paid calls."""
MAX_WAITING = 100_000
"""Items that wait in a BatchWorker: some seconds of the fastest traffic."""

log = logging.getLogger(__name__)


class TimedOut:
    """The type of TIMED_OUT."""


TIMED_OUT: Final = TimedOut()


class PoolTask:
    """One call that a DeadlinePool makes."""

    __slots__ = ("abandoned", "on_result", "started_at", "work")

    def __init__(self, work: Callable[[], Any], on_result: Callable[[Any], None] | None = None) -> None:
        self.work = work
        self.on_result = on_result
        self.started_at = 0.0
        """Monotonic time; 0.0 until a thread starts the call."""
        self.abandoned = False
        """The caller has stopped waiting: the call is skipped if it has not started."""


class DeadlinePool:
    """Threads that make blocking calls for an event loop. A thread starts when none is free, up to `threads`."""

    def __init__(self, name: str, threads: int = MAX_THREADS) -> None:
        self._name, self._max_threads = name, threads
        self.after_fork()

    def after_fork(self) -> None:
        """Start empty in a child process, which inherits no threads."""
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[PoolTask | None] = queue.SimpleQueue()
        self._threads = 0
        self._pending = 0  # queued or running
        self._finished = 0
        self._closed = False

    def submit(self, work: Callable[[], Any]) -> bool:
        """Make a call without waiting for it; False when the pool is closed. `work` must not raise."""
        return self._put(PoolTask(work))

    async def run(self, work: Callable[[], Any], timeout: float) -> tuple[Any, bool]:
        """Return the result of `work`, or TIMED_OUT, and whether the call was started. `work` must not raise.

        The timeout, in seconds, starts with the call. A call that no thread has started is given up when the pool
        finishes nothing for one timeout, or after MAX_QUEUE_TIMEOUTS of them.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def resolve(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        def resolve_from_thread(result: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(resolve, result)

        task = PoolTask(work, resolve_from_thread)
        if not self._put(task):
            return TIMED_OUT, False
        timer: asyncio.TimerHandle

        def on_timer(extensions: int, finished: int) -> None:
            nonlocal timer
            started_at = task.started_at
            remaining = started_at + timeout - time.monotonic() if started_at else timeout
            if remaining > 0 and (started_at or (extensions and self._finished != finished)):
                timer = loop.call_later(remaining, on_timer, extensions - 1, self._finished)
            else:
                resolve(TIMED_OUT)

        timer = loop.call_later(timeout, on_timer, MAX_QUEUE_TIMEOUTS - 1, self._finished)
        try:
            return await future, task.started_at > 0
        finally:
            task.abandoned = True
            timer.cancel()

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception. It has no deadline, so its duration must be bounded.

        When the calling task is cancelled, a call that has not started is skipped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        outcome: list[tuple[T | None, BaseException | None]] = []

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def guarded() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as error:
                outcome.append((None, error))

        def resolve_from_thread(_: None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(resolve)

        task = PoolTask(guarded, resolve_from_thread)
        if not self._put(task):
            raise RuntimeError(f"{self._name} is closed")
        try:
            await future
        finally:
            task.abandoned = True
        result, error = outcome.pop()
        try:
            if error is not None:
                raise error
            return result  # type: ignore[return-value]
        finally:
            # An exception refers to this frame. If the frame referred to it, both would stay, with the work's data,
            # until the garbage collector runs.
            del error

    def _put(self, task: PoolTask) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._pending += 1
            if self._pending > self._threads < self._max_threads:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._queue.put(task)
            return True

    def _work(self) -> None:
        try:
            while (task := self._queue.get()) is not None:
                try:
                    if not task.abandoned:
                        task.started_at = time.monotonic()
                        result = task.work()
                        if task.on_result is not None:
                            task.on_result(result)
                finally:
                    with self._lock:
                        self._pending -= 1
                        self._finished += 1
                del task  # release what it references before waiting for the next
        finally:
            with self._lock:
                self._threads -= 1

    def close(self) -> None:
        """Accept no more work. Threads end after what is queued."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._threads):
                    self._queue.put(None)


class BatchWorker(Generic[T]):
    """A thread that passes batches to `work`, in the order in which they were offered.

    A batch that does not fit into the queue loses its last items.

    linger   seconds that a batch waits for others. They are passed on together, so the thread wakes up less often

    Invariant: offered = done + lost + waiting, and waiting ≤ max_waiting.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[T]], None],
        max_waiting: int = MAX_WAITING,
        linger: float = 0.0,
    ) -> None:
        self._linger, self._stopping = linger, threading.Event()
        self.lost = 0
        self._name, self._work, self._max_waiting = name, work, max_waiting
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._queue: queue.SimpleQueue[Sequence[T] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"knapcache-{name}", daemon=True)
        self._thread.start()

    def offer(self, batch: Sequence[T]) -> None:
        """Queue a batch without waiting. The caller must not change it afterwards."""
        with self._lock:
            free = 0 if self._closed else self._max_waiting - self._waiting
            if len(batch) > free:
                self.lost += len(batch) - free
                batch = batch[:free]
            if batch:
                self._waiting += len(batch)
                self._queue.put(batch)

    def count_lost(self, count: int) -> None:
        """Count items that `work` received but could not deliver."""
        with self._lock:
            self.lost += count

    def close(self, seconds: float = 5.0) -> bool:
        """Finish the queue and stop. Return False after `seconds`: what is left then counts as lost."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._stopping.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._lock:
                self.lost, self._waiting = self.lost + self._waiting, 0
            return False
        return True

    def _run(self) -> None:
        logged = ended = False
        while not ended and (batch := self._queue.get()) is not None:
            if self._linger:
                self._stopping.wait(self._linger)
                batch, ended = self._with_queued(batch)
            try:
                self._work(batch)
            except Exception:  # an edge of the proxy: without this the thread would end unnoticed
                self.count_lost(len(batch))
                if not logged:  # once: a fault in every batch would fill the log
                    logged = True
                    log.exception("%s: a batch is lost", self._name)
            with self._lock:
                self._waiting = max(0, self._waiting - len(batch))

    def _with_queued(self, first: Sequence[T]) -> tuple[Sequence[T], bool]:
        """Return a batch with all that are queued after it, and whether the end of the queue was among them."""
        batches = [first]
        while not self._queue.empty():
            batch = self._queue.get()
            if batch is None:
                return list(chain.from_iterable(batches)), True
            batches.append(batch)
        return list(chain.from_iterable(batches)), False


class PeriodicThread:
    """Calls a bound method periodically, until it is stopped or the object of the method is garbage.

    tick    returns the seconds until it is called again
    delay   seconds until the first call
    """

    def __init__(self, name: str, tick: Callable[[], float], delay: float) -> None:
        self._name, self._tick, self._delay = name, weakref.WeakMethod(tick), delay
        self._thread: threading.Thread | None = None
        self.stopped = threading.Event()

    def start(self) -> None:
        """Start the thread unless it runs or was stopped."""
        if self._thread is None and not self.stopped.is_set():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait for the end of a stopped thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        seconds = self._delay
        while not self.stopped.wait(seconds):
            tick = self._tick()
            if tick is None:
                return
            seconds = tick()
            del tick


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the coroutine suspended: something in it waits for an event loop")


def as_coroutine(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a function as a coroutine function that never suspends, for use within `run_blocking`."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    return run


async def run_with_deadline(work: Callable[[], None], seconds: float) -> bool:
    """Call `work` in a thread of its own; False if it takes longer than `seconds`. The call goes on then."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), seconds)
    except TimeoutError:
        return False
    return True
