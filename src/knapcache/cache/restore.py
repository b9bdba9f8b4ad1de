"""Save the state of a cache in its store, and start from a store.

Opening loads the snapshot: the policy's state, the keys of its ids, and the records of its entries. The store's change
log says which entries have changed since the snapshot, and only these are read. A million entries are open in three
seconds; reading all of them takes forty, because the answers lie between their heads on the disk.

Where that is not known, all entries are read: without a snapshot or with one that has no records, with a log that does
not reach back, or in a store without a log. Both go the same way. Reading all of them is the case in which all have
changed. At the end the number and the bytes of the entries must be those that the store counts.

    A change that was decided before the copy of the state is in it, or is in the log after its position.

The copy is made under the lock of decisions. While entries expire, the store has removed entries that the policy still
holds, so the copy waits for the end of that.

A snapshot has the costs that were paid, not those of `AdmissionController.reprice`: what set them may be off after a
restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

import numpy as np

from knapcache.cache.admission import AdmissionController
from knapcache.cache.apply_queue import BATCH_KEYS, StoreChange
from knapcache.cache.key_array import KeyArray
from knapcache.cache.snapshot import SavedState, copy_state, pack, unpack
from knapcache.errors import StoreError
from knapcache.store.base import EntryInfo, Store, Totals, expired, logged_store

log = logging.getLogger("knapcache.cache")

MANY = 20_000
"""Entries of a store from which on reading all of them takes seconds."""
PROGRESS_SECONDS = 5.0
"""Seconds between two lines in the log while they are read."""


def save(admission: AdmissionController) -> None:
    """Write a snapshot to the store, if it fits."""
    store = logged_store(admission.store)
    admission.store.flush()  # what is committed before the copy is not read again at the next opening
    position = b"" if store is None else store.position()
    # Only for its memory: requests wait for the second copy.
    space = copy_state(admission.policy, admission.ids.keys, admission.index, position)
    with admission.expiring, admission.deciding:
        position = b"" if store is None else store.position()
        state = copy_state(admission.policy, admission.ids.keys, admission.index, position, space)
        repriced = np.flatnonzero(admission.repriced[: len(state.rows)])
        costs = admission.index.records["cost"][repriced]
    if admission.policy.reprice_kernel is not None:
        # Their rank follows at the next request for them: to compute it here would take long.
        resident = state.rows["resident"][repriced]
        repriced, costs = repriced[resident], costs[resident]
        state.rows["paid"][repriced] = state.rows["misses"][repriced] * costs
    snapshot = pack(admission.policy_name, admission.policy, state, admission.store.max_snapshot_size)
    if snapshot is None:
        return
    with admission.deciding:
        change = StoreChange(snapshot=snapshot)
        admission.queue.append(change)
    admission.drain()
    if store is not None:
        admission.store.flush()
        if change.error is None:
            store.drop_changes(position)


def open_store(admission: AdmissionController, now: float) -> None:
    """Start from the store: load the snapshot as far as it matches, then feed the policy every other entry.

    An entry that is newer than the snapshot is settled as if it had just been paid for. Entries that the policy rejects
    or that have expired are evicted.
    """
    snapshot = admission.store.load_snapshot()
    saved = unpack(admission.policy_name, admission.policy, snapshot) if snapshot else None
    del snapshot
    others = None
    if saved is not None:
        admission.ids.load(saved.keys)
        others = _read_changed(admission, saved)
    if others is None:
        admission.read_all = True
        residents = np.flatnonzero(admission.policy.rows["resident"]).tolist()
        others = _match(admission, residents, _read_all(admission.store))
    _settle(admission, others, now)


def _read_all(store: Store) -> dict[bytes, EntryInfo]:
    """Return the metadata of all entries. Log the progress if they are many."""
    try:
        return _scanned(store)
    except StoreError:
        store.flush()  # a store that finds itself damaged is replaced by an empty one
        return _scanned(store)


def _scanned(store: Store) -> dict[bytes, EntryInfo]:
    entries, logged, found = store.totals().entries, time.monotonic(), dict[bytes, EntryInfo]()
    for info in store.scan():
        found[info.key] = info
        if entries > MANY and time.monotonic() - logged >= PROGRESS_SECONDS:
            logged = time.monotonic()
            log.info("reading entries: %d %%", min(99, 100 * len(found) // entries))
    return found


def _read_changed(admission: AdmissionController, saved: SavedState) -> list[EntryInfo] | None:
    """Bring the snapshot up to date with the change log. Return the entries that the policy does not hold.

    None: all entries have to be read.
    """
    store, policy = logged_store(admission.store), admission.policy
    if store is None or saved.entries is None:
        return None
    residents = np.flatnonzero(policy.rows["resident"][: len(saved.keys)])
    infos = store.infos_since(saved.position)
    if infos is None or not admission.index.load(residents, saved.entries):
        return None
    admission.quotas.count_all()
    ids = admission.ids.find_many(KeyArray.of(infos))
    ids = ids[ids >= 0]
    others = _match(admission, ids[policy.rows["resident"][ids]].tolist(), infos)
    entries = int(np.count_nonzero(policy.rows["resident"])) + len(others)
    found = Totals(entries, policy.used + sum(info.size for info in others))
    if found != store.totals():
        log.warning("the saved state does not match the store (%s, %s): all entries are read", found, store.totals())
        return None
    return others


def _match(
    admission: AdmissionController, ids: Iterable[int], infos: Mapping[bytes, EntryInfo | None]
) -> list[EntryInfo]:
    """Compare resident ids with the entries in the store. Return the entries that the policy does not hold.

    The policy forgets an id whose entry is gone or has another size.
    """
    held = set[bytes]()
    for i in ids:
        info = infos.get(admission.ids.key(i))
        if info is not None and info.size == admission.policy.rows["entry_size"][i]:
            admission.track(i, info)
            held.add(info.key)
        else:
            admission.forget_id(i)
    return [info for info in infos.values() if info is not None and info.key not in held]


def _settle(admission: AdmissionController, others: list[EntryInfo], now: float) -> None:
    """Evict what has expired or is too large, and let the policy decide about the entries that it does not hold."""
    policy, limit, evict = admission.policy, admission.store.max_entry_size, list[bytes]()

    def drop(entry: EntryInfo | int) -> None:
        admission.history.note_dropped(entry, now)
        evict.append(admission.ids.key(entry) if isinstance(entry, int) else entry.key)

    residents = np.flatnonzero(policy.rows["resident"])
    unfit = (admission.index.records["expires"][residents] <= now) | (policy.rows["entry_size"][residents] > limit)
    for i in residents[unfit].tolist():
        drop(i)
        admission.forget_id(i)
    for info in sorted(others, key=lambda info: info.created):
        if expired(info.expires, now) or info.size > limit:
            drop(info)
            continue
        i = admission.intern(info.key)
        policy.arrive(i)
        admit, evicted = policy.settle(i, info.size, info.cost)
        for victim in evicted:
            if victim != i:
                drop(victim)
        if not admit:
            drop(info)
        admission.untrack(evicted)
        if admit:
            admission.track(i, info)
    for tenant in admission.quotas.limits:  # a quota may be smaller than before the restart
        for victim in admission.forget_over_quota(tenant):
            drop(victim)
    for k in range(0, len(evict), BATCH_KEYS):
        admission.queue.append(StoreChange(evict=evict[k : k + BATCH_KEYS]))
    admission.shadows.seed()
    admission.drain()
