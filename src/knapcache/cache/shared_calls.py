"""Single flight across the processes of a store that has leases.

Within a process, `single_flight.py` makes one request the leader. Before it calls, the leader takes the lease on its
key. If another process has it, the leader asks again every POLL_SECONDS, until it finds the answer or gets the lease.
After `timeout` seconds it calls without a lease. So does every request while the store does not answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from typing import Any

from knapcache.errors import StoreError
from knapcache.store.base import Entry, Lease, NetworkStore
from knapcache.threads import TIMED_OUT, DeadlinePool

POLL_SECONDS = 0.05
DEADLINE = 0.5
"""Seconds that a coroutine waits for the store. The store itself gives up earlier."""


class LeaseAttempt:
    """One call of `lead`. A lease for a caller that has given up is ended."""

    def __init__(self, store: NetworkStore, key: bytes) -> None:
        self._store, self._key = store, key
        self._lock = threading.Lock()
        self._found: Entry | Lease | None = None
        self._abandoned = False

    def run(self) -> Entry | Lease | StoreError | None:
        """Return what `lead` returns, or its error."""
        try:
            found = self._store.lead(self._key)
        except StoreError as error:
            return error
        with self._lock:
            self._found = found
            abandoned = self._abandoned
        if abandoned:
            self.end()
        return found

    def abandon(self) -> bool:
        """Give up waiting. Return whether `end` must be called: the lease arrived before."""
        with self._lock:
            self._abandoned = True
            return self._found is not None

    def end(self) -> None:
        """End a lease that was found."""
        if self._found is not None and not isinstance(self._found, Entry):
            self._found.end()


class SharedCalls:
    """Takes leases, for blocking callers and for coroutines."""

    def __init__(self) -> None:
        self._pool = DeadlinePool("knapcache-lease")
        weakref.finalize(self, self._pool.close)

    def close(self) -> None:
        """Take no more leases for coroutines."""
        self._pool.close()

    def after_fork(self) -> None:
        """Start without threads in a child process."""
        self._pool.after_fork()

    async def lead(
        self, store: NetworkStore, key: bytes, timeout: float, *, blocking: bool
    ) -> tuple[Entry | Lease | None, bool]:
        """Return the entry, a lease, or None: call without a lease. And whether it waited for another process."""
        deadline, waited = time.monotonic() + timeout, False
        while True:
            attempt = LeaseAttempt(store, key)
            found = attempt.run() if blocking else await self._in_pool(attempt)
            if isinstance(found, StoreError):
                return None, waited
            if found is not None or time.monotonic() >= deadline:
                return found, waited
            waited = True
            if blocking:
                time.sleep(POLL_SECONDS)
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _in_pool(self, attempt: LeaseAttempt) -> Entry | Lease | StoreError | None:
        found: Any = TIMED_OUT
        try:
            found, _ = await self._pool.run(attempt.run, DEADLINE)
        finally:
            if found is TIMED_OUT and attempt.abandon():
                self._pool.submit(attempt.end)
        return StoreError("the store did not answer in time") if found is TIMED_OUT else found
