"""File formats: created, migrated, refused. Files of other programs are not touched."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from knapcache import Cache
from knapcache.cache.options import seal_secret
from knapcache.errors import CorruptState, InvalidInput, StoreError
from knapcache.keys.canonical import netstring
from knapcache.model import REQUEST_VERSION
from knapcache.store.sqlite import database, files
from knapcache.store.sqlite.change_log import CHANGES_ROW
from knapcache.store.sqlite.database import VERSION_ROW, is_outdated
from knapcache.store.sqlite.files import FORMAT_ROW, unrecognised_logs
from knapcache.store.sqlite.layout import DiskLayout
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.rows import FIXED_BYTES, Sealer
from knapcache.store.sqlite.snapshot_rows import SNAPSHOT_ROW
from knapcache.store.sqlite.store import SqliteStore, is_open_here
from tests.support.caches import CHAT, Upstream, request_of
from tests.support.stores import entry_of, key_of, run_sql

SIZE_LIMIT = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two entries, closed."""
    path = tmp_path / "answers.db"
    with SqliteStore(path, SIZE_LIMIT) as store:
        store.apply(entry_of(store, "a"), snapshot=b"state")
        store.apply(entry_of(store, "b"))
    return path


def formats(path: Path) -> tuple[int, bytes]:
    plain = apsw.Connection(str(path))
    version = plain.pragma("user_version")
    ((value,),) = plain.execute("SELECT value FROM state WHERE id = ?", (FORMAT_ROW,))
    plain.close()
    return version, value


def set_format(path: Path, number: int) -> None:
    plain, value = apsw.Connection(str(path)), b"%d" % number
    plain.pragma("user_version", number)
    plain.execute("UPDATE state SET seal = ?, value = ? WHERE id = 1", (Sealer().seal(b"format", value), value))
    plain.close()


def test_an_older_file_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert formats(path) == (3, b"3")
    monkeypatch.setattr(
        database,
        "MIGRATIONS",
        [
            *database.MIGRATIONS,
            ("CREATE TABLE extra (x INTEGER)", "INSERT INTO extra SELECT count(*) FROM entries"),
            ("ALTER TABLE extra ADD COLUMN y TEXT",),
        ],
    )
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.get(key_of("a")) == entry_of(store, "a")
        assert store.load_snapshot() == b"state"
        assert store.totals().entries == 2
        assert "quarantined" not in store.counters()
        store.check()
    assert formats(path) == (5, b"5")
    assert run_sql(path, "SELECT x, y FROM extra") == [(2, None)]


def test_a_migration_that_fails_leaves_the_older_format(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrations = [
        *database.MIGRATIONS,
        ("CREATE TABLE extra (x INTEGER)", "INSERT INTO extra VALUES (zeroblob(1 << 40))"),
    ]
    with monkeypatch.context() as later:
        later.setattr(database, "MIGRATIONS", migrations)
        connection = database.connect(path, None, 1.0, 1 << 20)
        with pytest.raises(apsw.Error):
            database._verify_and_migrate(connection)
        connection.close()
    assert formats(path) == (3, b"3")
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.totals().entries == 2


def test_a_newer_file_is_refused_and_untouched(path: Path) -> None:
    set_format(path, 7)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer version of knapcache \(format 7, known: 3\)"):
        SqliteStore(path, SIZE_LIMIT)
    assert path.read_bytes() == before
    assert list(path.parent.glob("*damaged*")) == []
    set_format(path, 1)  # as 0.1 wrote it
    with SqliteStore(path, SIZE_LIMIT) as store:  # the lock was released
        assert store.get(key_of("a")) == entry_of(store, "a")
        assert store.totals().entries == 2
    assert formats(path) == (3, b"3")


@pytest.mark.parametrize("pragma", ["user_version", "application_id"])
def test_one_flipped_bit_is_not_taken_for_a_newer_format_or_another_program(path: Path, pragma: str) -> None:
    plain = apsw.Connection(str(path))
    plain.pragma(pragma, plain.pragma(pragma) ^ 2)
    plain.close()
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.totals().entries == (2 if pragma == "application_id" else 0)
        store.check()


def test_a_database_of_another_program_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    run_sql(path, "CREATE TABLE accounts (name TEXT); INSERT INTO accounts VALUES ('name')")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"{path} is a SQLite database of another program"):
        SqliteStore(path, SIZE_LIMIT)
    assert path.read_bytes() == before


def test_invalid_paths_and_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="path must name a file"):
        SqliteStore(tmp_path, SIZE_LIMIT)
    with pytest.raises(InvalidInput, match="synchronous must be 'normal' or 'full', not 'off'"):
        SqliteStore(tmp_path / "x", SIZE_LIMIT, SqliteOptions(synchronous="off"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteStore(tmp_path / "file" / "x", SIZE_LIMIT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_an_empty_file_is_used_as_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    path.write_bytes(b"")
    with SqliteStore(path, SIZE_LIMIT) as store:
        store.apply(entry_of(store, "a")).result()
        store.check()


def test_check_detects_wrong_totals_and_invalid_seals(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store:
        run_sql(path, "DELETE FROM entries WHERE key = ?", (key_of("a"),))
        with pytest.raises(CorruptState, match="totals"):
            store.check()
    run_sql(path, "DELETE FROM state WHERE id = ?", (CHANGES_ROW,))
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.totals().entries == 1, "without a log, all rows are counted"
        run_sql(path, "UPDATE entries SET payload = x'00'")
        with pytest.raises(CorruptState, match="1 rows cannot be read or have an invalid seal"):
            store.check()


def test_check_counts_rows_that_cannot_be_read(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store:
        run_sql(path, "UPDATE entries SET payload = CAST(x'ff' AS TEXT) WHERE key = ?", (key_of("a"),))
        run_sql(path, "UPDATE entries SET payload = x'00' WHERE key = ?", (key_of("b"),))
        with pytest.raises(CorruptState, match="2 rows cannot be read or have an invalid seal"):
            store.check()


def test_a_log_is_recognised_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    log = Path(f"{path}-wal")
    header = bytes.fromhex("377f0682 002de218 00000800")
    for ours in (b"", bytes(3), bytes(100), header, header[:5], b"\x36" + header[1:]):
        log.write_bytes(ours)
        assert unrecognised_logs(path) == []
    for other in (b"~", b"~" * 12, b"~\0~\0", b"\0" * 4 + b"~~~~", b"\x30" + header[1:]):
        log.write_bytes(other)
        assert unrecognised_logs(path) == [log]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("SELECT 1", True),
        ("UPDATE state SET seal = zeroblob(length(seal)) WHERE id = 1", False),
        ("UPDATE state SET value = CAST(value AS TEXT) WHERE id = 1", False),
        ("DELETE FROM state WHERE id = 1", False),
        ("ALTER TABLE state RENAME TO other", False),
    ],
)
def test_a_format_row_is_ours_only_with_its_seal(path: Path, change: str, expected: bool) -> None:
    plain = apsw.Connection(str(path))
    plain.execute(change).fetchall()
    plain.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    plain.close()
    assert files._has_format_row(path) == expected


def test_work_is_bounded_in_files_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 36)  # a quarter of it exceeds the largest number of steps
    connection = apsw.Connection(":memory:")
    with database.bounded_work(connection, path):
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_only_files_that_a_store_of_this_process_has_open_are_open_here(tmp_path: Path) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    with SqliteStore(one, 1 << 20) as store:
        assert is_open_here(store.path)
        assert not is_open_here(other)
    assert not is_open_here(store.path)


def test_access_to_files_that_do_not_exist_needs_no_restriction(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    database._restrict_access(path)
    path.touch(mode=0o644)
    database._restrict_access(path)
    assert path.stat().st_mode & 0o777 == 0o600
    database._allocate_log(path, DiskLayout.of(1 << 20))
    assert not Path(f"{path}-wal").exists()


def test_connections_wait_for_locks_of_other_processes(path: Path) -> None:
    for seconds, expected in ((1.5, 1500), (0.05, 50)):
        connection = database.connect(path, None, seconds, SIZE_LIMIT)
        assert connection.pragma("busy_timeout") == expected
        connection.close()


def test_a_journal_that_is_not_ours_is_not_applied(path: Path) -> None:
    Path(f"{path}-journal").symlink_to("missing")
    with pytest.raises(apsw.CantOpenError, match="-journal exists"):
        database.connect(path, None, 1.0, SIZE_LIMIT)


def test_the_fixed_part_of_a_row_is_a_close_upper_bound(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store:
        _id, seal, key, *_ = Sealer().row(entry_of(store, "a"))
    needed = len(seal) + len(key) + 5 * 8
    assert needed + 24 <= FIXED_BYTES <= needed + 64, "24: a header of a byte per column and two lengths of up to six"


def test_refused_writes_and_damaged_snapshots_are_counted(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.counters().get("refused", 0) == 0
        for k in (1, 2):
            with pytest.raises(StoreError, match="at most"):
                store.apply(entry_of(store, "large", store.max_entry_size + 1)).result()
            assert store.counters()["refused"] == k
    run_sql(path, "UPDATE state SET value = ? WHERE id = ?", (b"other", SNAPSHOT_ROW))
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.counters().get("damaged", 0) == 0
        assert store.load_snapshot() is None
        assert store.counters()["damaged"] == 1


# Entries whose requests have the form of an older version leave when the file is opened, and the others stay.

OLD = b"19:knapcache request 1,16:chat/completions,0:,0:,{}"


def fetch(cache: Cache, name: str) -> str:
    return cache.fetch(CHAT, request_of(name), Upstream()(name)).outcome


def make_old(path: Path, old: int) -> None:
    """Add entries in the old form, and make the file look as one that was never converted."""
    with closing(SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=seal_secret(None)))) as store:
        for name in range(old):
            store.apply(entry_of(store, name, 300, request=OLD if name % 2 else netstring(OLD))).result()
    run_sql(path, "DELETE FROM state WHERE id = ?", (VERSION_ROW,))


@pytest.mark.parametrize("others", [3, 0])
def test_entries_that_can_never_be_hit_leave(tmp_path: Path, caplog: pytest.LogCaptureFixture, others: int) -> None:
    path = tmp_path / "cache.db"
    with closing(Cache(SIZE_LIMIT, path=path, policy="lru")) as cache:
        for name in range(others):
            fetch(cache, str(name))
    make_old(path, 40)
    with closing(SqliteStore(path, SIZE_LIMIT, SqliteOptions(secret=seal_secret(None)), own=False)) as reader:
        assert len(list(reader.scan())) == 40 + others
        caplog.set_level(logging.WARNING)
        with closing(Cache(SIZE_LIMIT, path=path, policy="lru")) as cache:
            assert cache.stats().entries == others
            assert [fetch(cache, str(name)) for name in range(others + 1)] == ["hit"] * others + ["miss"]
            cache.check()
        assert len(list(reader.scan())) == others + 1, "a reader of before goes on"
    assert [record.getMessage().count("40 entries of an older version") for record in caplog.records] == [1]
    caplog.clear()
    with closing(Cache(SIZE_LIMIT, path=path, policy="lru")) as cache:
        assert cache.stats().entries == others + 1
    assert caplog.records == [], "the file is converted once"


@pytest.mark.parametrize(
    ("request_bytes", "outdated"),
    [(OLD, True), (netstring(OLD), True), (netstring(REQUEST_VERSION), False), (b"request 1", False), (b"", False)],
)
def test_only_requests_that_name_another_version_are_outdated(request_bytes: bytes, outdated: bool) -> None:
    assert is_outdated(request_bytes) == outdated
