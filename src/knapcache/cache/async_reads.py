"""AsyncReads of the store for coroutines: by threads, until a deadline, and while the breaker is open not at all.

What does not come in time counts as not known: the request goes upstream, and the answer is not blamed for it, as one
that is really missing is (books.py). A read that is waited for no longer goes on in its thread; while all threads hang,
no others are begun.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable

from knapcache.cache.breaker import DEADLINE, Breaker
from knapcache.cache.coordinator import Keeper
from knapcache.errors import StoreError
from knapcache.store.base import NOT_IN_MEMORY, Entry, NotInMemory, Store
from knapcache.threads import TIMED_OUT, DeadlinePool


class AsyncReads:
    """Of one cache, for all its event loops."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.breaker = Breaker()
        self._pool = DeadlinePool("knapcache-read")
        weakref.finalize(self, self._pool.close)

    def close(self) -> None:
        """No more reads; threads end with what they have."""
        self._pool.close()

    def forked(self) -> None:
        """In a child: no thread of the parent's, and none of its troubles."""
        self.breaker = Breaker()
        self._pool.after_fork()

    async def get(self, digest: bytes, i: int, serial: int) -> Entry | None:
        """The answer that should be there; forgotten where it is not, as by `AdmissionController.get`. None, too, if nobody knows."""
        for last in (False, True):
            found = self._keeper.store.get_nowait(digest)
            if found is NOT_IN_MEMORY:
                found = await self._from_disk(digest)
            if isinstance(found, NotInMemory):
                return None
            books = self._keeper.books
            if found is not None or books is None:
                return found
            if last:
                books.vanished(digest, i, serial)
            else:
                books.apply()
        return None

    async def find(self, digest: bytes) -> Entry | None:
        """An answer that may be there."""
        found = self._keeper.store.get_nowait(digest)
        if found is NOT_IN_MEMORY:
            found = await self._from_disk(digest)
        return None if isinstance(found, NotInMemory) else found

    async def _from_disk(self, digest: bytes) -> Entry | NotInMemory | None:
        """By a thread, in time; NOT_IN_MEMORY otherwise."""
        breaker, read = self.breaker, functools.partial(_read, self._keeper.store, digest)
        if not breaker.admits():
            if breaker.probe() and not self._pool.submit(lambda: breaker.probed(_timely(read))):
                breaker.probed(False)
            return NOT_IN_MEMORY
        found, begun = await self._pool.run(read, DEADLINE)
        if begun:  # what was not begun says nothing of the disk: there was more to read before it
            breaker.read(found is not TIMED_OUT and found is not NOT_IN_MEMORY)
        return NOT_IN_MEMORY if found is TIMED_OUT else found


def _read(store: Store, digest: bytes) -> Entry | NotInMemory | None:
    """NOT_IN_MEMORY: the disk is broken."""
    try:
        return store.read(digest)
    except StoreError:
        return NOT_IN_MEMORY


def _timely(read: Callable[[], Entry | NotInMemory | None]) -> bool:
    """Whether a read comes well, and in time."""
    start = time.perf_counter()
    return read() is not NOT_IN_MEMORY and time.perf_counter() - start <= DEADLINE
