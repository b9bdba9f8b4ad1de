"""The two roles that a process can have on a store. `coordinator.py` says what they are for, and swaps them.

Both have the same methods, so the engine does not ask which one it uses.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from knapcache.cache import owner_requests
from knapcache.cache.admission import AdmissionController
from knapcache.cache.apply_queue import BATCH_KEYS
from knapcache.cache.backpressure import WriteBackpressure
from knapcache.cache.entries import read_entries, stored_request
from knapcache.cache.entry_index import EntryTable, entry_table
from knapcache.cache.imported import ImportedRequests
from knapcache.cache.key_history import KeyRecord
from knapcache.cache.ledger import Ledger
from knapcache.cache.purging import ALL, PurgeConditions
from knapcache.cache.restore import save
from knapcache.cache.snapshot import read_snapshot
from knapcache.errors import NotOwner, StoreError
from knapcache.store.base import Clock, Entry, Lease, NetworkStore, Store, clearable_store, expired, network_store
from knapcache.threads import DeadlinePool

SWEEP_SECONDS = 60.0
"""Seconds between two sweeps of a shared store."""
SNAPSHOT_SECONDS = 6e-4
"""Seconds between two snapshots, for each id: ten minutes for a million. At least SWEEP_SECONDS."""
SWEEP_SETTLED = 1024
"""Settled answers between two sweeps of a store in memory; a quarter of its entries where that is more."""
SWEEP_ENTRIES = 512
"""Expired entries of a store in memory that are removed at a time, in about 10 ms, while a request waits."""
MAX_HANDOVER_BYTES = 8 << 20
"""Bytes of answers that wait for the thread that hands them over."""


class Role:
    """The store of a role, and a thread for work that callers do not wait for."""

    def __init__(self, store: Store, ledger: Ledger, thread: str) -> None:
        self.store, self._ledger, self._network = store, ledger, network_store(store)
        self._pool = DeadlinePool(thread, 1)
        weakref.finalize(self, self._pool.close)

    def end(self, lease: Lease, *, blocking: bool) -> None:
        """End the lease of a call that has no answer to store. Only a blocking caller waits for the store."""
        if blocking:
            lease.end()
        else:
            self._pool.submit(lease.end)


class Owner(Role):
    """The role of the process that decides."""

    is_owner = True

    def __init__(self, store: Store, admission: AdmissionController, ledger: Ledger, clock: Clock) -> None:
        super().__init__(store, ledger, "knapcache-settled")
        self.admission, self.imported, self._clock = admission, ImportedRequests(admission), clock
        self._swept_at = clock()
        self._saved_at, self._snapshot_arrived = (-math.inf, -1) if admission.read_all else (self._swept_at, 0)
        self._swept_settled = 0
        self.has_collected = False
        """Whether readers had left entries in the last round of maintenance."""
        self._backpressure = WriteBackpressure(store)
        # The controller's own methods: a call in between would cost a hit a tenth of a microsecond each.
        self.arrive = admission.arrive
        """arrive(key): count a request; return its id, and the serial of its entry, or −1 when there is none."""
        self.count_hit = self.count_coalesced = admission.observe
        """count_hit(key, id, size, cost): count a request that was answered without a call of its own."""
        self.count_memory_hit = admission.count_if_resident
        """count_memory_hit(key, size, cost): count a request and its hit; False and no count if it is not resident."""
        self.touch = admission.touch
        """touch(counts): count requests that were answered elsewhere; return how many were for known keys."""
        self.forget_missing = admission.forget_missing
        """forget_missing(key, id, serial): forget an entry that two reads did not find."""

    def drain(self) -> bool:
        """Write queued changes, so that a second read finds what the first one missed. True: read again."""
        self.admission.drain()
        return True

    async def wait_for_store(self) -> None:
        """Wait until the store can take an answer, at most some seconds. Callers that do not block do it first."""
        if self.store.write_backlog_full:
            await self._backpressure.wait_async()

    def settle(self, i: int, entry: Entry, *, blocking: bool, lease: Lease | None = None) -> bool:
        """Decide about an answer that was paid for. Return whether it is admitted."""
        (admitted,) = self.settle_many([(i, entry)], blocking=blocking)
        if lease is not None:
            self._pool.submit(lambda: self._end_settled(lease, entry))
        return admitted

    def settle_many(self, answers: Sequence[tuple[int, Entry]], *, blocking: bool) -> list[bool]:
        """Decide about answers that were paid for, one after the other. Return of each whether it is admitted."""
        if blocking and self.store.write_backlog_full:
            self._backpressure.wait()
        admitted = self.admission.settle_many(answers)
        settled = self.admission.settled - self._swept_settled
        if settled >= SWEEP_SETTLED and not self.store.shared and settled >= self.store.totals().entries // 4:
            swept, self._swept_settled = self._swept_settled, self.admission.settled
            if self.admission.expire(SWEEP_ENTRIES) == SWEEP_ENTRIES:  # the next answer removes more
                self._swept_settled = swept
        return admitted

    def _end_settled(self, lease: Lease, entry: Entry) -> None:
        self.store.flush()  # so that processes that wait for the lease find the entry
        lease.end(entry)

    def inherit(self, key: bytes, other: bytes) -> None:
        """Let a key that is not stored start with at least as many requests as another one, if both are known."""
        admission = self.admission
        with admission.deciding:
            i, j = admission.ids.find(key), admission.ids.find(other)
            if i >= 0 and j >= 0 and not admission.policy.rows["resident"][i]:
                admission.policy.inherit(i, j)

    # Maintenance.

    def maintain(self, *, sweep: bool) -> None:
        """Collect from readers. Remove expired entries and save a snapshot, if `sweep` or if it is due."""
        self._collect()
        if self._network is not None:
            self._reply(self._network)
        if sweep or not 0 <= self._clock() - self._swept_at < SWEEP_SECONDS:
            self._swept_at = now = self._clock()
            self.admission.expire()
            if sweep or not 0 <= now - self._saved_at < SNAPSHOT_SECONDS * len(self.admission.ids):
                self._saved_at = now
                self._save_snapshot()

    def leave(self) -> None:
        """Save a snapshot before the store is closed."""
        self._save_snapshot()

    def take_arrivals(self) -> None:
        """Settle the answers of other machines, and reply to their requests."""
        if self._network is not None and self._network.has_arrivals:
            self._settle_collected(self._network.collect_arrivals())
            self._reply(self._network)

    def _collect(self) -> None:
        self._settle_collected(self.store.collect())

    def _settle_collected(self, entries: Iterator[Entry]) -> None:
        # Hits first: otherwise a new answer would be compared with entries that look older than they are.
        if counts := self.store.take_counts():
            self._ledger.count("reported_hits", self.admission.touch(counts))
        self.has_collected = False
        for entry in entries:
            self.has_collected = True
            self._ledger.count("collected")
            i, serial = self.admission.arrive(entry.key)
            # It may have waited for long: expired, or older than what is stored.
            if expired(entry.expires, self._clock()):
                continue
            stored = self.store.get(entry.key) if serial >= 0 else None
            if (stored is None or stored.created < entry.created) and self.settle(i, entry, blocking=True):
                self.imported.add(entry)
        self.imported.end_round()

    def _reply(self, network: NetworkStore) -> None:
        for number, request in network.take_owner_requests():
            network.reply(number, owner_requests.reply_to(self, request))

    def _save_snapshot(self) -> None:
        arrived = self.admission.arrived
        if self.store.shared and arrived != self._snapshot_arrived:  # memory does not outlive the process
            self._snapshot_arrived = arrived
            save(self.admission)

    # Administration.

    def entries(self) -> EntryTable:
        """Return the metadata of all entries."""
        return self.admission.entries()

    def entry(self, key: bytes) -> tuple[EntryTable, Entry] | None:
        """Return an entry and its metadata. The policy does not count this as a request."""
        entry = self.store.get(key)
        table = self.admission.entries(key)
        return (table, entry) if entry is not None and table.keys else None

    def records(self, key: bytes) -> tuple[list[KeyRecord], float]:
        """Return what became of a key, newest first, and since when that is recorded."""
        return self.admission.history.find(key), self.admission.history.since

    def request(self, key: bytes) -> bytes | None:
        """Return the canonical request of an entry, or of a recently settled answer."""
        return self.admission.history.request(key) or stored_request(self.store, key)

    def settled(self) -> dict[bytes, tuple[float, bytes]]:
        """Return the times and canonical requests of recently admitted answers, by key."""
        return self.admission.history.settled()

    def purge(self, conditions: PurgeConditions) -> int:
        """Remove the entries that meet every condition. Return how many.

        Answers that readers handed over are decided first: otherwise they would be admitted after the purge.
        """
        self._collect()
        if conditions == ALL and clearable_store(self.store) is not None:
            return self.admission.clear()
        keys = [info.key for info in filter(conditions.filter(self._clock()), self.store.scan())]
        for k in range(0, len(keys), BATCH_KEYS):
            self.admission.forget(keys[k : k + BATCH_KEYS])
        return len(keys)

    def stats(self) -> dict[str, Any]:
        """Return what only the owner knows."""
        admission = self.admission
        sizes = admission.index.size_by_tenant(admission.policy, admission.deciding)
        with admission.deciding:
            return {
                "policy": admission.policy_name,
                "compiled": admission.policy.compiled,
                "ids": len(admission.ids),
                "oracle_calls": admission.policy.oracle_calls,
                "oracle_seconds": admission.oracle_seconds,
                "tenant_bytes": sizes,
            } | admission.shadows.report()

    def check(self) -> None:
        """Check the policy, its tables and the store against each other."""
        self.admission.check()


class Reader(Role):
    """The role of a process that reads what another process owns."""

    is_owner = False

    def __init__(self, store: Store, ledger: Ledger, start_thread: Callable[[], None], report_hits: bool) -> None:
        super().__init__(store, ledger, "knapcache-spool")
        self._start_thread, self._report_hits = start_thread, report_hits
        self._lock = threading.Lock()
        self._hits: Counter[bytes] = Counter()  # since the last report
        self._max_counted_keys = store.max_counted_keys
        self._handover_bytes = 0  # waiting for the pool

    # Requests.

    def arrive(self, key: bytes) -> tuple[int, int]:  # noqa: ARG002
        """Return that an entry may be there: what the owner stores can be read."""
        return -1, 0

    def count_hit(self, key: bytes, i: int, size: int, cost: float) -> None:  # noqa: ARG002
        """Count a hit for the next report to the owner."""
        if self._report_hits:
            self.touch({key: 1})

    def count_memory_hit(self, key: bytes, size: int, cost: float) -> bool:  # noqa: ARG002
        """Count a hit for the next report. A reader's memory holds only entries that are still stored."""
        if self._report_hits:
            with self._lock:
                if key in self._hits or len(self._hits) < self._max_counted_keys:
                    self._hits[key] += 1
        return True

    def inherit(self, key: bytes, other: bytes) -> None:
        """Do nothing: only the owner has a policy."""

    def count_coalesced(self, key: bytes, i: int, size: int, cost: float) -> None:
        """Count nothing: the owner counts the answer that is handed over."""

    def drain(self) -> bool:
        """Return False: a reader has no queued changes."""
        return False

    def forget_missing(self, key: bytes, i: int, serial: int) -> None:
        """Forget nothing: a reader has no policy."""

    async def wait_for_store(self) -> None:
        """Do nothing: answers wait for the owner in the spool."""

    def settle(self, i: int, entry: Entry, *, blocking: bool, lease: Lease | None = None) -> bool:  # noqa: ARG002
        """Hand an answer that was paid for over to the owner. Return whether it is on its way."""
        self._start_thread()
        if blocking:
            return self._hand_over(entry, lease)
        with self._lock:
            fits = self._handover_bytes + entry.size <= MAX_HANDOVER_BYTES
            self._handover_bytes += entry.size if fits else 0
        if fits and self._pool.submit(lambda: self._hand_over_counted(entry, lease)):
            return True
        self._ledger.count("handover_failed")
        if lease is not None:
            self.end(lease, blocking=False)
        return False

    def settle_many(self, answers: Sequence[tuple[int, Entry]], *, blocking: bool) -> list[bool]:
        """Hand answers over to the owner. Return of each whether it is on its way."""
        return [self.settle(i, entry, blocking=blocking) for i, entry in answers]

    def _hand_over_counted(self, entry: Entry, lease: Lease | None) -> None:
        self._hand_over(entry, lease)
        with self._lock:
            self._handover_bytes -= entry.size

    def _hand_over(self, entry: Entry, lease: Lease | None) -> bool:
        try:
            self.store.hand_over(entry)
        except StoreError:
            self._ledger.count("handover_failed")
            return False
        finally:
            if lease is not None:
                lease.end()
        self._ledger.count("handed_over")
        return True

    def touch(self, counts: Mapping[bytes, int]) -> int:
        """Count requests for the next report to the owner. Return how many fit."""
        self._start_thread()
        counted = 0
        with self._lock:
            for key, times in counts.items():
                if key in self._hits or len(self._hits) < self._max_counted_keys:
                    self._hits[key] += times
                    counted += times
        return counted

    # Maintenance.

    def maintain(self, *, sweep: bool) -> None:  # noqa: ARG002 - the owner sweeps
        """Report hits to the owner. What does not fit into the spool waits for the next round."""
        hits = self.take_hits()
        if not hits:
            return
        try:
            self.store.put_counts(hits)
        except StoreError:
            with self._lock:
                self._hits = hits + self._hits if len(self._hits) < self._max_counted_keys else hits

    def take_hits(self) -> Counter[bytes]:
        """Return the hits since the last report, and start counting again."""
        with self._lock:
            hits, self._hits = self._hits, Counter()
        return hits

    def leave(self) -> None:
        """Report the last hits before the store is closed."""
        self.maintain(sweep=False)

    # Administration.

    def entries(self) -> EntryTable:
        """Return the metadata of all entries in the store, with request counts of the owner or of its last snapshot."""
        if self._network is not None:
            infos = list(self.store.scan())
            counts = owner_requests.ask_request_counts(self._network, (info.key for info in infos))
            if counts is not None:
                return entry_table(infos, counts)
        return read_entries(self.store, read_snapshot(self.store.load_snapshot() or b""))

    def entry(self, key: bytes) -> tuple[EntryTable, Entry] | None:
        """Return an entry and its metadata."""
        entry = self.store.get(key)
        return None if entry is None else (entry_table([entry.info], {}), entry)

    def records(self, key: bytes) -> tuple[list[KeyRecord], float]:
        """Return what the owner knows of a key, in a store where it can be asked."""
        return ([], math.inf) if self._network is None else owner_requests.ask_records(self._network, key)

    def request(self, key: bytes) -> bytes | None:
        """Return the canonical request of an entry, or of an answer that the owner has recently settled."""
        found = stored_request(self.store, key)
        return found if found is not None or self._network is None else owner_requests.ask_request(self._network, key)

    def settled(self) -> dict[bytes, tuple[float, bytes]]:
        """Return what the owner has recently admitted, in a store where it can be asked."""
        return {} if self._network is None else owner_requests.ask_settled(self._network)

    def purge(self, conditions: PurgeConditions) -> int:
        """Let the owner purge; NotOwner if it cannot be asked."""
        if self._network is None:
            raise NotOwner("only the owner of the store can purge, and that is another process")
        return owner_requests.ask_purge(self._network, conditions)

    def stats(self) -> dict[str, Any]:
        """Return nothing: only the owner has a policy."""
        return {}

    def check(self) -> None:
        """Check the store."""
        self.store.check()
