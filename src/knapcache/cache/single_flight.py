"""Single flight: of those who ask the same at the same time one calls, and all get what it brings.

    first to ask      leads: it makes the call
    others            wait for it, threads and coroutines of any event loop alike
    the call fails    all who wait hear of it; one of them calls again, once, and the others wait for that
    no word in time   who has waited long enough calls for itself, keeps nothing, and nobody joins that flight any more
    leader cancelled  a coroutine's call is a task of its own: it goes on, and those who wait are served. A task that
                      nobody cancels (`steady`) calls by itself, which spares it that
    leader lost       its loop has ended, its thread was interrupted: the same as a failed call

Nobody waits for itself: a call that asks for its own key, or a plain call in the thread of the event loop that runs
the flight, goes alone.

    Invariant: a flight's future is resolved once, with an Outcome and never with an exception: those who wait no longer
    need not come for it, and leave no complaint in the log.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_leading: ContextVar[frozenset[Hashable]] = ContextVar("knapcache_leading", default=frozenset())
"""Flights that the code now running is the call of."""


class LeaderLost(Exception):  # noqa: N818 - never leaves the package
    """The leader is gone, and took its call along."""


class CallResult(NamedTuple):
    """How a flight ended."""

    value: Any
    error: Exception | None


class InFlightCall:
    """One call that others may be waiting for."""

    __slots__ = ("future", "key", "successor", "thread")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.thread = threading.get_ident()
        self.successor: InFlightCall | None = None
        self.future: Future[CallResult] = Future()
        self.future.set_running_or_notify_cancel()  # from here on nobody who waits can cancel it


class SingleFlight(Generic[T]):
    """Every call under way, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, InFlightCall] = {}
        self._tasks: set[asyncio.Task[T]] = set()  # an event loop holds its tasks weakly
        self.ended = 0
        """Flights that are over. Who sees another number than before knows that an answer may have come meanwhile."""

    def __len__(self) -> int:
        return len(self._flights)

    def run(self, key: Hashable, lead: Callable[[], T], alone: Callable[[], T], wait: float) -> tuple[T, bool]:
        """What the flight brings, and whether somebody else paid for it."""
        flight, first = self._join(key)
        for again in (False, True):
            if first:
                return self._lead(flight, lead), False
            if key in _leading.get() or flight.thread == threading.get_ident():
                break
            try:
                outcome = flight.future.result(wait)
            except TimeoutError:
                self._abandon(flight)
                break
            if outcome.error is None:
                return outcome.value, True
            if again:
                if isinstance(outcome.error, LeaderLost):
                    break
                raise outcome.error
            flight, first = self._join_again(flight)
        return alone(), False

    async def run_async(
        self,
        key: Hashable,
        lead: Callable[[], Awaitable[T]],
        alone: Callable[[], Awaitable[T]],
        wait: float,
        *,
        shielded: bool = False,
    ) -> tuple[T, bool]:
        """The same for coroutines."""
        flight, first = self._join(key)
        for again in (False, True):
            if first:
                return await (self._call if shielded else self._start_task)(flight, lead), False
            if key in _leading.get():
                break
            future = asyncio.wrap_future(flight.future)
            try:
                done, _ = await asyncio.wait((future,), timeout=wait)
            finally:
                future.cancel()  # ours, not the flight's; so that a flight that outlives this loop does not look for it
            if not done:
                self._abandon(flight)
                break
            outcome = future.result()
            if outcome.error is None:
                return outcome.value, True
            if again:
                if isinstance(outcome.error, LeaderLost):
                    break
                raise outcome.error
            flight, first = self._join_again(flight)
        return await alone(), False

    def _join(self, key: Hashable) -> tuple[InFlightCall, bool]:
        """The flight to this key, and whether it is ours to lead."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = InFlightCall(key)
            return flight, True

    def _join_again(self, failed: InFlightCall) -> tuple[InFlightCall, bool]:
        """The one flight that follows a failed one, for all who waited for that, however late they wake up."""
        with self._lock:
            first = False
            if failed.successor is None:
                failed.successor = self._flights.get(failed.key)
            if failed.successor is None:
                failed.successor = self._flights[failed.key] = InFlightCall(failed.key)
                first = True
            return failed.successor, first

    def _abandon(self, flight: InFlightCall) -> None:
        """Waited for in vain: whoever asks from now on starts anew."""
        with self._lock:
            if self._flights.get(flight.key) is flight:
                del self._flights[flight.key]

    def _lead(self, flight: InFlightCall, call: Callable[[], T]) -> T:
        outcome = CallResult(None, LeaderLost())
        token = _leading.set(_leading.get() | {flight.key})
        try:
            value = call()
            outcome = CallResult(value, None)
            return value
        except Exception as error:
            outcome = CallResult(None, error)
            raise
        finally:
            _leading.reset(token)
            self._complete(flight, outcome)

    async def _start_task(self, flight: InFlightCall, call: Callable[[], Awaitable[T]]) -> T:
        """Lead with a task of its own. Whoever cancels us does not cancel it."""
        task = asyncio.ensure_future(self._call(flight, call))

        def over(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # seen: the leader may have left
            self._complete(flight, CallResult(None, LeaderLost()))  # if it was cancelled before it began

        self._tasks.add(task)
        task.add_done_callback(over)
        return await asyncio.shield(task)

    async def _call(self, flight: InFlightCall, call: Callable[[], Awaitable[T]]) -> T:
        outcome = CallResult(None, LeaderLost())
        token = _leading.set(_leading.get() | {flight.key})
        try:
            value = await call()
            outcome = CallResult(value, None)
            return value
        except Exception as error:
            outcome = CallResult(None, error)
            raise
        finally:
            _leading.reset(token)
            self._complete(flight, outcome)

    def _complete(self, flight: InFlightCall, outcome: CallResult) -> None:
        with self._lock:
            if flight.future.done():
                return
            self.ended += 1
            if self._flights.get(flight.key) is flight:
                del self._flights[flight.key]
            # Not under the lock: those who wait may be called from within.
        flight.future.set_result(outcome)

    async def drain(self) -> None:
        """Wait for the tasks of this loop, for those who are about to end it."""
        loop = asyncio.get_running_loop()
        while tasks := [task for task in self._tasks if task.get_loop() is loop]:
            await asyncio.wait(tasks)
