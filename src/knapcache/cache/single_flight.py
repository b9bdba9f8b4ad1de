"""Single flight: concurrent requests for one key share one call.

    leader        the first request for a key; it makes the call, then calls `complete` or `fail`
    waiters       later requests, from threads or from coroutines of any event loop; they wait for the result
    failed call   one waiter leads a second call, and the others wait for that; a second failure is raised
    timeout       a waiter gives up and makes a call of its own, whose answer is not stored; later requests do not join
                  the call that was given up
    lost leader   its event loop was closed, or its thread interrupted: treated like a failed call

A request never waits for itself. Code that runs inside a call (`leading`) and requests the same key makes a call of its
own. So does a blocking request in the thread of the event loop that runs the call.

Blocking and async requests share the code. `join` is a coroutine in which only the wait differs; with `blocking`
nothing in it suspends, so `threads.run_blocking` runs it without an event loop.

    Invariant: a call is resolved once, with a CallResult. Its future, which is created for the first waiter, gets the
    same result and never an exception, so abandoned waiters never log "exception was never retrieved".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_led_keys: ContextVar[frozenset[Hashable]] = ContextVar("knapcache_led_keys", default=frozenset())
"""Keys whose call the running code is part of."""


class LeaderLost(Exception):  # noqa: N818 - never leaves the package
    """The leader ended without a result."""


class CallResult(NamedTuple):
    """How a call ended."""

    value: Any
    error: Exception | None


class InFlightCall:
    """One call that requests may be waiting for."""

    __slots__ = ("future", "key", "result", "retry", "thread")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.thread = threading.get_ident()
        self.retry: InFlightCall | None = None
        """The call that followed when this one failed."""
        self.result: CallResult | None = None
        """How the call ended; None while it is in flight."""
        self.future: Future[CallResult] | None = None
        """For waiters. Most calls have none, and creating a future takes as long as the rest of single flight."""

    def add_waiter(self) -> None:
        """Create the future. The caller holds the lock of single flight."""
        if self.future is None:
            self.future = Future()
            self.future.set_running_or_notify_cancel()  # waiters cannot cancel it from here on
            if self.result is not None:
                self.future.set_result(self.result)

    async def wait(self, timeout: float, *, blocking: bool) -> CallResult | None:
        """Return the result, or None after `timeout` seconds. Call `add_waiter` first."""
        assert self.future is not None
        if blocking:
            try:
                return self.future.result(timeout)
            except TimeoutError:
                return None
        future = asyncio.wrap_future(self.future)
        try:
            done, _ = await asyncio.wait((future,), timeout=timeout)
        finally:
            future.cancel()  # only the wrapper: a call that outlives this event loop must not call back into it
        return future.result() if done else None


class Leading:
    """Marks the code that runs inside as part of a call. A class, because a generator takes twice as long."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: InFlightCall | None) -> None:
        self._call = call

    def __enter__(self) -> None:
        keys = _led_keys.get()
        self._token = _led_keys.set(keys if self._call is None else keys | {self._call.key})

    def __exit__(self, *_: object) -> None:
        _led_keys.reset(self._token)


class SingleFlight(Generic[T]):
    """All calls in flight, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Hashable, InFlightCall] = {}
        self.completed = 0
        """Calls that have ended. A change since a lookup means that its answer may have been stored meanwhile."""

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._calls

    def lead(self, key: Hashable) -> InFlightCall | None:
        """Return a call that the caller must lead; None if another request leads a call for this key: `join` that."""
        with self._lock:
            if key in self._calls:
                return None
            call = self._calls[key] = InFlightCall(key)
            return call

    async def join(self, key: Hashable, timeout: float, *, blocking: bool) -> InFlightCall | CallResult | None:
        """Return a call that the caller must lead, the result of another request's call, or None: call alone.

        Waits for at most `timeout` seconds per call. Raises the error of a call that failed twice.
        """
        call, leads = self._join(key)
        for retried in (False, True):
            if leads:
                return call
            if key in _led_keys.get() or (blocking and call.thread == threading.get_ident()):
                return None
            result = await call.wait(timeout, blocking=blocking)
            if result is None:
                self._abandon(call)
                return None
            if result.error is None:
                return result
            error = result.error
            if not retried:
                call, leads = self._join_retry(call)
        if isinstance(error, LeaderLost):
            return None
        raise error

    def complete(self, call: InFlightCall, value: T) -> None:
        """Return a result to the waiters."""
        self._resolve(call, CallResult(value, None))

    def fail(self, call: InFlightCall, error: BaseException | None = None) -> None:
        """Release the waiters without a result. An error that is not an Exception, or None: the leader was lost."""
        self._resolve(call, CallResult(None, error if isinstance(error, Exception) else LeaderLost()))

    def _join(self, key: Hashable) -> tuple[InFlightCall, bool]:
        """Return the call for a key, and whether the caller leads it."""
        with self._lock:
            call = self._calls.get(key)
            if call is not None:
                call.add_waiter()
                return call, False
            call = self._calls[key] = InFlightCall(key)
            return call, True

    def _join_retry(self, failed: InFlightCall) -> tuple[InFlightCall, bool]:
        """Return the one call that follows a failed one: all its waiters get the same, however late they wake up."""
        with self._lock:
            leads = False
            if failed.retry is None:
                failed.retry = self._calls.get(failed.key)
            if failed.retry is None:
                failed.retry = self._calls[failed.key] = InFlightCall(failed.key)
                leads = True
            else:
                failed.retry.add_waiter()
            return failed.retry, leads

    def _abandon(self, call: InFlightCall) -> None:
        """Let later requests start a new call."""
        with self._lock:
            if self._calls.get(call.key) is call:
                del self._calls[call.key]

    def _resolve(self, call: InFlightCall, result: CallResult) -> None:
        with self._lock:
            if call.result is not None:
                return
            call.result = result
            self.completed += 1
            if self._calls.get(call.key) is call:
                del self._calls[call.key]
            future = call.future
        if future is not None:
            future.set_result(result)  # outside the lock: callbacks of waiters may run in here
