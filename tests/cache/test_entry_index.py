"""All entries are read in parts, and the lock is released in between."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from knapcache.cache import entry_index
from knapcache.cache.entry_index import EntryIndex, EntryTable
from knapcache.cache.ids import IdTable
from knapcache.policy import registry
from knapcache.store.base import EntryInfo

COUNT = 50


class Lock:
    """Counts how often it is taken, and calls a function each time it is released."""

    def __init__(self) -> None:
        self.taken = 0
        self.on_release: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self.on_release()


class IndexedEntries:
    """Resident entries of a policy, with their records. Every third id is not resident."""

    def __init__(self) -> None:
        self.policy = registry.find("lru").build(10**6, 2 * COUNT)
        self.policy.compiled = False
        self.ids, self.index, self.lock = IdTable(self.policy), EntryIndex(2 * COUNT), Lock()
        self.tenants = dict[bytes, str]()
        for k in range(COUNT):
            self.add(k, f"tenant {k % 4}")
            if k % 3 == 0:
                self.policy.forget(k)
                del self.tenants[key_of(k)]

    def add(self, k: int, tenant: str) -> None:
        i, _, _ = self.ids.intern(key_of(k))
        self.policy.arrive(i)
        self.policy.settle(i, 10 + k, 1.0)
        numbers = {"size": 10 + k, "cost": 1.0, "seconds": 1.0, "created": float(k), "expires": None}
        self.index.record(i, EntryInfo(key=key_of(k), tenant=tenant, model="m", meta={}, **numbers))  # type: ignore[arg-type]
        self.tenants[key_of(k)] = tenant

    def read(self) -> EntryTable:
        return self.index.all_entries(self.policy, self.ids, self.lock)


def key_of(k: int) -> bytes:
    return bytes([k]) * 32


def tenants_of(table: EntryTable) -> dict[bytes, str]:
    return {key: table.tenants[k] for key, k in zip(table.keys, table.records["tenant"].tolist(), strict=True)}


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> IndexedEntries:
    monkeypatch.setattr(entry_index, "PART", 16)
    monkeypatch.setattr(entry_index, "MIN_NAMES", 8)
    return IndexedEntries()


def test_parts_are_one_table(entries: IndexedEntries) -> None:
    table = entries.read()
    assert tenants_of(table) == entries.tenants
    assert entries.lock.taken == 4 + 1
    sizes = {f"tenant {n}": sum(10 + k for k in range(COUNT) if k % 3 and k % 4 == n) for n in range(4)}
    assert entries.index.size_by_tenant(entries.policy, entries.lock) == sizes
    assert table.sizes.tolist() == [10 + k for k in range(COUNT) if k % 3]
    empty = EntryIndex(5)
    assert len(empty.all_entries(entries.policy, entries.ids, entries.lock).keys) == 0
    assert empty.size_by_tenant(entries.policy, entries.lock) == {}


def test_names_that_are_renumbered_between_two_parts(entries: IndexedEntries) -> None:
    """Many new names after the first part: numbers of old names change."""

    def add_names() -> None:
        entries.lock.on_release = lambda: None
        for k in range(COUNT, COUNT + 30):
            entries.add(k, f"new {k}")

    before = entries.index.tenants.renumbered
    entries.lock.on_release = add_names
    table = entries.read()
    assert entries.index.tenants.renumbered > before
    assert tenants_of(table) == entries.tenants
    assert len(table.keys) == len(entries.tenants)
