"""Single flight: of all callers that want the same key at the same time, one fetches and the others wait for it.

    first caller     leads: it fetches, then calls `complete` or `fail`
    other callers    wait for its result, threads and coroutines of any event loop alike
    the fetch fails  one waiter leads a second attempt and the others wait for that; a second failure is raised
    timeout          the waiter fetches alone and stores nothing; later callers start a new flight
    leader lost      its event loop ended or its thread was interrupted: the same as a failure

A caller never waits for itself: code that runs inside a fetch (`leading`) and wants the same key, or a blocking caller
in the thread of the event loop that runs the fetch, fetches alone.

    Invariant: the future of a flight is resolved once, with a CallResult and never with an exception, so that abandoned
    waiters never log "exception was never retrieved".
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Hashable, Iterator
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
        self.ended = 0
        """Flights that are over. Who sees another number than before knows that an answer may have come meanwhile."""

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, key: Hashable, wait: float) -> InFlightCall | CallResult | None:
        """Return a call that the caller must lead, the result of another caller's fetch, or None: fetch alone.

        Blocks for at most `wait` seconds a fetch. Raises the error of a fetch that failed twice.
        """
        call, first = self._join(key)
        for again in (False, True):
            if first:
                return call
            if key in _leading.get() or call.thread == threading.get_ident():
                return None
            try:
                result = call.future.result(wait)
            except TimeoutError:
                self._abandon(call)
                return None
            if result.error is None:
                return result
            error = result.error
            if not again:
                call, first = self._join_again(call)
        if isinstance(error, LeaderLost):
            return None
        raise error

    async def join_async(self, key: Hashable, wait: float) -> InFlightCall | CallResult | None:
        """Do the same without blocking the event loop."""
        call, first = self._join(key)
        for again in (False, True):
            if first:
                return call
            if key in _leading.get():
                return None
            future = asyncio.wrap_future(call.future)
            try:
                done, _ = await asyncio.wait((future,), timeout=wait)
            finally:
                future.cancel()  # only the wrapper: a flight that outlives this loop must not call back into it
            if not done:
                self._abandon(call)
                return None
            result = future.result()
            if result.error is None:
                return result
            error = result.error
            if not again:
                call, first = self._join_again(call)
        if isinstance(error, LeaderLost):
            return None
        raise error

    @contextlib.contextmanager
    def leading(self, call: InFlightCall) -> Iterator[None]:
        """Mark the code that runs inside as part of this fetch."""
        token = _leading.set(_leading.get() | {call.key})
        try:
            yield
        finally:
            _leading.reset(token)

    def complete(self, call: InFlightCall, value: T) -> None:
        """Give the waiters their result."""
        self._resolve(call, CallResult(value, None))

    def fail(self, call: InFlightCall, error: BaseException | None = None) -> None:
        """Release the waiters without a result. None, or an error that is no Exception: the leader was lost."""
        self._resolve(call, CallResult(None, error if isinstance(error, Exception) else LeaderLost()))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

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

    def _resolve(self, call: InFlightCall, result: CallResult) -> None:
        with self._lock:
            if call.future.done():
                return
            self.ended += 1
            if self._flights.get(call.key) is call:
                del self._flights[call.key]
        call.future.set_result(result)  # outside the lock: callbacks of waiters may run in here
