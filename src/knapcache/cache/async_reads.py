"""Reads of the store for coroutines: in threads, with a deadline, and behind a circuit breaker.

A read that misses its deadline goes on in its thread. While all threads are blocked, no further reads start.
"""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import Callable

from knapcache.cache.breaker import DEADLINE, Breaker
from knapcache.cache.read_batches import ReadBatches
from knapcache.errors import StoreError
from knapcache.store.base import NOT_IN_MEMORY, Entry, NotInMemory, Store, network_store
from knapcache.threads import TIMED_OUT, DeadlinePool


class AsyncReads:
    """Reads of one cache, for all its event loops."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self._pool = DeadlinePool("knapcache-read")
        self._batches_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBatches] = (
            weakref.WeakKeyDictionary()
        )
        weakref.finalize(self, self._pool.close)

    def close(self) -> None:
        """Start no more reads."""
        self._pool.close()

    def after_fork(self) -> None:
        """Start without threads and failures in a child process."""
        self.breaker = Breaker()
        self._pool.after_fork()
        self._batches_by_loop = weakref.WeakKeyDictionary()

    async def get(self, store: Store, digest: bytes) -> Entry | NotInMemory | None:
        """Return the entry, None when there is none, or NOT_IN_MEMORY when the disk did not say in time.

        The last is not a reason to forget the entry: the request goes upstream, and the entry stays.
        """
        found = store.get_nowait(digest)
        return await self._from_disk(store, digest) if found is NOT_IN_MEMORY else found

    def _batches(self) -> ReadBatches:
        """Return the batches of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._batches_by_loop.get(loop)
        if found is None:
            found = self._batches_by_loop[loop] = ReadBatches(self._pool)
        return found

    async def _from_disk(self, store: Store, digest: bytes) -> Entry | NotInMemory | None:
        breaker, read = self.breaker, functools.partial(_read, store, digest)
        if not breaker.allows_read():
            if breaker.start_probe() and not self._pool.submit(lambda: breaker.end_probe(_in_time(read))):
                breaker.end_probe(False)
            return NOT_IN_MEMORY
        network = network_store(store)
        if network is None:
            found, started = await self._pool.run(read, DEADLINE)
        else:
            found, started = await self._batches().read(network, digest)
        if started:  # a read that no thread started says nothing about the disk
            breaker.record(found is not TIMED_OUT and found is not NOT_IN_MEMORY)
        return NOT_IN_MEMORY if found is TIMED_OUT else found


def read_blocking(store: Store, digest: bytes) -> Entry | NotInMemory | None:
    """Return the entry, None when there is none, or NOT_IN_MEMORY when the store cannot say: the entry stays."""
    found = store.get_nowait(digest)
    return _read(store, digest) if found is NOT_IN_MEMORY else found


def _read(store: Store, digest: bytes) -> Entry | NotInMemory | None:
    """Read from disk; NOT_IN_MEMORY when the disk reports an error."""
    try:
        return store.read(digest)
    except StoreError:
        return NOT_IN_MEMORY


def _in_time(read: Callable[[], Entry | NotInMemory | None]) -> bool:
    """Read, and return whether that succeeded within DEADLINE."""
    start = time.perf_counter()
    return read() is not NOT_IN_MEMORY and time.perf_counter() - start <= DEADLINE
