"""The check that a policy holds exactly the entries of its store."""

from __future__ import annotations

from collections.abc import Callable

from knapcache.cache.ids import IdTable
from knapcache.errors import CorruptState
from knapcache.policy.base import Policy
from knapcache.store.base import EntryInfo, Store

LOSS_COUNTERS = ("damaged", "quarantined", "failed_reads")
"""Counters of stores that say that entries were lost."""


def check_residents(store: Store, policy: Policy, ids: IdTable, drop: Callable[[int], object]) -> dict[int, EntryInfo]:
    """Return the metadata of all entries by id. Raise CorruptState unless they are those that the policy holds.

    drop   lets the policy forget an id
    """
    if any(ids.find(key) != i for i, key in enumerate(ids.keys)):
        raise CorruptState("keys and ids differ")
    infos = {info.key: info for info in store.scan()}
    stored = {key: info.size for key, info in infos.items()}
    if any(store.counters().get(counter) for counter in LOSS_COUNTERS):
        # The policy forgets what a disk has lost when it is requested; here all of it at once.
        for i in policy.residents:
            if ids.key(i) not in stored:
                drop(i)
    resident = {ids.key(i): int(policy.rows["entry_size"][i]) for i in policy.residents}
    if stored != resident:
        raise CorruptState(
            f"the policy holds {len(resident)} entries of {sum(resident.values())} bytes, "
            f"the store {len(stored)} of {sum(stored.values())}; {len(stored.items() ^ resident.items())} differ"
        )
    return {ids.find(key): info for key, info in infos.items()}
