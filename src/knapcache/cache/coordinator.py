"""Who decides, and what has to be done now and then.

A store in memory is ours alone. A file may be shared by many processes, of which one owns it at a time:

    owner    has the books: it decides, writes, and settles what others hand over
    reader   reads what the owner keeps, and hands over what it has paid for; once a second it tries to become the owner

What the owner evicts is gone for all. A child of a process is a reader. What readers answer from the file they count,
for so many keys at most, and tell the owner once a round: its policy counts those requests like its own.

For a file a thread keeps house, every TICK seconds: a reader tries to own; the owner collects what was handed over,
and every minute lets go of what has expired and writes the policy's state, which is copied under the lock and packed
outside of it. For memory there is no thread: expired answers are swept after so many settled ones.

The Oracle needs no thread of its own. `adaptive` asks it for caches of at most 8 residents, with a bound on the work;
the `vsocb` family asks it about every key it knows, within the request that makes it necessary.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from knapcache.cache.admission import AT_ONCE, AdmissionController
from knapcache.cache.entry_index import EntryTable, entry_table
from knapcache.cache.inspect import read_entries
from knapcache.cache.ledger import Ledger
from knapcache.cache.snapshot import pack
from knapcache.errors import NotOwner, StoreError
from knapcache.price.weights import amount
from knapcache.store.base import Clock, Entry, Store, expired, purge_filter
from knapcache.threads import DeadlinePool

log = logging.getLogger("knapcache.cache")

TICK = 1.0
CHORES = 60.0
"""Seconds between two sweeps, and between two snapshots."""
MOST_HANDED = 8 << 20
"""Bytes of answers that wait for a thread to hand them over."""
SWEEP = 1024
"""Settled answers between two sweeps of a store in memory, and no fewer than a quarter of its entries."""


class Keeper:
    """Holds the store, and the books where this process decides."""

    def __init__(
        self,
        store: Store,
        open_books: Callable[[], AdmissionController],
        ledger: Ledger,
        clock: Clock,
        report_hits: bool = True,
    ) -> None:
        self.store = store
        self.books: AdmissionController | None = None
        self._open_books, self._ledger, self._clock = open_books, ledger, clock
        self._tending = threading.Lock()
        self._handing, self._handed = threading.Lock(), 0
        self.report_hits = report_hits
        self._hits: Counter[bytes] = Counter()  # of a reader, since it last told the owner
        self._pool = DeadlinePool("knapcache-spool", 1)
        weakref.finalize(self, self._pool.close)
        self._chores = self._swept = self._snapped = 0.0
        self._disk_bytes = store.disk_bytes()  # as of the last round: who asks for statistics waits for no disk
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if not store.shared:
            self.books = open_books()
            return
        try:
            if store.owner:
                self.books = open_books()
        except BaseException:
            store.close()
            raise
        # Who forgets to close lets go all the same: with the last reference, or at the end of the program.
        weakref.finalize(self, store.close)
        self._chores = clock()
        self._start()

    def _start(self) -> None:
        arguments = (weakref.ref(self), self._closed)
        self._thread = threading.Thread(target=_keep_house, args=arguments, name="knapcache-keeper", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """In a child: the parent goes on as it was, and a child of an owner or a reader is a reader.

        Threads of the parent may have held the locks, and are not here to let them go.
        """
        self._tending, self._handing, self._handed = threading.Lock(), threading.Lock(), 0
        self._pool.after_fork()
        self._hits = Counter()
        if self.books is not None:
            self.books.deciding, self.books.applying, self.books.expiring = (threading.Lock() for _ in range(3))
        if self.store.shared:
            self.books, self._thread = None, None
            closed, self._closed = self._closed.is_set(), threading.Event()
            if closed:
                self._closed.set()
            else:
                self.store = self.store.reader()

    def settle(self, i: int, entry: Entry, off_thread: bool = False) -> bool:
        """An answer was paid for. Is it kept, or handed to whoever decides? aside: without waiting for a disk."""
        books = self.books
        if books is None:
            return self._hand_over_aside(entry) if off_thread else self._hand_over(entry)
        kept = books.settle(i, entry)
        if self._thread is None and books.settled >= self._swept + max(SWEEP, self.store.totals().entries // 4):
            self._swept = books.settled
            books.expire()
        return kept

    def _hand_over(self, entry: Entry) -> bool:
        if self._thread is None:  # a child, and it lives long enough to pay for something
            self._start()
        try:
            self.store.hand_over(entry)
        except StoreError:
            self._ledger.count("not_handed_over")
            return False
        self._ledger.count("handed_over")
        return True

    def _hand_over_aside(self, entry: Entry) -> bool:
        """The same by a thread. What waits for it is bounded, and what does not fit is not handed over."""
        with self._handing:
            room = self._handed + entry.size <= MOST_HANDED
            self._handed += entry.size if room else 0
        if room and self._pool.submit(functools.partial(self._hand_over_counted, entry)):
            return True
        self._ledger.count("not_handed_over")
        return False

    def _hand_over_counted(self, entry: Entry) -> None:
        self._hand_over(entry)
        with self._handing:
            self._handed -= entry.size

    def touch(self, counts: Mapping[bytes, int]) -> int:
        """Requests that were answered from the file: to the books, or to the owner in the next round. How many."""
        if self.books is not None:
            return self.books.touch(counts)
        if self._thread is None and not self._closed.is_set():  # a child, and it has something to tell
            self._start()
        counted = 0
        with self._handing:
            for key, times in counts.items():
                if key in self._hits or len(self._hits) < self.store.max_counted_keys:
                    self._hits[key] += times
                    counted += times
        return counted

    def _tell(self) -> None:
        """A reader's hits go to the owner. What does not fit into the spool waits for the next round."""
        with self._handing:
            hits, self._hits = self._hits, Counter()
        if not hits:
            return
        try:
            self.store.put_counts(hits)
        except StoreError:
            with self._handing:
                self._hits = hits + self._hits if len(self._hits) < self.store.max_counted_keys else hits

    def maintain(self, *, all_chores: bool = True) -> None:
        """One round. With a failing disk it does what it can: the next round will do the rest."""
        with self._tending:
            try:
                if self._closed.is_set():
                    return
                with contextlib.suppress(OSError):
                    self._disk_bytes = self.store.disk_bytes()
                if self.books is None:
                    self._succeed()
                    if self.books is None:
                        self._tell()
                if self.books is not None:
                    self._collect(self.books)
                    if all_chores or not 0 <= self._clock() - self._chores < CHORES:
                        self._chores = self._clock()
                        self.books.expire()
                        self._snapshot(self.books)
            except StoreError as error:
                self._ledger.count("store_faults")
                log.warning("the store cannot be tended now: %s", error)

    def _succeed(self) -> None:
        """The owner may be gone: then it is our turn."""
        if self.store.own():
            self.books = books = self._open_books()
            self._ledger.count("became_owner")
            with self._handing:
                hits, self._hits = self._hits, Counter()
            books.touch(hits)

    def _collect(self, books: AdmissionController) -> None:
        if counts := self.store.take_counts():
            self._ledger.count("touched", books.touch(counts))
        for entry in self.store.collect():
            self._ledger.count("collected")
            i, _ = books.arrive(entry.key)
            ours = self.store.get(entry.key)
            # It may have lain there for long.
            if not expired(entry.expires, self._clock()) and (ours is None or ours.created < entry.created):
                books.settle(i, entry)

    def _snapshot(self, books: AdmissionController) -> None:
        if self._thread is None or books.arrived == self._snapped:
            return  # what does not outlive the process needs none
        self._snapped = books.arrived
        snapshot = pack(books.name, books.policy, books.state(), self.store.max_snapshot_size)
        if snapshot is not None:
            books.keep_snapshot(snapshot)

    def stats(self) -> dict[str, Any]:
        """What there is now."""
        totals = self.store.totals()
        books = self.books
        found: dict[str, Any] = {
            "entries": totals.entries,
            "bytes": totals.size,
            "capacity": self.store.capacity,
            "size_limit": self.store.size_limit,
            "disk_bytes": self._disk_bytes,
            "owner": books is not None,
            "store": dict(self.store.counters()),
        }
        if books is not None:
            with books.deciding:
                found |= {
                    "policy": books.name,
                    "ids": len(books.ids),
                    "oracle_calls": books.policy.oracle_calls,
                    "oracle_seconds": books.oracle_seconds,
                    "shadows": books.shadows.spent(),
                    "tenant_bytes": books.index.by_tenant(books.policy),
                }
        return found

    def kept(self) -> EntryTable:
        """All that is kept: by the books, or as the owner has left it in the file."""
        if self.books is not None:
            return self.books.kept()
        return read_entries(self.store)

    def entry(self, key: bytes) -> tuple[EntryTable, Entry] | None:
        """One answer with its bytes, and what is known of it. Nobody's request: the policy does not count it."""
        entry = self.store.get(key)
        if entry is None:
            return None
        kept = entry_table([entry.info], {}) if self.books is None else self.books.kept(key)
        return (kept, entry) if kept.keys else None

    def purge(self, key: bytes | None, model: str | None, tenant: str | None, older_than: float | None) -> int:
        """Remove what meets every condition given."""
        if self.books is None:
            raise NotOwner("another process owns the file, and has to do it")
        before = None if older_than is None else self._clock() - amount("older_than", older_than)
        meets = purge_filter(tenant, model, before)
        keys = [head.key for head in self.store.scan() if (key is None or head.key == key) and meets(head)]
        for k in range(0, len(keys), AT_ONCE):
            self.books.forget(keys[k : k + AT_ONCE])
        return len(keys)

    def check(self) -> None:
        """Policy, ids and store agree."""
        if self.books is not None and not self._closed.is_set():
            self.books.check()
        else:
            self.store.check()

    def close(self) -> None:
        """Keep the policy's state, and let go."""
        with self._tending:
            if self._closed.is_set():
                return
            if self.books is not None:
                self._snapshot(self.books)
            else:
                self._tell()
            self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.store.close()


def _keep_house(keeper: weakref.ref[Keeper], closed: threading.Event) -> None:
    """Until the cache is closed, or nobody has it any more."""
    while not closed.wait(TICK):
        found = keeper()
        if found is None:
            return
        found.maintain(all_chores=False)
        del found
