"""Owner and reader roles of a shared store, and periodic maintenance.

A store in memory belongs to its process. A shared store may be open in many processes, one of which owns it at a time:

    owner    decides and writes, and settles the answers that readers hand over
    reader   reads the owner's entries, hands over the answers it paid for, and reports its hits

An entry that the owner evicts is gone for all. A child process is a reader. A reader counts its hits by key, for a
bounded number of keys, and reports them once a round; the owner's policy counts them like its own.

For a shared store a thread runs a round of maintenance every TICK seconds, and every ARRIVALS_TICK seconds while
readers leave entries. A reader tries to become the owner. An owner
that another process has replaced becomes a reader; that happens in a store of many machines (store/redis). Such a store
reports answers that were handed over, and the owner settles them within ARRIVALS_TICK seconds. The owner collects what
readers left; once in SWEEP_SECONDS it removes expired entries. It writes a snapshot as often, or less often if it is
large (restore.py). A store in memory has no such thread: expired entries are removed after every SWEEP_SETTLED settled
answers.

A large shared store is opened in two steps. The process begins as a reader of its own store, so that it serves at
once. The first round of maintenance loads the policy's state, or reads the metadata of all entries, which takes
seconds, and makes it the owner. Answers that are paid for until then are handed over, and decided after that.

The Oracle needs no thread. `adaptive` calls it only for caches of at most 8 residents, with a bound on its work; the
`vsocb` policies call it within the request that requires it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from knapcache.cache import background_compile
from knapcache.cache.admission import AdmissionController
from knapcache.cache.ledger import Ledger
from knapcache.cache.restore import open_store
from knapcache.cache.roles import Owner, Reader
from knapcache.errors import StoreError
from knapcache.store.base import Clock, Store, network_store
from knapcache.threads import PeriodicThread

log = logging.getLogger("knapcache.cache")

TICK = 1.0
"""Seconds between two rounds of maintenance."""
ARRIVALS_TICK = 0.05
"""Seconds between two looks for arrivals, in a store that reports them."""
READER_TICK = 0.25
"""Seconds between two attempts of a reader to become the owner of such a store, and between two reports of its hits."""
MEASURE_SECONDS = 5.0
"""Seconds between two measurements of the size of such a store."""
MAX_AT_ONCE = 20_000
"""Most entries of a store that is opened in one step: more may take seconds."""


class AdmissionOpener(NamedTuple):
    """The arguments of an admission controller, for a process that may become the owner."""

    policy: str
    shadows: tuple[str, ...]
    ledger: Ledger
    ids: int | None
    quotas: Mapping[str, int]
    clock: Clock

    def open(self, store: Store) -> AdmissionController:
        """Return the admission controller of a store that this process owns."""
        admission = AdmissionController(store, *self)
        open_store(admission, self.clock())
        return admission

    def prepare(self) -> None:
        """Do in advance what does not need the ownership: no process decides while a new owner opens."""
        background_compile.prepare_for_takeover(self.policy, self.shadows)


class Coordinator:
    """Holds the role of this process, and changes it when the store's ownership changes."""

    def __init__(
        self,
        store: Store,
        opener: AdmissionOpener,
        ledger: Ledger,
        clock: Clock,
        report_hits: bool = True,
        *,
        at_once: bool = True,
    ) -> None:
        """at_once: open a store of any size in one step."""
        self._opener, self._ledger, self._clock = opener, ledger, clock
        self._report_hits = report_hits
        self._maintaining = threading.Lock()
        self.network = network_store(store)
        """The store, if it is one of many machines."""
        # As of the last round: `stats` does not wait for a disk or a server.
        self._disk_bytes, self._totals = store.disk_bytes(), store.totals()
        self._maintained = self._reader_ticked = self._measured = time.monotonic()
        self._thread = PeriodicThread("knapcache-maintenance", self.tick, ARRIVALS_TICK)
        few = at_once or self._totals.entries <= MAX_AT_ONCE
        self._opening = store.owner and store.shared and not few
        self.role: Owner | Reader
        try:
            self.role = self._owner(store) if store.owner and not self._opening else self._reader(store)
        except BaseException:
            store.close()
            raise
        if self.network is not None and not self.role.is_owner:
            opener.prepare()
        if self._opening:
            self._maintained = -math.inf  # the first round is due
        if store.shared:
            weakref.finalize(self, store.close)  # for a program that does not close its cache
            self._thread.start()

    @property
    def owner(self) -> bool:
        """Whether this process decides, or will when its store is open."""
        return self.role.is_owner or self._opening

    @property
    def store(self) -> Store:
        """The store of the current role."""
        return self.role.store

    def _owner(self, store: Store) -> Owner:
        return Owner(store, self._opener.open(store), self._ledger, self._clock)

    def _reader(self, store: Store) -> Reader:
        return Reader(store, self._ledger, self._thread.start, self._report_hits)

    def tick(self) -> float:
        """Do what is due. Return the seconds until the next call."""
        now = time.monotonic()
        if now - self._maintained >= self._tick:
            self.maintain(sweep=False)
        elif self.network is None:
            return self._maintained + self._tick - now
        elif isinstance(self.role, Owner):
            if self.network.has_arrivals:
                self._guarded(self.role.take_arrivals)
        elif now - self._reader_ticked >= READER_TICK:
            self._guarded(self._reader_tick)
        if self.network is None:
            return self._tick
        return ARRIVALS_TICK if isinstance(self.role, Owner) else READER_TICK

    @property
    def _tick(self) -> float:
        """Seconds between two rounds of maintenance: fewer while readers leave entries in a small spool."""
        busy = self.network is None and isinstance(self.role, Owner) and self.role.has_collected
        return ARRIVALS_TICK if busy else TICK

    def maintain(self, *, sweep: bool = True) -> None:
        """Run one round of maintenance. What a failing disk prevents is left to the next round."""
        self._guarded(lambda: self._maintain(sweep))

    def _guarded(self, work: Callable[[], None]) -> None:
        with self._maintaining:
            if self._thread.stopped.is_set():
                return
            try:
                work()
            except StoreError as error:
                self._ledger.count("store_errors")
                log.warning("store maintenance failed, the next round tries again: %s", error)
            except Exception:  # noqa: BLE001,RUF100 - whatever ends the thread would end the ownership of the store
                self._ledger.count("store_errors")
                log.exception("store maintenance failed, the next round tries again")

    def _maintain(self, sweep: bool) -> None:
        self._maintained = time.monotonic()
        if sweep or self.network is None or self._maintained - self._measured >= MEASURE_SECONDS:
            self._measured = self._maintained
            with contextlib.suppress(OSError):
                self._disk_bytes = self.store.disk_bytes()
            self._totals = self.store.totals()
        self._update_role()
        self.role.maintain(sweep=sweep)

    def _reader_tick(self) -> None:
        self._reader_ticked = time.monotonic()
        self._update_role()
        if isinstance(self.role, Reader):
            self.role.maintain(sweep=False)

    def _update_role(self) -> None:
        if isinstance(self.role, Reader):
            if self.store.own():
                self._become_owner(self.role)
        elif not self.store.owner:
            self._become_reader()

    def _become_owner(self, reader: Reader) -> None:
        self.role = owner = self._owner(reader.store)
        if not self._opening:
            self._ledger.count("ownership_gained")
        self._opening = False
        owner.touch(reader.take_hits())

    def _become_reader(self) -> None:
        """Give up the policy: another process has taken the ownership over, and decides from the same store."""
        self.role = self._reader(self.store)
        self._ledger.count("ownership_lost")

    def after_fork(self) -> None:
        """Become a reader in a child process; the parent keeps its role. A store in memory is copied by the fork.

        Locks are replaced: threads of the parent may have held them, and do not run here.
        """
        self._maintaining, self._opening = threading.Lock(), False
        role, stopped = self.role, self._thread.stopped.is_set()
        self._thread = PeriodicThread("knapcache-maintenance", self.tick, ARRIVALS_TICK)
        if stopped:
            self._thread.stopped.set()
        if role.store.shared:
            self.role = self._reader(role.store if stopped else role.store.reader())
            self.network = network_store(self.role.store)
        elif isinstance(role, Owner):
            role.admission.after_fork()

    def stats(self) -> dict[str, Any]:
        """Return the sizes of the store, and what the role knows."""
        role = self.role
        totals = role.store.totals() if role.is_owner or self.network is None else self._totals
        return {
            "entries": totals.entries,
            "bytes": totals.size,
            "capacity": role.store.capacity,
            "size_limit": role.store.size_limit,
            "disk_bytes": self._disk_bytes,
            "owner": self.owner,
            "store": dict(role.store.counters()),
            **role.stats(),
        }

    def check(self) -> None:
        """Raise CorruptState unless what this process knows agrees with the store."""
        if self._thread.stopped.is_set():
            self.store.check()
        else:
            self.role.check()

    def close(self) -> None:
        """Save what the role has to save, and close the store."""
        with self._maintaining:
            if self._thread.stopped.is_set():
                return
            self.role.leave()
            self._thread.stopped.set()
        self._thread.join()
        self.store.close()
