"""Admission: the only caller of the policy.

The controller holds what decisions depend on: the policy, the table of ids, the index of entries, the quotas and the
shadows. The `deciding` lock is around all of them. A call of the policy takes about a microsecond, and nothing under
this lock waits for a disk. A decision becomes a StoreChange at the end of the apply queue, under the same lock; the
thread that decided then drains the queue into the store (`apply_queue.py`).

    Lock order: expiring, applying, deciding. A store's callback takes only `deciding`.

An entry that the policy holds may be missing from the store: expired, damaged, or refused by a full disk. A failed read
must not invalidate a queued or newer write, so the caller proceeds in steps:

    1. arrive: the policy holds i, as of serial s
    2. store.get finds nothing. drain: the put of s has reached the store now, if it ever will
    3. store.get finds nothing again. forget_missing: if the policy still holds i as of s, it forgets i

An entry that the store has and the policy does not hold is a miss, and the next answer replaces it. A restart leaves
none of these: `restore.open_store` gives every entry of the store to the policy.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from knapcache.cache import background_compile, huge_pages
from knapcache.cache.apply_queue import ApplyQueue, StoreChange
from knapcache.cache.consistency import check_residents
from knapcache.cache.entry_index import IMPORTED, PAUSE, EntryIndex, EntryTable
from knapcache.cache.ids import IdTable, table_size
from knapcache.cache.key_array import KeyArray
from knapcache.cache.key_history import MAX_RECORDS, REJECTIONS, KeyHistory
from knapcache.cache.ledger import Ledger
from knapcache.cache.quotas import Quotas
from knapcache.cache.shadow import Shadows
from knapcache.errors import CorruptState, StoreError
from knapcache.policy import registry
from knapcache.store.base import Clock, Entry, EntryInfo, Store, wall_clock

log = logging.getLogger("knapcache.cache")

CLEAR_IDS = 128
"""Ids that `clear` forgets without a pause, in a millisecond."""
MAX_TOUCHES = 1000
"""Requests for one key that `touch` counts at most: a key with that many stays resident anyway."""


class AdmissionController:
    """Decides what is resident in one store that this process owns."""

    def __init__(
        self,
        store: Store,
        policy: str,
        shadows: tuple[str, ...],
        ledger: Ledger,
        ids: int | None = None,
        quotas: Mapping[str, int] | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        self.store = store
        self.policy_name = policy
        size = ids or table_size(store)
        self.policy = registry.find(policy).build(store.capacity, size)
        self.ids = IdTable(self.policy)
        self.index = EntryIndex(size)
        self.quotas = Quotas(quotas or {}, self.policy, self.index)
        self.history = KeyHistory(self.policy, self.ids, self.index, clock)
        self.oracle_seconds = 0.0
        """Time spent in decisions that called the Oracle."""
        # Views: looking a column up takes longer than reading it.
        self._oracle_calls, self._evicted = self.policy.head["oracle_calls"], self.policy.head["evicted"]
        self._resident, self._victims = self.policy.rows["resident"], self.policy.rows["victim"]
        self.shadows = Shadows(shadows, self.policy, self.ids, self.index)
        huge_pages.disable_for(self.policy.rows, self.index.records)
        self.ledger = ledger
        self.arrived = self.settled = 0
        self.deciding, self.expiring = threading.Lock(), threading.Lock()
        self.queue = ApplyQueue(store)
        self._clock = clock
        self._failure_logged = False
        self.read_all = False
        """Whether all entries were read when the store was opened. The next snapshot spares the next opening that."""
        self.repriced = np.zeros(size, np.bool_)
        """By id: a miss of its entry costs something else, for the policy, than was paid."""
        self._use_kernels(background_compile.prepare(policy, shadows, store.totals().entries))
        self._compile_in_background()

    def after_fork(self) -> None:
        """Replace the locks in a child process: threads of the parent may have held them, and do not run here."""
        self.deciding, self.expiring, self.queue.applying = (threading.Lock() for _ in range(3))
        self._compile_in_background()

    def _compile_in_background(self) -> None:
        if not self.policy.compiled:
            background_compile.start(self.policy_name, self.shadows.names, weakref.WeakMethod(self._use_kernels))

    def _use_kernels(self, compiled: bool = True) -> None:
        """Use the policy's compiled kernels. Until they are compiled, their Python forms decide."""
        with self.deciding:
            self.policy.compiled = self.shadows.compiled = compiled
            # policy.arrive and settle without their argument checks: ids come from our own table.
            kind, state = type(self.policy), (self.policy.head, self.policy.rows)
            self._arrive = functools.partial(self.policy.form_of(kind.arrive_kernel), *state)
            self._settle = functools.partial(self.policy.form_of(kind.settle_kernel), *state)

    # Requests.

    def arrive(self, key: bytes) -> tuple[int, int]:
        """Count a request. Return its id, and the serial of its entry, or −1 when the policy holds none."""
        with self.deciding:
            i = self.intern(key)
            self.arrived += 1
            serial = self.ids.serial[i] if self._arrive(i) else -1
        if self.queue.changes:
            self.drain()
        return i, serial

    def count_if_resident(self, key: bytes, size: int, cost: float) -> bool:
        """`arrive` and `observe` in one step, for an entry found in memory. False: the policy does not hold it."""
        with self.deciding:
            i = self.ids.find(key)
            if i < 0:
                return False
            self.arrived += 1
            resident = bool(self._arrive(i))
            if resident:
                self.shadows.observe(i, size, cost)
        if self.queue.changes:
            self.drain()
        return resident

    def observe(self, key: bytes, i: int, size: int, cost: float) -> None:
        """Show the shadows a request that was answered without a call."""
        with self.deciding:
            if self.ids.holds(i, key):
                self.shadows.observe(i, size, cost)

    def touch(self, counts: Mapping[bytes, int]) -> int:
        """Count requests that were answered elsewhere, by key. Return how many were for keys that have an id."""
        counted = 0
        for key, times in counts.items():
            with self.deciding:  # taken for each key, so that no request waits for all of them
                i = self.ids.find(key)
                if i < 0:  # its id was recycled since
                    continue
                for _ in range(min(times, MAX_TOUCHES)):
                    self.arrived += 1
                    counted += 1
                    if self._arrive(i):
                        size, cost = int(self.policy.rows["entry_size"][i]), float(self.index.records["cost"][i])
                        self.shadows.observe(i, size, cost)
        return counted

    def held(self, keys: Iterable[bytes]) -> list[int]:
        """Return the positions of those keys whose entries the policy holds."""
        with self.deciding:
            ids = self.ids.find_many(KeyArray.of(keys))
            return np.flatnonzero(self._resident[ids] & (ids >= 0)).tolist()

    def reprice(self, costs: Mapping[bytes, float]) -> None:
        """Set what a miss of some resident keys costs from now on. Entries keep the cost that was paid for them."""
        for key, cost in costs.items():
            with self.deciding:  # taken for each key, so that no request waits for all of them
                i = self.ids.find(key)
                if i >= 0:
                    self.policy.reprice(i, cost)
                    self.repriced[i] = cost != self.index.records["cost"][i]

    def forget_missing(self, key: bytes, i: int, serial: int) -> None:
        """Forget an entry that the store does not have, unless a newer one was admitted."""
        with self.deciding:
            if self.ids.holds(i, key) and self.ids.serial[i] == serial and self.forget_id(i):
                self.history.note_missing(i)
                self.shadows.forget(i)  # it expired or was lost: no policy would have it now
                self.queue.append(StoreChange(evict=[key]))
                self.ledger.count("missing_entries")
        self.drain()

    def settle(self, i: int, entry: Entry) -> bool:
        """Decide about an answer that was paid for, here or before it was imported. Return whether it is admitted."""
        return self.settle_many([(i, entry)])[0]

    def settle_many(self, answers: Sequence[tuple[int, Entry]]) -> list[bool]:
        """Decide about answers, one after the other. The store gets all changes at once. id −1: count a request, too.

        All of them take the lock together, so the caller keeps them few: requests wait for it.
        """
        admitted = []
        with self.deciding:
            busy = self.store.write_backlog_full
            for i, entry in answers:
                if not self.ids.holds(i, entry.key):  # a new request, or the id was recycled during the call
                    i = self.intern(entry.key)
                    self.arrived += 1
                    self._arrive(i)
                admitted.append(self._decide(i, entry, busy))
                self.settled += 1
                self.shadows.settle(i, entry.size, entry.cost, imported=IMPORTED in entry.meta)
        self.drain()
        return admitted

    def _decide(self, i: int, entry: Entry, busy: bool) -> bool:
        if (reason := self._rejection(entry, busy)) is not None:
            self.history.note_settled(i, entry, REJECTIONS[reason])
            # The policy is not called. The older answer is evicted, because a newer one was paid for. While a disk
            # hangs, only such evictions are queued, and no more of them than there are entries.
            if self.forget_id(i):
                self.queue.append(StoreChange(evict=[entry.key]))
            self.ledger.count(reason)
            return False
        self.history.note_removed("replaced", i)
        admit, evicted = self._timed_settle(i, entry.size, entry.cost)
        self.history.note_settled(i, entry, None if admit else "not admitted", evicted)
        if evicted:
            self.untrack(evicted)
        if admit:
            self.ids.serial[i] += 1
            self.track(i, entry)
            if entry.tenant in self.quotas.limits:
                victims = self.forget_over_quota(entry.tenant, i)
                self.history.note_evicted("over quota", victims, i, entry)
                evicted = (*evicted, *victims)
        elif entry.cost > 0.0:  # an answer that costs nothing is not worth space, however much there is
            self.ledger.count("rejected_by_policy")
        if evicted:
            self.ledger.count("evictions", len(evicted))
        if admit or evicted:
            keys = [self.ids.key(victim) for victim in evicted] if evicted else ()
            self.queue.append(StoreChange(entry if admit else None, keys, i=i, serial=self.ids.serial[i]))
        return admit

    def _rejection(self, entry: Entry, busy: bool) -> str | None:
        """The counter of the reason why an entry cannot be admitted, whatever the policy says. busy: the store is."""
        if entry.size > self.store.max_entry_size:
            return "rejected_too_large"
        if busy:
            return "rejected_store_busy"
        return None if self.quotas.fits(entry.tenant, entry.size) else "rejected_over_quota"

    def _timed_settle(self, i: int, size: int, cost: float) -> tuple[bool, Sequence[int]]:
        """Return whether the policy admits the answer of id i, and the ids that it evicts."""
        calls, start = self._oracle_calls.item(), time.perf_counter()
        self._settle(i, size, cost)
        if self._oracle_calls.item() != calls:
            self.oracle_seconds += time.perf_counter() - start
        evicted = self._evicted.item()
        return bool(self._resident[i]), self._victims[:evicted].tolist() if evicted else ()

    # The policy knows what is resident; index and quotas follow it. The caller holds `deciding`.

    def track(self, i: int, entry: Entry | EntryInfo) -> None:
        """Record that an entry is resident."""
        self.index.record(i, entry)
        self.quotas.add(i, entry.tenant, entry.size)

    def untrack(self, ids: Iterable[int]) -> None:
        """Record that the policy has evicted ids."""
        for i in ids:
            self.quotas.remove(i)

    def forget_id(self, i: int) -> bool:
        """Let the policy forget the entry of an id. Return whether it held one."""
        self.quotas.remove(i)
        return self.policy.forget(i)

    def forget_over_quota(self, tenant: str, newcomer: int = -1) -> list[int]:
        """Forget entries of a namespace until its quota holds. Return their ids."""
        victims = []
        while (victim := self.quotas.next_victim(tenant, newcomer)) >= 0:
            self.forget_id(victim)
            victims.append(victim)
        return victims

    def intern(self, key: bytes) -> int:
        """Return the id of a key, a new one if it has none."""
        i = self.ids.find(key)
        if i < 0:
            i, recycled, evicted = self.ids.intern(key)
            if recycled:
                self.shadows.recycle(i)
                self.ledger.count("recycled_ids")
            if evicted is not None:
                self.history.note_removed("id reused", i, evicted)
                self.quotas.remove(i)
                self.ledger.count("evictions")
                self.queue.append(StoreChange(evict=[evicted]))
        return i

    # The store.

    def drain(self) -> None:
        """Apply queued changes. After this, the store has every change that was decided before the call."""
        self.queue.drain(self._on_failure)

    def _on_failure(self, change: StoreChange) -> None:
        """Forget an entry that the store could not take. Its request was answered all the same."""
        self.ledger.count("store_errors")
        if not self._failure_logged:
            self._failure_logged = True
            log.warning("the store cannot write; requests are answered without it: %s", change.error)
        if change.put is not None:
            with self.deciding:
                if self.ids.holds(change.i, change.put.key) and self.ids.serial[change.i] == change.serial:
                    self.history.note_removed("not written", change.i)
                    self.forget_id(change.i)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove entries from policy and store; StoreError when the store could not remove them yet."""
        with self.deciding:
            keys = list(keys)
            for key in keys:
                i = self.ids.find(key)
                if i >= 0:
                    self.history.note_removed("purged", i)
                    self.forget_id(i)
                    self.shadows.forget(i)
            change = StoreChange(evict=keys)
            self.queue.append(change)
        self.drain()
        self.store.flush()
        if change.error is not None:
            raise StoreError(f"{len(keys)} entries are hidden, but not yet removed: {change.error}")

    def clear(self) -> int:
        """Remove all entries from policy and store, a `ClearableStore`. Return how many. StoreError as of `forget`.

        The store removes its rows in the background, while the policy forgets its ids. An answer that is admitted
        meanwhile has a newer serial, or another id: it stays.
        """
        with self.expiring:  # as for `expire`
            with self.deciding:
                ids = np.flatnonzero(self.policy.rows["resident"][: len(self.ids)])
                serials = np.asarray(self.ids.serial)[ids].tolist()
                change = StoreChange(clear=True)
                self.queue.append(change)
            self.drain()
            found = list(zip(ids.tolist(), serials, strict=True))
            for first in range(0, len(found), CLEAR_IDS):
                if first:
                    time.sleep(PAUSE)
                with self.deciding:
                    for i, serial in found[first : first + CLEAR_IDS]:
                        if self.ids.serial[i] == serial:
                            if first >= len(found) - MAX_RECORDS:  # it would not keep the others
                                self.history.note_removed("purged", i)
                            self.forget_id(i)
                            self.shadows.forget(i)
            self.store.flush()
        if change.error is not None:
            raise StoreError(f"{len(found)} entries are hidden, but not yet removed: {change.error}")
        return len(found)

    def expire(self, at_most: int | None = None) -> int:
        """Remove expired entries. Return how many. at_most: of a store in memory."""
        with self.expiring:  # the store drops all at once, the policy key by key: `check` waits until both are done
            if self.store.shared:
                keys = self.store.expire()
            else:
                keys = self.index.expired(self.policy, self.ids, self.deciding, self._clock(), at_most)
            for key in keys:
                with self.deciding:
                    i = self.ids.find(key)
                    if i < 0 or not self.policy.rows["resident"][i]:
                        continue
                    serial = self.ids.serial[i]
                self.drain()
                if self.store.get(key) is None:
                    self.forget_missing(key, i, serial)
        return len(keys)

    def entries(self, key: bytes | None = None) -> EntryTable:
        """Return a copy of the metadata of all entries, or of one."""
        if key is None:
            return self.index.all_entries(self.policy, self.ids, self.deciding)
        with self.deciding:
            i = self.ids.find(key)
            ids = [i] if i >= 0 and self.policy.rows["resident"][i] else []
            return self.index.table(self.policy, self.ids.keys, np.array(ids, np.int64))

    def check(self) -> None:
        """Raise CorruptState unless policy, ids, shadows, index, quotas and store agree."""
        with self.expiring, self.queue.applying:
            for _ in range(1000):
                self.queue.drain_locked(self._on_failure)
                self.store.flush()  # not under `deciding`, which the store's callbacks take
                with self.deciding:
                    if not self.queue.changes:
                        for part in (self.store, self.policy, self.shadows, self.history):
                            part.check()
                        self.index.check(check_residents(self.store, self.policy, self.ids, self.forget_id))
                        self.quotas.check()
                        return
        raise CorruptState("cannot check: decisions come faster than the store applies them")
