"""Reads of the store for coroutines: in threads, with a deadline, and behind a circuit breaker.

A read that misses its deadline goes on in its thread. While all threads are blocked, no further reads start.

A store of many machines is read in batches, one for each event loop. A read starts at once if none is running. Those
that arrive meanwhile are read together, with one command, when it has ended. A thread that reads one entry at a time
needs the interpreter's lock twice for each, and the event loop waits for it: at 32 concurrent requests a batch takes
less than half of the CPU time.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from knapcache.cache.breaker import DEADLINE, Breaker
from knapcache.errors import StoreError
from knapcache.store.base import NOT_IN_MEMORY, Entry, NetworkStore, NotInMemory, Store, network_store
from knapcache.threads import TIMED_OUT, DeadlinePool, TimedOut

MAX_KEYS = 32
"""Keys of one batch."""

Found = Entry | NotInMemory | TimedOut | None


class ReadBatches:
    """The reads of one event loop. All methods run on its thread."""

    def __init__(self, pool: DeadlinePool) -> None:
        self._pool = pool
        self._waiting: list[tuple[bytes, asyncio.Future[tuple[Found, bool]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def read(self, store: NetworkStore, key: bytes) -> tuple[Found, bool]:
        """Return the entry, None, NOT_IN_MEMORY or TIMED_OUT, and whether a thread has started to read."""
        future: asyncio.Future[tuple[Found, bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run(store))
        return await future

    async def _run(self, store: NetworkStore) -> None:
        batch: list[tuple[bytes, asyncio.Future[tuple[Found, bool]]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_KEYS], self._waiting[MAX_KEYS:]
                keys = list(dict.fromkeys(key for key, _ in batch))
                found, started = await self._pool.run(partial(_read_many, store, keys), DEADLINE)
                for key, future in batch:
                    if not future.done():  # its request may have been cancelled
                        future.set_result((TIMED_OUT if found is TIMED_OUT else found[key], started))
        finally:
            self._task = None
            for _, future in (*batch, *self._waiting):  # the event loop ends
                future.cancel()
            self._waiting = []


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
        breaker, read = self.breaker, partial(_read, store, digest)
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


def _read_many(store: NetworkStore, keys: Sequence[bytes]) -> Mapping[bytes, Entry | NotInMemory | None]:
    try:
        return store.read_many(keys)
    except StoreError:
        return dict.fromkeys(keys, NOT_IN_MEMORY)
