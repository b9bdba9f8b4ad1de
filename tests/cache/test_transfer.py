"""Imports: many entries are decided together, with the same result as one by one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from knapcache.cache import transfer
from knapcache.cache.transfer import EntryImporter, TransferEntry
from knapcache.keys.canonical import Keyer
from knapcache.model import Endpoint
from knapcache.store.base import Change, Entry
from knapcache.store.sqlite.batch import ChangeEncoder, QueuedWrite
from knapcache.store.sqlite.store import SqliteStore

KEYER = Keyer(bytes(16))


def found(k: int, version: int = 0, size: int = 1000) -> TransferEntry:
    body = {"model": "m", "messages": [{"role": "user", "content": f"question {k}"}]}
    request = KEYER.read(Endpoint.CHAT, body).keys[0].canonical
    entry = Entry(
        key=b"",
        tenant="",
        model="m",
        size=0,
        cost=1.0 + k % 7,
        seconds=1.0,
        created=1e9 + version,
        expires=1e9 if k % 50 == 49 else None,
        meta={},
        request=request,
        payload=b"%d " % version * (size // 2 + 37 * (k % 90)),
    )
    return TransferEntry(entry, 1.0 + k % 4, None)


@pytest.mark.parametrize("policy", ["lru", "gdsf-cost"])
def test_an_import_decides_like_one_entry_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """More entries than fit, some of them several times, newer and older, and some expired."""
    rng = random.Random(1)
    entries = [found(int(400 * rng.random() ** 3), version=k * 7 % 3) for k in range(1000)]
    results = []
    for at_once in (1, 256):
        monkeypatch.setattr(transfer, "MAX_WAITING", at_once)
        importer = EntryImporter(
            SqliteStore(tmp_path / f"{at_once}.db", 1 << 20), None, policy, lambda tenant, _: tenant
        )
        for entry in entries:
            importer.add(entry)
        importer.finish()
        importer._coordinator.check()
        store = importer._coordinator.store
        results.append((importer.result, {info.key: info for info in store.scan()}))
        importer.close()
    assert results[0] == results[1]
    result, infos = results[0]
    assert result.stored > len(infos) > 100, "some were evicted"
    assert result.present
    assert result.expired == sum(each.entry.expires is not None for each in entries) > 0


def test_large_entries_wait_for_few_others(tmp_path: Path) -> None:
    importer = EntryImporter(SqliteStore(tmp_path / "a.db", 64 << 20), None, "lru", lambda tenant, _: tenant)
    for k in range(4):
        importer.add(found(k, size=600_000))
        assert len(importer._waiting) < 2
    importer.close()
    with SqliteStore(tmp_path / "a.db", 64 << 20) as store:
        assert store.totals().entries == 4


def test_entries_that_the_store_cannot_write_are_not_counted_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importer = EntryImporter(SqliteStore(tmp_path / "a.db", 8 << 20), None, "lru", lambda tenant, _: tenant)
    queued = ChangeEncoder.queued

    def refuse_some(self: ChangeEncoder, change: Change, done: Any) -> QueuedWrite:
        write = queued(self, change, done)
        if change.put is not None and change.put.cost == 3.0:
            write.refuse("the disk is full")
        return write

    monkeypatch.setattr(ChangeEncoder, "queued", refuse_some)
    for k in range(40):
        importer.add(found(k))
    importer.finish()
    failed = sum(found(k).entry.cost == 3.0 for k in range(40))
    assert failed > 0
    assert importer.result.failed == failed
    assert importer.result.stored == 40 - failed == len(list(importer._coordinator.store.scan()))
    importer.close()
