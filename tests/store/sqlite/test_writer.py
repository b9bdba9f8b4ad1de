"""The writer thread: changes are gathered, unless a caller waits for one; many changes at once."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import StoreError
from knapcache.store.base import Change
from knapcache.store.sqlite import batch, writer
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of
from tests.support.timing import check_seconds, within


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


def results_of(store: SqliteStore, changes: list[Change]) -> list[StoreError | None]:
    """Make changes, and return of each why it failed, or None."""
    results = dict[Change, StoreError | None]()
    store.apply_all(changes, results.__setitem__)
    store.flush()
    return [results[change] for change in changes]


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
        results = dict[Change, StoreError | None]()
        store.apply_all(changes, results.__setitem__)
        assert store.get(entries[0].key) == newer, "every change is seen at once"
        assert store.get(entries[1].key) is None
        store.flush()
        assert [results[change] is None for change in changes] == [True, True, False, True, False, True, True]
        assert "at most" in str(results[changes[2]])
        assert "size must be" in str(results[changes[4]])
        assert {info.key for info in store.scan()} == {newer.key, entries[3].key}
        assert store.load_snapshot() == b"state"
        store.check()
    with pytest.raises(StoreError):
        store.apply_all(changes, print)


def test_rows_are_encoded_without_giving_the_interpreters_lock_away(tmp_path: Path) -> None:
    """Another thread computes, so that it comes back only after the switch interval."""
    ended, interval = threading.Event(), sys.getswitchinterval()

    def compute() -> None:
        while not ended.is_set():
            pass

    with SqliteStore(tmp_path / "store.db", 4 << 20) as store:
        entries = [entry_of(store, k, 30_000) for k in range(20)]
        thread = threading.Thread(target=compute)
        thread.start()
        try:
            sys.setswitchinterval(0.5)
            started = time.monotonic()
            rows = [store._sealer.row(entry) for entry in entries]
            assert [store._sealer.entry(row[1:]) for row in rows] == entries
            check_seconds(time.monotonic() - started, 5.0, "rows of 30 kB")
        finally:
            ended.set()
            sys.setswitchinterval(interval)
            thread.join()


def test_an_entry_that_fills_the_store_exactly_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore(tmp_path / "store.db", 4 << 20) as store:
        first, second, third = (entry_of(store, k) for k in range(3))
        assert store._writer is not None
        layout = dataclasses.replace(store._writer._layout, capacity=first.size + second.size)
        monkeypatch.setattr(store._writer, "_layout", layout)
        errors = results_of(store, [Change(first), Change(second), Change(third)])
        assert [error is None for error in errors] == [True, True, False]
        assert f"the entry has {third.size} bytes, 0 are free" in str(errors[2])


def test_a_transaction_that_replaces_too_many_rows_is_divided(tmp_path: Path) -> None:
    """The log has space for twice as many new rows as for rows that replace others."""
    with SqliteStore(tmp_path / "store.db", 1 << 20) as store:
        assert store._writer
        names = range(store.layout.frames_per_transaction // 8)
        for version in (0, 1):
            errors = results_of(store, [Change(entry_of(store, k, 100, version=version)) for k in names])
            assert set(errors) == {None}
            assert [entry for k in names if (entry := store.get(key_of(k))) and entry.created % 10 == version]
        assert store.totals().entries == len(names)
        store.check()


def test_clear_removes_what_was_put_before_it_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SqliteStore(path, 4 << 20) as store:
        assert set(results_of(store, [Change(entry_of(store, k)) for k in range(100)])) == {None}
        assert store.get(key_of(0)) is not None, "in the memory tier"
        position = store.position()
        queued = store.apply(entry_of(store, "queued"), snapshot=b"state")
        cleared = store.clear()
        assert store.get(key_of("queued")) is None, "seen at once"
        later = store.apply(entry_of(store, "later"))
        for done in (queued, cleared, later):
            done.result()
        assert [store.get(key_of(name)) is None for name in (0, 99, "queued", "later")] == [True, True, True, False]
        assert (store.totals().entries, store.load_snapshot()) == (1, b"state")
        assert store.infos_since(position) is None, "positions before it are not known"
        assert set(store.infos_since(store.position()) or ()) == set()
        store.check()
    with SqliteStore(path, 4 << 20) as again:
        assert [info.key for info in again.scan()] == [key_of("later")]
        again.clear().result()
        assert not list(again.scan())
        again.check()
    with pytest.raises(StoreError):
        again.clear()


def test_an_entry_that_is_read_while_the_store_is_cleared_does_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(tmp_path / "store.db", 4 << 20) as store:
        store.apply(entry_of(store, 0)).result()
        original = writer.Writer._transaction

        def transaction(self: writer.Writer, *args: Any) -> list[str | None]:
            assert store.read(key_of(0)) is not None, "not committed yet"
            return original(self, *args)

        monkeypatch.setattr(writer.Writer, "_transaction", transaction)
        store.clear().result()
        assert store.get(key_of(0)) is None


def test_a_clear_that_fails_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore(tmp_path / "store.db", 4 << 20) as store:
        store.apply(entry_of(store, 0)).result()
        queued = store.apply(entry_of(store, 1))
        with monkeypatch.context() as patched:
            patched.setattr(batch, "_CLEAR", "DELETE FROM missing")
            with pytest.raises(StoreError, match="write failed"):
                store.clear().result()
        queued.result()
        assert all(store.get(key_of(name)) is not None for name in (0, 1))
        store.check()
        store.clear().result()
        assert store.totals().entries == 0
