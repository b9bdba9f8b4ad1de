"""The writer thread: changes are gathered, and a caller that waits for one does not wait for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from knapcache.store.sqlite import writer
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of
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
        futures = [store.apply(put=entry_of(store, k)) for k in range(20)]
        futures[-1].result()
        assert transactions == [20]
        assert all(each.done() for each in futures)
        store.apply(put=entry_of(store, "last"))
        store.close()
    with SqliteStore(tmp_path / "store.db", 64 << 20) as again:
        assert again.totals().entries == 21
        again.check()
