"""Every store keeps the contract, and the contract's suite notices when one does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from knapcache.errors import InvalidInput
from knapcache.store.base import Entry, Store
from knapcache.store.memory import MemoryStore
from knapcache.store.sqlite.store import SqliteStore
from knapcache.testing import check_store

Clock = Callable[[], float]


@pytest.fixture(params=["memory", "sqlite", "sqlite-full", "sqlite-file-only"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Clock], Store]:
    numbers = itertools.count()

    def make(clock: Clock) -> Store:
        if request.param == "memory":
            return MemoryStore(2 << 20, clock=clock)
        path = tmp_path / f"{next(numbers)}.db"
        full = "full" if request.param == "sqlite-full" else "normal"
        memory = 0 if request.param == "sqlite-file-only" else None
        return SqliteStore(path, 2 << 20, clock=clock, synchronous=full, memory=memory)

    return make


def test_the_contract(build: Callable[[Clock], Store]) -> None:
    check_store(build)


class Forgetful(MemoryStore):
    """Evicts only when something comes."""

    def apply(self, put: Entry | None = None, evict: object = (), snapshot: bytes | None = None) -> object:  # type: ignore[override]
        return super().apply(put, evict if put else (), snapshot)  # type: ignore[arg-type]


class Immortal(MemoryStore):
    """Serves what has expired."""

    def get(self, key: bytes) -> Entry | None:
        return self._entries.get(key) or super().get(key)


class Uncounted(MemoryStore):
    """Loses count of what it replaces."""

    def _drop(self, key: bytes) -> bool:
        return self._entries.pop(key, None) is not None


class Blind(MemoryStore):
    """Does not know what it has."""

    def get_nowait(self, _key: bytes) -> Entry | None:
        return None


@pytest.mark.parametrize(
    ("broken", "check"), [(Forgetful, "one_step"), (Immortal, "expiry"), (Uncounted, "replaced"), (Blind, "get_nowait")]
)
def test_the_suite_notices(broken: type[MemoryStore], check: str) -> None:
    with pytest.raises(AssertionError, match=check):
        check_store(lambda clock: broken(2 << 20, clock=clock))


@pytest.mark.parametrize("size_limit", [0, 1000, -5])
def test_budgets_too_small_to_work_with(size_limit: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="size_limit must be at least"):
        MemoryStore(size_limit)
    with pytest.raises(InvalidInput, match="size_limit must be at least 1048576"):
        SqliteStore(tmp_path / "x", size_limit)
    assert list(tmp_path.iterdir()) == []
