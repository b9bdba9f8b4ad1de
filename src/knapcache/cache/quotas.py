"""Quotas: the bytes that the entries of a namespace may take.

The policy decides first, without quotas. If it admits an entry and the namespace is then over its quota, other entries
of that namespace are evicted in the same change: lowest density first (entries.py), the older of two equals. A
namespace may evict entries of others this way, but what it gives back stays free, so its next entry evicts none. An
entry larger than the quota is not admitted.

Ranking all entries of a namespace is slow where there are many, so the next victims are ranked ahead: one in SHARE
of its entries, at most AHEAD of them, because an entry that comes later may be worth less. Each is checked again on its
turn: one that was requested since is skipped until the next ranking.

    Invariant: used[t] = Σ size of resident ids of t ≤ limits[t], for every t with a limit, after every decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from knapcache.cache.entry_index import EntryIndex, request_count, request_counts
from knapcache.errors import CorruptState, InvalidInput
from knapcache.policy.base import Policy

AHEAD, SHARE = 64, 16


def checked_quotas(quotas: Mapping[str, Any]) -> dict[str, int]:
    """Return bytes by namespace, or raise InvalidInput."""
    if not isinstance(quotas, Mapping):
        raise InvalidInput(f"quotas must be a mapping of namespaces to bytes, not {type(quotas).__name__}")
    for tenant, limit in quotas.items():
        if not isinstance(tenant, str) or isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InvalidInput(f"quotas must map a namespace to a number of bytes, not {tenant!r} to {limit!r}")
    return dict(quotas)


class Quotas:
    """Bytes used by each namespace that has a quota. The caller holds the controller's lock."""

    def __init__(self, limits: Mapping[str, int], policy: Policy, index: EntryIndex) -> None:
        self.limits = dict(limits)
        self._policy, self._index = policy, index
        self._names = list(self.limits)
        self._numbers = {tenant: k for k, tenant in enumerate(self._names, 1)}
        self._used = dict.fromkeys(self.limits, 0)
        ids = policy.ids if self.limits else 0
        self._tenants = np.zeros(ids, np.int32)
        """The number of the namespace that an id is counted for; 0: it is not counted."""
        self._sizes = np.zeros(ids, np.int64)
        """Counted bytes by id."""
        self._victims: dict[str, deque[tuple[int, float]]] = {tenant: deque() for tenant in self.limits}

    def fits(self, tenant: str, size: int) -> bool:
        """Return whether an entry is within the quota by itself."""
        return size <= self.limits.get(tenant, size)

    def add(self, i: int, tenant: str, size: int) -> None:
        """Count the entry of id i, which became resident."""
        if not self.limits:
            return
        self.remove(i)
        if tenant in self.limits:
            self._sizes[i] = size
            self._used[tenant] += size
            self._tenants[i] = self._numbers[tenant]

    def count_all(self) -> None:
        """Count all resident entries, by their records."""
        for tenant, number in self._numbers.items():
            ids = self._residents(tenant)
            sizes = self._policy.rows["entry_size"][ids]
            self._sizes[ids], self._tenants[ids], self._used[tenant] = sizes, number, int(sizes.sum())

    def remove(self, i: int) -> None:
        """Stop counting the entry of id i, if it was counted."""
        if self.limits and (number := self._tenants[i]):
            self._used[self._names[number - 1]] -= int(self._sizes[i])
            self._tenants[i] = 0

    def next_victim(self, tenant: str, newcomer: int) -> int:
        """Return the id to evict so that the quota holds; −1 when it holds."""
        if self._used.get(tenant, 0) <= self.limits.get(tenant, 0):
            return -1
        number, victims = self._numbers[tenant], self._victims[tenant]
        while True:
            if not victims:
                victims.extend(self._ranked(tenant, newcomer))
            i, requests = victims.popleft()
            counted = self._tenants[i] == number and i != newcomer
            # A rise of less than half is decay noise, not a request.
            if counted and request_count(self._policy, i) < requests + 0.5:
                return i

    def _ranked(self, tenant: str, newcomer: int) -> list[tuple[int, float]]:
        """Return the ids of the lowest density of a namespace, with their request counts."""
        ids = np.flatnonzero(self._tenants == self._numbers[tenant])
        ids = ids[ids != newcomer]
        requests = request_counts(self._policy, ids)
        density = requests * self._index.records["cost"][ids] / self._policy.rows["entry_size"][ids]
        few = min(AHEAD, 1 + len(ids) // SHARE)
        created = self._index.records["created"][ids]
        highest = np.partition(density, few - 1)[few - 1]
        below, equal = np.flatnonzero(density < highest), np.flatnonzero(density == highest)
        oldest = equal[np.argpartition(created[equal], few - len(below) - 1)[: few - len(below)]]
        least = np.concatenate((below, oldest))
        least = least[np.lexsort((created[least], density[least]))]
        return list(zip(ids[least].tolist(), requests[least].tolist(), strict=True))

    def _residents(self, tenant: str) -> npt.NDArray[np.int64]:
        number, records = self._index.tenants.find(tenant), self._index.records
        return np.flatnonzero(self._policy.rows["resident"][: len(records)] & (records["tenant"] == number))

    def check(self) -> None:
        """Raise CorruptState unless the sums are right and within the quotas."""
        for tenant, limit in self.limits.items():
            derived = int(self._policy.rows["entry_size"][self._residents(tenant)].sum())
            if derived != self._used[tenant]:
                raise CorruptState(
                    f"the entries of a namespace take {derived} bytes; counted were {self._used[tenant]}"
                )
            if derived > limit:
                raise CorruptState(f"the entries of a namespace take {derived} bytes, above its quota of {limit}")
