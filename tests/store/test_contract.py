"""Every store passes the contract's checks, and the checks detect stores that break it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from knapcache.errors import InvalidInput
from knapcache.store.base import Clock, Entry, Store
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from knapcache.testing import check_store

SIZE_LIMIT = 2 << 20


@pytest.fixture(params=["memory", "sqlite", "sqlite-full", "sqlite-without-memory-tier", "sqlite-encrypted"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Clock], Store]:
    numbers = itertools.count()

    def make(clock: Clock) -> Store:
        if request.param == "memory":
            return MemoryStore(SIZE_LIMIT, clock=clock)
        path = tmp_path / f"{next(numbers)}.db"
        synchronous = "full" if request.param == "sqlite-full" else "normal"
        memory_tier = 0 if request.param == "sqlite-without-memory-tier" else None
        keys = (b"1" * 32, b"2" * 32) if request.param == "sqlite-encrypted" else ()
        return SqliteStore(
            path,
            SIZE_LIMIT,
            SqliteOptions(clock=clock, synchronous=synchronous, memory_tier=memory_tier, encryption_keys=keys),
        )

    return make


def test_the_contract(build: Callable[[Clock], Store]) -> None:
    check_store(build)


class EvictsOnlyWithPut(MemoryStore):
    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        return super().apply(put, evict if put else (), snapshot)


class ServesExpired(MemoryStore):
    def get(self, key: bytes) -> Entry | None:
        return self.peek(key) or super().get(key)


class MiscountsSize(MemoryStore):
    def _remove(self, keys: list[bytes]) -> None:
        size = self._size
        super()._remove(keys)
        self._size = size


class NowaitFindsNothing(MemoryStore):
    def get_nowait(self, _key: bytes) -> Entry | None:
        return None


class DropsHandedOver(MemoryStore):
    def hand_over(self, _entry: Entry, /) -> None:
        pass


class ReaderCopies(MemoryStore):
    def reader(self) -> MemoryStore:
        return MemoryStore(self.size_limit)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (EvictsOnlyWithPut, "check_atomic_change"),
        (ServesExpired, "check_expiry"),
        (MiscountsSize, "check_replace"),
        (NowaitFindsNothing, "check_get_nowait"),
        (DropsHandedOver, "check_hand_over"),
        (ReaderCopies, "check_roles"),
    ],
)
def test_the_checks_detect_a_broken_store_in_memory(broken: type[MemoryStore], check: str) -> None:
    with pytest.raises(AssertionError, match=check):
        check_store(lambda clock: broken(SIZE_LIMIT, clock=clock))


class ClaimsOwnership(SqliteStore):
    def own(self) -> bool:
        return True

    def reader(self) -> SqliteStore:
        return ClaimsOwnership(self.path, self.size_limit, self._options, own=False)


class CollectsTwice(SqliteStore):
    def collect(self) -> Iterator[Entry]:
        entries = list(super().collect())
        for entry in entries:
            self.hand_over(entry)
        return iter(entries)


class TakesCountsTwice(SqliteStore):
    def take_counts(self) -> dict[bytes, int]:
        counts = dict(super().take_counts())
        if counts:
            self.put_counts(counts)
        return counts


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (ClaimsOwnership, "check_roles: two owners"),
        (CollectsTwice, "check_hand_over: collected twice"),
        (TakesCountsTwice, "check_hand_over: took counts twice"),
    ],
)
def test_the_checks_detect_a_broken_shared_store(broken: type[SqliteStore], check: str, tmp_path: Path) -> None:
    numbers = itertools.count()
    with pytest.raises(AssertionError, match=check):
        check_store(lambda clock: broken(tmp_path / f"{next(numbers)}.db", SIZE_LIMIT, SqliteOptions(clock=clock)))


@pytest.mark.parametrize("size_limit", [0, 1000, -5])
def test_too_small_size_limits_are_refused(size_limit: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"capacity .size_limit. is at least 65536 bytes .* not {size_limit}"):
        MemoryStore(size_limit)
    with pytest.raises(InvalidInput, match=r"capacity \(size_limit\) is at least 1048576"):
        SqliteStore(tmp_path / "x", size_limit)
    assert list(tmp_path.iterdir()) == []
