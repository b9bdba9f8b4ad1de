"""Room that a namespace may have at most: Σ sizes of its answers ≤ its quota, after every decision.

The policy decides first, for all of them and without a thought of quotas. If it lets an answer in, and its namespace
then has more than it may, others of that namespace go, of the least density first (listing.py), the older of two alike,
in the same change as the newcomer comes. What such a namespace pushes out of other namespaces it leaves free the moment
its own answers go, so that the next one does not push. An answer larger than the quota is not kept.

Looking at every answer of a namespace takes long where there are many, so those to go next are noted: the last of every
SHARE, and AHEAD of them at most, for whoever comes later may be worth less. When their turn comes they are looked at
again: who was asked for since is passed over until the next look.

    Invariant: used[t] = Σ room of resident ids of t ≤ limits[t], for every t with a limit, after every decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.cache.entry_index import Index, requests_at
from knapcache.errors import CorruptState, InvalidInput
from knapcache.policy.base import Policy

AHEAD, SHARE = 64, 16


def checked_quotas(quotas: Mapping[str, Any]) -> dict[str, int]:
    """Namespaces and bytes, or InvalidInput."""
    if not isinstance(quotas, Mapping):
        raise InvalidInput(f"quotas must be a mapping of namespaces to bytes, not {type(quotas).__name__}")
    for tenant, room in quotas.items():
        if not isinstance(tenant, str) or isinstance(room, bool) or not isinstance(room, int) or room < 0:
            raise InvalidInput(f"a quota is a number of bytes, of a namespace, not {room!r} of {tenant!r}")
    return dict(quotas)


class Quotas:
    """Who has how much. The caller's lock is around every call."""

    def __init__(self, limits: Mapping[str, int], policy: Policy, index: Index) -> None:
        self.limits = dict(limits)
        self._policy, self._index = policy, index
        self._held: dict[str, dict[int, int]] = {tenant: {} for tenant in self.limits}  # id → room
        self._used = dict.fromkeys(self.limits, 0)
        self._whose: dict[int, str] = {}
        self._next: dict[str, deque[tuple[int, float]]] = {tenant: deque() for tenant in self.limits}

    def fits(self, tenant: str, size: int) -> bool:
        """Could an answer be kept at all?"""
        return size <= self.limits.get(tenant, size)

    def came(self, i: int, tenant: str, size: int) -> None:
        """The answer of id i is resident now."""
        self.went(i)
        if tenant in self.limits:
            self._held[tenant][i] = size
            self._used[tenant] += size
            self._whose[i] = tenant

    def went(self, i: int) -> None:
        """The answer of id i is resident no longer, or was not."""
        tenant = self._whose.pop(i, None) if self._whose else None
        if tenant is not None:
            self._used[tenant] -= self._held[tenant].pop(i)

    def next_to_go(self, tenant: str, newcomer: int = -1) -> int:
        """Who has to go for the quota to hold; −1: nobody."""
        if self._used.get(tenant, 0) <= self.limits.get(tenant, 0):
            return -1
        held, ahead = self._held[tenant], self._next[tenant]
        while True:
            if not ahead:
                ahead.extend(self._least(tenant, newcomer))
            i, requests = ahead.popleft()
            # Requests fade, and one more request is worth one: half of one lies between.
            if i in held and i != newcomer and requests_at(self._policy, np.array([i]))[0] < requests + 0.5:
                return i

    def _least(self, tenant: str, newcomer: int) -> list[tuple[int, float]]:
        held = self._held[tenant]
        ids = np.fromiter(held, np.int64, len(held))
        ids = ids[ids != newcomer]
        requests = requests_at(self._policy, ids)
        density = requests * self._index.records["cost"][ids] / self._policy.rows["entry_size"][ids]
        few = min(AHEAD, 1 + len(ids) // SHARE)
        least = np.argpartition(density, few - 1)[:few]
        least = least[np.lexsort((self._index.records["created"][ids[least]], density[least]))]
        return list(zip(ids[least].tolist(), requests[least].tolist(), strict=True))

    def _of(self, tenant: str) -> npt.NDArray[np.int64]:
        """Resident ids of a namespace."""
        number, records = self._index.tenants.find(tenant), self._index.records
        return np.flatnonzero(self._policy.rows["resident"][: len(records)] & (records["tenant"] == number))

    def check(self) -> None:
        """Count anew."""
        for tenant, limit in self.limits.items():
            derived = int(self._policy.rows["entry_size"][self._of(tenant)].sum())
            if derived != self._used[tenant]:
                raise CorruptState(f"a namespace has {derived} bytes, and {self._used[tenant]} by its quota's books")
            if derived > limit:
                raise CorruptState(f"a namespace has {derived} bytes, above its quota of {limit}")
