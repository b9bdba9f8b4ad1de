"""Flipped bits, truncated files, swapped pages: no wrong answer, no exception from `get`, a usable store."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.store.sqlite.database import SECRET_ROW
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.damage import NAMES, SIZE_LIMIT, damage_and_use, use_like_a_cache, write_crashed_file
from tests.support.stores import entry_of, run_sql, spawn


@pytest.fixture(scope="module")
def crashed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_crashed_file(tmp_path_factory.mktemp("crashed"))


def test_damaged_files_never_give_a_wrong_answer(
    crashed_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts = damage_and_use(crashed_file, tmp_path, 150, 0)
    assert counts["intact"] > 0, "every round lost an answer, even those with harmless damage"
    assert counts["intact"] < counts["rounds"], "no round lost an answer: the damage has no effect"
    assert counts["refused"] < counts["rounds"] / 10
    assert "quarantined" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 11))
def test_damaged_files_never_give_a_wrong_answer_for_long(crashed_file: Path, tmp_path: Path, seed: int) -> None:
    damage_and_use(crashed_file, tmp_path, 1000, seed)


def test_damage_to_an_open_file_never_gives_a_wrong_answer(tmp_path: Path) -> None:
    """Another process overwrites the file while it is in use."""
    rng = random.Random(3)
    for k in range(10):
        path = tmp_path / f"{k}.db"
        store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0))
        for name in range(NAMES):
            store.apply(entry_of(store, name, 300 * name))
        store.flush()
        store.close()
        store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0))
        first, step = rng.randrange(0, 4096, 64), rng.randrange(1500, 9000)
        damage_file = f"""
            import os
            with open({str(path)!r}, "r+b") as file:
                for place in range({first}, os.path.getsize({str(path)!r}), {step}):
                    file.seek(place); byte = file.read(1); file.seek(place); file.write(bytes([byte[0] ^ 16]))
        """
        assert spawn(damage_file).communicate()[1] == ""
        use_like_a_cache(store, rng)
        store.close()


def test_a_damaged_row_is_deleted_and_the_others_stay(path: Path) -> None:
    store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0))
    entries = [entry_of(store, name) for name in range(4)]
    for entry in entries:
        store.apply(entry)
    store.close()
    run_sql(path, "UPDATE entries SET payload = zeroblob(2000) WHERE key = ?", (entries[0].key,))
    run_sql(path, "UPDATE entries SET tenant = x'62' WHERE key = ?", (entries[1].key,))
    # A valid row under the id of another key.
    (row,) = run_sql(path, "SELECT * FROM entries WHERE key = ?", (entries[2].key,))
    (number,) = run_sql(path, "SELECT id FROM entries WHERE key = ?", (entries[3].key,))[0]
    run_sql(path, f"INSERT OR REPLACE INTO entries VALUES ({','.join('?' * len(row))})", (None, number, *row[2:]))
    store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0))
    assert [store.get(entry.key) for entry in entries] == [None, None, entries[2], None]
    assert store.counters()["damaged"] == 2
    assert [info.key for info in store.scan()] == [entries[2].key]
    store.flush()
    assert store.totals() == (1, entries[2].size)
    store.check()
    store.close()


def test_expiry_removes_damaged_rows_and_names_only_the_others(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0, clock=lambda: 0.0)) as store:
        entries = [entry_of(store, name, expires=1.0) for name in range(2)]
        for entry in entries:
            store.apply(entry)
    run_sql(path, "UPDATE entries SET tenant = x'62' WHERE key = ?", (entries[0].key,))
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(memory_tier=0)) as store:
        assert store.expire() == (entries[1].key,)
        store.flush()
        assert store.totals() == (0, 0)


def test_rows_written_with_another_secret_are_not_accepted(path: Path) -> None:
    store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=b"one"))
    entry = entry_of(store, 0)
    store.apply(entry, snapshot=b"state")
    store.close()
    for other in (b"two", b""):
        with pytest.raises(StoreError, match="another secret"):
            SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=other))
    store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=b"one"))
    assert store.get(entry.key) == entry, "opening with a wrong secret lost an answer"
    assert store.load_snapshot() == b"state"
    store.close()
    run_sql(path, "DELETE FROM state WHERE id = ?", (SECRET_ROW,))  # an attacker's way around the refusal
    store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=b"two"))
    assert store.get(entry.key) is None
    assert store.load_snapshot() is None
    store.flush()
    assert store.totals() == (0, 0)
    store.close()


@pytest.mark.parametrize("change", ["seal = zeroblob(16)", "value = 'text'", "value = zeroblob(16)"])
def test_a_damaged_mark_of_the_secret_is_rewritten(path: Path, change: str) -> None:
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=b"one")) as store:
        entry = entry_of(store, 0)
        store.apply(entry)
    run_sql(path, f"UPDATE state SET {change} WHERE id = ?", (SECRET_ROW,))
    with SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=b"one")) as store:
        assert store.get(entry.key) == entry
        store.check()
    with pytest.raises(StoreError, match="another secret"):
        SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=b"two"))


@pytest.mark.parametrize("content", [b"not a database, by any means " * 200, b"SQLite format 3\0" + b"\xff" * 5000])
def test_an_unrecognisable_file_is_quarantined_only_where_the_path_is_ours(
    tmp_path: Path, path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is not recognisable as a file of knapcache; it was not changed"):
        SqliteStore(path, SIZE_LIMIT)
    assert [file.name for file in tmp_path.iterdir()] == ["answers.db"]
    assert path.read_bytes() == content
    for k in range(1, 5):
        path.write_bytes(content + b"%d" % k)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            store = SqliteStore(path, SIZE_LIMIT, SqliteOptions(keep_damaged=2, exclusive=True))
        assert ["quarantined" in record.message for record in caplog.records] == [True]
        assert store.counters()["quarantined"] == 1
        entry = entry_of(store, "after")
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        store.check()
        store.close()
        kept = sorted(p.name for p in tmp_path.glob("answers.db.damaged-*") if p.name[-1].isdigit())
        assert kept == [f"answers.db.damaged-{n}" for n in range(max(1, k - 1), k + 1)]
        assert (tmp_path / f"answers.db.damaged-{k}").read_bytes() == content + b"%d" % k
