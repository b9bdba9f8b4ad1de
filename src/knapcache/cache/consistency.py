"""The check that policy, ids, shadows, index, quotas and store of a controller agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knapcache.errors import CorruptState

if TYPE_CHECKING:
    from knapcache.cache.admission import AdmissionController

LOSS_COUNTERS = ("damaged", "quarantined", "failed_reads")
"""Counters of stores that say that entries were lost."""


def check_consistency(admission: AdmissionController) -> None:
    """Raise CorruptState unless they agree. The caller holds the controller's locks, and its queue is empty."""
    store, policy, ids = admission.store, admission.policy, admission.ids
    store.check()
    policy.check()
    admission.shadows.check()
    admission.history.check()
    if any(ids.find(key) != i for i, key in enumerate(ids.keys)):
        raise CorruptState("keys and ids differ")
    infos = {info.key: info for info in store.scan()}
    stored = {key: info.size for key, info in infos.items()}
    if any(store.counters().get(counter) for counter in LOSS_COUNTERS):
        # The policy forgets what a disk has lost when it is requested; here all of it at once.
        for i in policy.residents:
            if ids.key(i) not in stored:
                admission.forget_id(i)
    resident = {ids.key(i): int(policy.rows["entry_size"][i]) for i in policy.residents}
    if stored != resident:
        raise CorruptState(
            f"the policy holds {len(resident)} entries of {sum(resident.values())} bytes, "
            f"the store {len(stored)} of {sum(stored.values())}; {len(stored.items() ^ resident.items())} differ"
        )
    admission.index.check({ids.find(key): info for key, info in infos.items()})
    admission.quotas.check()
