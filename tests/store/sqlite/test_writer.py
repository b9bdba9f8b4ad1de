"""The writer thread: changes are gathered, unless a caller waits for one; many changes at once."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import StoreError
from knapcache.store.base import Change
from knapcache.store.sqlite import writer
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of
from tests.support.timing import within


def test_changes_are_gathered_into_one_transaction_unless_a_caller_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GATHER_SECONDS", 600.0)
    transactions: list[int] = []
    original = writer.Writer._transaction

    def transaction(self: writer.Writer, late: list[int], batch: list[Any], sizes: dict[int, int]) -> list[str | None]:
        transactions.append(len(batch))
        return original(self, late, batch, sizes)

    monkeypatch.setattr(writer.Writer, "_transaction", transaction)
    with within(60, "a caller that waits"):
        store = SqliteStore(tmp_path / "store.db", 64 << 20)
        assert store._writer is not None
        urgent, gathering = store._writer.urgent, threading.Event()
        wait = urgent.wait

        def recorded_wait(timeout: float | None = None) -> bool:
            gathering.set()
            return wait(timeout)

        monkeypatch.setattr(urgent, "wait", recorded_wait)
        futures = [store.apply(put=entry_of(store, 0))]
        gathering.wait()  # a writer that wakes late finds more in its queue, and does not gather
        futures += [store.apply(put=entry_of(store, k)) for k in range(1, 20)]
        futures[-1].result()
        assert transactions == [20]
        assert all(each.done() for each in futures)
        store.apply(put=entry_of(store, "last"))
        store.close()
    with SqliteStore(tmp_path / "store.db", 64 << 20) as again:
        assert again.totals().entries == 21
        again.check()


def test_many_changes_are_made_in_their_order_and_fail_one_by_one(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store.db", 4 << 20) as store:
        entries = [entry_of(store, k) for k in range(4)]
        newer, large = entry_of(store, 0, version=1), entry_of(store, "large", 4 << 20)
        changes = [Change(entries[0]), Change(entries[1]), Change(large, [entries[1].key]), Change(newer)]
        changes += [
            Change(entries[2]._replace(size=1)),
            Change(entries[3], snapshot=b"state"),
            Change(evict=[b"x" * 32]),
        ]
        done = store.apply_all(changes)
        assert store.get(entries[0].key) == newer, "every change is seen at once"
        assert store.get(entries[1].key) is None
        errors = done.result()
        assert [error is None for error in errors] == [True, True, False, True, False, True, True]
        assert "at most" in str(errors[2])
        assert "size must be" in str(errors[4])
        assert {info.key for info in store.scan()} == {newer.key, entries[3].key}
        assert store.load_snapshot() == b"state"
        assert not store.apply_all([]).result()
        store.check()
    with pytest.raises(StoreError):
        store.apply_all(changes)


def test_an_entry_that_fills_the_store_exactly_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore(tmp_path / "store.db", 4 << 20) as store:
        first, second, third = (entry_of(store, k) for k in range(3))
        assert store._writer is not None
        layout = dataclasses.replace(store._writer._layout, capacity=first.size + second.size)
        monkeypatch.setattr(store._writer, "_layout", layout)
        errors = store.apply_all([Change(first), Change(second), Change(third)]).result()
        assert [error is None for error in errors] == [True, True, False]
        assert f"the entry has {third.size} bytes, 0 are free" in str(errors[2])


def test_a_transaction_that_replaces_too_many_rows_is_divided(tmp_path: Path) -> None:
    """The log has space for twice as many new rows as for rows that replace others."""
    with SqliteStore(tmp_path / "store.db", 1 << 20) as store:
        assert store._writer
        names = range(store.layout.frames_per_transaction // 8)
        for version in (0, 1):
            done = store.apply_all([Change(entry_of(store, k, 100, version=version)) for k in names])
            assert set(done.result()) == {None}
            assert [entry for k in names if (entry := store.get(key_of(k))) and entry.created % 10 == version]
        assert store.totals().entries == len(names)
        store.check()
