"""Decisions, and how they reach the store: the only caller of the policy.

One lock is around policy, ids and shadows; a call of the policy takes about a microsecond, and nothing that waits for a
disk happens under it. A decision becomes a *change* (what comes, what goes) at the end of a queue, under the same
lock. The queue is emptied in its order by whoever has just added to it, under a second lock: so the store sees
decisions in the order in which they were taken, and Σ sizes never exceeds the capacity in between.

    Lock order: expiring, applying, then deciding. A store's callback takes the second alone.

What the policy calls resident may be missing from the store: expired, damaged, refused by a full disk. Who looks for it
and finds nothing must not blame an answer that is still on its way, or one that came in later:

    1. under the lock: i is resident, as of serial s
    2. store.get: nothing. The queue is emptied; by now the put of s is in the store, if it ever was
    3. store.get again: nothing. Under the lock, if i is still resident as of s: forgotten, and an eviction is queued

What the store has and the policy does not know is not looked for: it is a miss, and the next answer replaces it.
After a restart there is no such thing, for the books are opened by counting what lies in the store.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import numpy as np

from knapcache.cache.entry_index import EntryTable, Index
from knapcache.cache.ids import Ids, table_size
from knapcache.cache.ledger import Ledger
from knapcache.cache.quotas import Quotas
from knapcache.cache.shadow import Shadows, named
from knapcache.cache.snapshot import State, copied, unpack
from knapcache.cache.store_change import StoreChange, warm_up
from knapcache.errors import CorruptState, StoreError
from knapcache.model import Decision
from knapcache.policy import registry
from knapcache.store.base import Entry, EntryInfo, Store, expired

log = logging.getLogger("knapcache.cache")


DAMAGE = ("damaged", "quarantined", "failed_reads")
"""What stores count when entries are lost that were kept."""
MOST_TIMES = 1000
"""Requests for one key that are counted at once; what is asked for as often as that is kept anyway."""
AT_ONCE = 256
"""Keys that one change removes at most, where there are many."""


class AdmissionController:
    """Policy, ids and shadows of one store that this process owns."""

    def __init__(
        self,
        store: Store,
        policy: str,
        shadows: tuple[str, ...],
        ledger: Ledger,
        ids: int | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        self.store = store
        self.name = policy
        size = ids or table_size(store.capacity)
        self.policy = registry.find(policy).build(store.capacity, size)
        self.ids = Ids(self.policy)
        self.index = Index(size)
        self.quotas = Quotas(quotas or {}, self.policy, self.index)
        self.oracle_seconds = 0.0
        """Spent in decisions that asked the Oracle."""
        self._oracle_calls = self.policy.head["oracle_calls"]
        # As policy.arrive, without its checks of the argument: ids come from our own table.
        kernel = type(self.policy).arrive_kernel
        self._arrive = functools.partial(kernel, self.policy.head, self.policy.rows)
        self.shadows = Shadows(shadows, store.capacity, size)
        self.ledger = ledger
        self.arrived = self.settled = 0
        self.deciding = threading.Lock()
        self.applying = threading.Lock()
        self.expiring = threading.Lock()
        self._queue: deque[StoreChange] = deque()
        self._said = False
        for name in (policy, *(named(shadow)[0].name for shadow in shadows)):
            warm_up(name)

    def open(self, now: float) -> None:
        """Begin with what lies in the store: the policy's state, as far as it still holds, and then every entry.

        An answer that came after the last snapshot is settled as if it had just been paid for; one that the policy has
        no room for, or does not want, is removed, and so is one that has expired.
        """
        snapshot = self.store.load_snapshot()
        keys = unpack(self.name, self.policy, snapshot) if snapshot else None
        if keys:
            self.ids.load(keys)
        heads = {head.key: head for head in self.store.scan()}
        gone = [
            key for key, head in heads.items() if expired(head.expires, now) or head.size > self.store.max_entry_size
        ]
        for key in gone:
            del heads[key]
        for i in self.policy.residents:
            head = heads.get(self.ids.keys[i])
            if head is not None and head.size == self.policy.rows["entry_size"][i]:
                self._came(i, head)
                del heads[head.key]  # known
            else:
                self._forget(i)
        for head in sorted(heads.values(), key=lambda head: head.created):
            i = self._intern(head.key)
            self.policy.arrive(i)
            admit, evicted = self.policy.settle(i, head.size, head.cost)
            gone += [self.ids.keys[victim] for victim in evicted if victim != i]
            gone += [] if admit else [head.key]
            self._went(evicted)
            if admit:
                self._came(i, head)
        for tenant in self.quotas.limits:  # they may have been larger in a former life
            gone += [self.ids.keys[victim] for victim in self._over(tenant)]
        self._queue.extend(StoreChange(None, gone[k : k + AT_ONCE]) for k in range(0, len(gone), AT_ONCE))
        self.apply()

    # A request.

    def arrive(self, key: bytes) -> tuple[int, int]:
        """Count a request: its id, and the serial of the answer that should be there, or −1."""
        with self.deciding:
            i = self.ids.find(key)
            if i < 0:
                i = self._intern(key)
            self.arrived += 1
            serial = self.ids.serial[i] if self._arrive(i) else -1
        if self._queue:
            self.apply()
        return i, serial

    def get(self, key: bytes, i: int, serial: int) -> Entry | None:
        """The answer that should be there; forgotten where it is not."""
        entry = self.store.get(key)
        if entry is None:
            self.apply()
            entry = self.store.get(key)
        if entry is None:
            self.vanished(key, i, serial)
        return entry

    def vanished(self, key: bytes, i: int, serial: int) -> None:
        """The answer of that serial is not where it should be."""
        with self.deciding:
            if self.ids.holds(i, key) and self.ids.serial[i] == serial and self._forget(i):
                self._queue.append(StoreChange(None, [key]))
                self.ledger.count("vanished")
        self.apply()

    def served(self, key: bytes, size: int, cost: float) -> bool:
        """`arrive` and `seen` at once, for an answer that is in memory. False: the policy does not hold it."""
        with self.deciding:
            i = self.ids.find(key)
            if i < 0:
                return False
            self.arrived += 1
            held = bool(self._arrive(i))
            if held:
                self.shadows.see(i, size, cost)
        if self._queue:
            self.apply()
        return held

    def seen(self, key: bytes, i: int, size: int, cost: float) -> None:
        """A request was answered without a call: for the shadows."""
        with self.deciding:
            if self.ids.holds(i, key):
                self.shadows.see(i, size, cost)

    def touch(self, counts: Mapping[bytes, int]) -> int:
        """Requests that others answered, by key: the policy and the shadows count them. How many it knew of."""
        counted = 0
        for key, times in counts.items():
            with self.deciding:  # anew for each key: whoever asks now need not wait for all of them
                i = self.ids.find(key)
                if i < 0:  # a number that was given to another key since
                    continue
                for _ in range(min(times, MOST_TIMES)):
                    self.arrived += 1
                    counted += 1
                    if self._arrive(i):
                        self.shadows.see(
                            i, int(self.policy.rows["entry_size"][i]), float(self.index.records["cost"][i])
                        )
        return counted

    def settle(self, i: int, entry: Entry) -> bool:
        """An answer was paid for. Is it kept?"""
        with self.deciding:
            if not self.ids.holds(i, entry.key):  # the number went to another key while the call was under way
                i = self._intern(entry.key)
                self.policy.arrive(i)
            kept = self._decide(i, entry)
            self.settled += 1
            self.shadows.see(i, entry.size, entry.cost)
        self.apply()
        return kept

    def _decide(self, i: int, entry: Entry) -> bool:
        too_large = entry.size > self.store.max_entry_size
        if too_large or self.store.write_backlog_full or not self.quotas.fits(entry.tenant, entry.size):
            # The policy is not asked. But what lies there is older than what was just paid for. While a disk hangs such
            # evictions are all that is queued: no more of them than there are answers.
            if self._forget(i):
                self._queue.append(StoreChange(None, [entry.key]))
            if too_large:
                self.ledger.count("too_large")
            elif self.store.write_backlog_full:
                self.ledger.count("too_slow")
            else:
                self.ledger.count("over_quota")
            return False
        admit, evicted = self._settled(i, entry.size, entry.cost)
        self._went(evicted)
        if admit:
            self.ids.serial[i] += 1
            self._came(i, entry)
            if entry.tenant in self.quotas.limits:
                evicted = (*evicted, *self._over(entry.tenant, i))
        keys = [self.ids.keys[victim] for victim in evicted]
        if evicted:
            self.ledger.count("evictions", len(evicted))
        if admit or keys:
            self._queue.append(StoreChange(entry if admit else None, keys, i, self.ids.serial[i]))
        return admit

    # What is resident is known to the policy, and besides to the index and the quotas.

    def _came(self, i: int, kept: Entry | EntryInfo) -> None:
        self.index.note(i, kept)
        self.quotas.came(i, kept.tenant, kept.size)

    def _went(self, ids: Iterable[int]) -> None:
        for i in ids:
            self.quotas.went(i)

    def _forget(self, i: int) -> bool:
        self.quotas.went(i)
        return self.policy.forget(i)

    def _over(self, tenant: str, newcomer: int = -1) -> list[int]:
        """Those who go because their namespace has more than it may."""
        gone = []
        while (victim := self.quotas.next_to_go(tenant, newcomer)) >= 0:
            self._forget(victim)
            gone.append(victim)
        return gone

    def _settled(self, i: int, size: int, cost: float) -> Decision:
        """The policy's decision. Two looks at the clock: a decision takes a hundred times as long."""
        calls, start = self._oracle_calls.item(), time.perf_counter()
        decision = self.policy.settle(i, size, cost)
        if self._oracle_calls.item() != calls:
            self.oracle_seconds += time.perf_counter() - start
        return decision

    def _intern(self, key: bytes) -> int:
        i = self.ids.find(key)
        if i < 0:
            i, taken, gone = self.ids.intern(key)
            if taken >= 0:
                self.shadows.forget(taken)
                self.ledger.count("recycled")
            if gone is not None:
                self.quotas.went(i)
                self.ledger.count("evictions")
                self._queue.append(StoreChange(None, [gone]))
        return i

    # The store.

    def apply(self) -> None:
        """Empty the queue into the store. What was decided before the call is in the store after it."""
        with self.applying:
            self._drain()

    def _drain(self) -> None:
        while self._queue:
            change = self._queue.popleft()
            try:
                done = self.store.apply(change.put, change.evict, change.snapshot)
            except StoreError as error:  # closed, or no longer ours
                self._failed(change, error)
            else:
                done.add_done_callback(lambda done, change=change: self._done(change, done))  # type: ignore[misc]

    def _done(self, change: StoreChange, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._failed(change, error)

    def _failed(self, change: StoreChange, error: BaseException) -> None:
        """The store could not keep it: the policy must not count on it. The request was answered all the same."""
        change.error = error
        self.ledger.count("store_faults")
        if not self._said:
            self._said = True
            log.warning("the store cannot keep answers now, and requests go on without it: %s", error)
        if change.put is not None:
            with self.deciding:
                i = change.i
                if self.ids.holds(i, change.put.key) and self.ids.serial[i] == change.serial:
                    self._forget(i)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove answers from policy and store; StoreError when the store could not, yet."""
        with self.deciding:
            keys = list(keys)
            for key in keys:
                i = self.ids.find(key)
                if i >= 0:
                    self._forget(i)
                    self.shadows.forget(i)
            change = StoreChange(None, keys)
            self._queue.append(change)
        self.apply()
        self.store.flush()
        if change.error is not None:
            raise StoreError(f"{len(keys)} entries are hidden, and not yet removed: {change.error}")

    def expire(self) -> int:
        """Let go of what has expired."""
        gone = 0
        with self.expiring:  # the store has let go already, the policy hears of it key by key: not the time to check
            for key in self.store.expire():
                with self.deciding:
                    i = self.ids.find(key)
                    serial = self.ids.serial[i] if i >= 0 and self.policy.rows["resident"][i] else -1
                gone += 1
                if serial >= 0:
                    self.get(key, i, serial)
        return gone

    def state(self) -> State:
        """A copy of what the policy knows."""
        with self.deciding:
            return copied(self.policy, self.ids.keys)

    def keep_snapshot(self, snapshot: bytes) -> None:
        """Put the policy's state beside the entries."""
        with self.deciding:
            self._queue.append(StoreChange(None, (), snapshot=snapshot))
        self.apply()

    def kept(self, key: bytes | None = None) -> EntryTable:
        """A copy of what is known of all answers, or of one."""
        with self.deciding:
            resident = self.policy.rows["resident"]
            i = -1 if key is None else self.ids.find(key)
            if key is None:
                ids = np.flatnonzero(resident[: len(self.ids)])
            else:
                ids = np.array([i] if i >= 0 and resident[i] else [], np.int64)
            return self.index.kept(self.policy, self.ids.keys, ids)

    def residents(self) -> set[bytes]:
        """Keys of what the policy holds."""
        return {self.ids.keys[i] for i in self.policy.residents}

    def check(self) -> None:
        """Policy, ids, shadows and store agree."""
        with self.expiring, self.applying:
            for _ in range(1000):
                self._drain()
                self.store.flush()  # not under the other lock, which its callbacks take
                with self.deciding:
                    if not self._queue:
                        self._check()
                        return
        raise CorruptState("decisions come faster than the store takes them: check() when it is quieter")

    def _check(self) -> None:
        self.store.check()  # nothing is on its way to it now
        self.policy.check()
        self.shadows.check()
        if any(self.ids.find(key) != i for i, key in enumerate(self.ids.keys)):
            raise CorruptState("keys and ids differ")
        found = {head.key: head for head in self.store.scan()}
        heads = {key: head.size for key, head in found.items()}
        if any(self.store.counters().get(what) for what in DAMAGE):
            # What a disk has lost is noticed when it is asked for; here it is asked for all at once.
            for i in self.policy.residents:
                if self.ids.keys[i] not in heads:
                    self._forget(i)
        known = {self.ids.keys[i]: int(self.policy.rows["entry_size"][i]) for i in self.policy.residents}
        if heads != known:
            raise CorruptState(
                f"the policy holds {len(known)} answers of {sum(known.values())} bytes, "
                f"the store {len(heads)} of {sum(heads.values())}; {len(heads.items() ^ known.items())} differ"
            )
        self.index.check({self.ids.find(key): head for key, head in found.items()})
        self.quotas.check()
