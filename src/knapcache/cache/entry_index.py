"""Metadata of every resident entry, by id: one record of 60 bytes each.

    size and residence    are the policy's own
    everything else       (names, tags, cost, times, the system prompt's digest) is recorded when the entry is admitted

It lets `entries` and the quotas work without reading the disk. A record outlives its entry; it is valid only while the
policy holds the id. Rejected: the store's metadata as objects, 300 bytes an entry.

The controller's lock is taken for PART ids at a time where all entries are read: requests wait for it.

Names of models and tenants, and sets of tags, are numbered. When many numbered names are in no record any more, names
are renumbered.

    Invariant: what is recorded of a resident id is that of the entry in the store.
"""

from __future__ import annotations

import math
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.cache.ids import IdTable
from knapcache.cache.key_array import KeyArray
from knapcache.errors import CorruptState
from knapcache.kernel import Records
from knapcache.policy.base import Policy
from knapcache.store.base import Entry, EntryInfo

RECORD = np.dtype(
    [
        ("created", "f8"),
        ("expires", "f8"),  # ∞: never
        ("cost", "f8"),
        ("usd", "f8"),  # NaN: unknown
        ("seconds", "f8"),
        ("model", "i4"),
        ("tenant", "i4"),
        ("tags", "i4"),  # of the set
        ("system", "u8"),  # 0: no system prompt, or not known
    ]
)
_RECORD = struct.Struct("=5d3iQ")
"""The same, to write one: an assignment to an item of the array takes three times as long."""
IMPORTED = "imported"
"""Field of an imported entry's metadata: how many requests it starts with. Another cache has answered them."""
PART = 1 << 13
"""Ids that are read at a time, in a millisecond."""
PAUSE = 0.0002
"""Seconds between two parts."""
MIN_NAMES = 1024
"""Names that are numbered before any are renumbered."""

IdArray = npt.NDArray[np.int64]


class NameTable:
    """Names by number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._limit = MIN_NAMES
        self.renumbered = 0
        """How often names were renumbered."""

    def find(self, name: str) -> int:
        """Return the number of a name, or −1."""
        return self._numbers.get(name, -1)

    def number(self, name: str, used: npt.NDArray[np.int32]) -> int:
        """Return the number of a name, a new one if it has none.

        `used` holds the numbers in all records. It is updated in place when names are renumbered.
        """
        found = self._numbers.get(name)
        if found is None:
            if len(self.names) >= self._limit:
                self._renumber(used)
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found

    def load(self, names: list[str]) -> None:
        """Replace all names."""
        self.names = names
        self._numbers = {name: k for k, name in enumerate(names)}
        self._limit = max(MIN_NAMES, 2 * len(names))

    def _renumber(self, used: npt.NDArray[np.int32]) -> None:
        old, new = np.unique(used, return_inverse=True)
        used[:] = new
        self.load([self.names[k] for k in old.tolist()])
        self.renumbered += 1


class EntryTable(NamedTuple):
    """A copy of the metadata of some entries, in columns. Reading it needs no lock."""

    keys: KeyArray
    sizes: npt.NDArray[np.int64]
    requests: npt.NDArray[np.float64]
    records: Records
    models: list[str]
    tenants: list[str]
    tag_sets: list[str]
    """The tags of an entry, sorted, with commas in between."""


class SavedIndex(NamedTuple):
    """Records, and the names of models, tenants and tag sets that they number."""

    records: Records
    names: tuple[list[str], ...]


class EntryIndex:
    """Records by id. The caller holds the controller's lock."""

    def __init__(self, ids: int) -> None:
        self.records: Records = np.zeros(ids, RECORD)
        self._bytes = memoryview(self.records.view(np.uint8))  # type: ignore[arg-type]
        self.models, self.tenants, self.tag_sets = self._tables = NameTable(), NameTable(), NameTable()
        self._written = 0

    def record(self, i: int, entry: Entry | EntryInfo) -> None:
        """Write the record of id i."""
        if i >= self._written:
            self._written = i + 1
        _, tenant, model, _, cost, seconds, created, expires, meta = entry[:9]
        joined, system = join_tags(entry), meta.get("system")
        numbers = self.models.find(model), self.tenants.find(tenant), self.tag_sets.find(joined)
        known = -1 not in numbers
        _RECORD.pack_into(
            self._bytes,
            _RECORD.size * i,
            created,
            math.inf if expires is None else expires,
            cost,
            meta.get("usd", math.nan),
            seconds,
            *(numbers if known else (0, 0, 0)),
            int(system, 16) if system else 0,
        )
        if known:
            return
        records = self.records[: self._written]
        # One after the other: a new number must be in its record before the next call, which may renumber.
        records["model"][i] = self.models.number(model, records["model"])
        records["tenant"][i] = self.tenants.number(tenant, records["tenant"])
        records["tags"][i] = self.tag_sets.number(joined, records["tags"])

    def load(self, ids: IdArray, saved: SavedIndex) -> bool:
        """Write the records of some ids as they were saved. Return False, and write none, if they are not valid."""
        records = saved.records
        limits = [("created", math.inf), ("cost", math.inf), ("seconds", math.inf)]
        limits += [(field, len(names)) for field, names in zip(("model", "tenant", "tags"), saved.names, strict=True)]
        valid = len(records) == len(ids) and bool((records["expires"] >= 0.0).all())
        valid = valid and all(_within(records[field], limit) for field, limit in limits)
        if valid:
            self.records[ids] = records
            self._written = int(ids.max(initial=-1)) + 1
            for table, names in zip(self._tables, saved.names, strict=True):
                table.load(list(names))
        return valid

    def copy(self, ids: int, space: SavedIndex | None = None) -> SavedIndex:
        """Return a copy of the records of the first ids. space: a former copy, which is overwritten."""
        records = copied(self.records[:ids], space and space.records)
        return SavedIndex(records, tuple(list(t.names) for t in self._tables))

    def tenant(self, i: int) -> str:
        """Return the tenant of id i."""
        return self.tenants.names[int(self.records["tenant"][i])]

    def size_by_tenant(self, policy: Policy, lock: AbstractContextManager[Any]) -> dict[str, int]:
        """Return the bytes of each tenant's resident entries. The caller does not hold the lock."""
        found = Counter[str]()
        for ids in self._resident_parts(policy, lock):
            sizes = np.bincount(self.records["tenant"][ids], policy.rows["entry_size"][ids])
            found.update({self.tenants.names[k]: int(sizes[k]) for k in np.flatnonzero(sizes).tolist()})
        return dict(found)

    def all_entries(self, policy: Policy, ids: IdTable, lock: AbstractContextManager[Any]) -> EntryTable:
        """Return a copy of the metadata of all resident ids. The caller does not hold the lock."""
        renumbered = self._renumbered
        parts = [self.table(policy, ids.keys, part) for part in self._resident_parts(policy, lock)]
        with lock:
            if renumbered != self._renumbered:  # the numbers in the first parts are outdated
                parts = [self.table(policy, ids.keys, np.flatnonzero(policy.rows["resident"][: self._written]))]
        return EntryTable(
            keys=KeyArray(np.concatenate([part.keys.rows for part in parts])),
            sizes=np.concatenate([part.sizes for part in parts]),
            requests=np.concatenate([part.requests for part in parts]),
            records=np.concatenate([part.records for part in parts]),
            models=parts[-1].models,
            tenants=parts[-1].tenants,
            tag_sets=parts[-1].tag_sets,
        )

    def expired(
        self, policy: Policy, ids: IdTable, lock: AbstractContextManager[Any], now: float, at_most: int | None
    ) -> tuple[bytes, ...]:
        """Return the keys of entries that have expired. The caller does not hold the lock.

        That takes 5 ms for a million entries. A store in memory would read a million records, in half a second.
        """
        with lock:
            late = np.flatnonzero(self.records["expires"][: self._written] <= now)
            late = late[policy.rows["resident"][late]]
            return tuple(ids.key(i) for i in late[:at_most].tolist())

    @property
    def _renumbered(self) -> int:
        return self.models.renumbered + self.tenants.renumbered + self.tag_sets.renumbered

    def _resident_parts(self, policy: Policy, lock: AbstractContextManager[Any]) -> Iterator[IdArray]:
        """Yield the resident ids in parts, at least one of them, under the lock, which is released in between."""
        for first in range(0, max(1, self._written), PART):
            if first:
                time.sleep(PAUSE)  # otherwise this thread takes the lock again before another one wakes up
            with lock:
                yield first + np.flatnonzero(policy.rows["resident"][: self._written][first : first + PART])

    def table(self, policy: Policy, keys: KeyArray, ids: IdArray) -> EntryTable:
        """Return a copy of the metadata of some ids."""
        return EntryTable(
            keys=KeyArray(keys.rows.take(ids, axis=0)),
            sizes=policy.rows["entry_size"][ids],
            requests=request_counts(policy, ids),
            records=self.records.take(ids),  # a tenth of the time of records[ids]
            models=list(self.models.names),
            tenants=list(self.tenants.names),
            tag_sets=list(self.tag_sets.names),
        )

    def check(self, infos: dict[int, EntryInfo]) -> None:
        """Raise CorruptState unless the records are those of the entries in the store."""
        for i, info in infos.items():
            record = self.records[i]
            names = (self.tenant(i), self.models.names[record["model"]], self.tag_sets.names[record["tags"]])
            numbers = (record["created"], record["cost"], record["seconds"], record["system"])
            if (*names, *numbers) != (
                info.tenant, info.model, join_tags(info),
                info.created, info.cost, info.seconds, int(info.meta.get("system") or "0", 16),
            ):  # fmt: skip
                raise CorruptState(f"the record of id {i} differs from the entry in the store")


def _within(numbers: npt.NDArray[Any], limit: float) -> bool:
    """Return whether all numbers are at least 0 and below a limit. NaN is not."""
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < limit)


def copied(rows: Records, space: Records | None) -> Records:
    """Return a copy of rows, in the memory of `space` if they fit. To touch new memory takes longer than to copy."""
    if space is None or len(space) < len(rows):
        return rows.copy()
    copy = space[: len(rows)]
    copy.view(np.uint8)[:] = rows.view(np.uint8)
    return copy


def join_tags(entry: Entry | EntryInfo) -> str:
    """Return the tags of an entry with commas in between. No tag has one."""
    return ",".join(entry.meta["tags"]) if "tags" in entry.meta else ""


def entry_table(infos: list[EntryInfo], requests: dict[bytes, float]) -> EntryTable:
    """Return the table of entries read from a store, with request counts by key; 1 for a key that has none."""
    index = EntryIndex(max(1, len(infos)))
    for i, info in enumerate(infos):
        index.record(i, info)
    return EntryTable(
        keys=KeyArray.of(info.key for info in infos),
        sizes=np.array([info.size for info in infos], np.int64),
        requests=np.array([max(1.0, requests.get(info.key, 1.0)) for info in infos]),
        records=index.records[: len(infos)],
        models=index.models.names,
        tenants=index.tenants.names,
        tag_sets=index.tag_sets.names,
    )


def request_counts(policy: Policy, ids: IdArray) -> npt.NDArray[np.float64]:
    """Return the requests of some ids as the policy counts them. At least 1: an entry was requested at least once."""
    return np.asarray(np.maximum(policy.request_counts(ids), 1.0))


def request_count(policy: Policy, i: int) -> float:
    """Return `request_counts` of one id."""
    return max(policy.request_count(i), 1.0)
