"""A path that names somebody else's file: StoreError, and neither the file nor anything beside it is touched."""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest

from knapcache import Cache
from knapcache.errors import InvalidInput, KnapcacheError, StoreError
from knapcache.store.sqlite.files import APPLICATION_ID, Damaged, require_own_files
from knapcache.store.sqlite.layout import PAGE
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.running_proxy import RunningProxy
from tests.support.stores import entry_of, spawn

SIZE_LIMIT = 1 << 20
NOTES = b"# Notes\n\nSQLite is a library. Knapsacks are heavy.\n" * 40


def tree(folder: Path) -> dict[str, Any]:
    """Return everything that a change to the folder would change: names, inodes, modes, times and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: bytes | str = os.readlink(path) if path.is_symlink() else b""
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, status.st_size, content)
    return found


def open_cache(path: Path) -> None:
    Cache("2MB", path=path, policy="lru", cost="seconds", shadows=()).close()


def refused(path: Path, message: str, error: type[KnapcacheError] = StoreError) -> None:
    """Check that the library's cache and a reader refuse the path and leave its folder as it was."""
    before = tree(path.parent)
    for opening in (open_cache, lambda path: SqliteStore(path, SIZE_LIMIT, own=False)):
        with pytest.raises(error, match=message):
            opening(path)
        assert tree(path.parent) == before


def database(path: Path, application_id: int = 0, journal_mode: str = "delete") -> Path:
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", application_id)
    connection.pragma("journal_mode", journal_mode)
    connection.execute("CREATE TABLE entries (name TEXT); INSERT INTO entries VALUES ('mine')")
    connection.execute("CREATE TABLE state (id INTEGER PRIMARY KEY, seal BLOB, value BLOB)")
    connection.close()
    return path


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    """A closed store with one entry."""
    path = tmp_path / "answers.db"
    with SqliteStore(path, SIZE_LIMIT) as store:
        store.apply(entry_of(store, "a"))
    return path


@pytest.mark.parametrize(
    "content",
    [
        NOTES,
        b"x",
        b"SQLite format 3\0",
        b"SQLite format 3\0" + b"\xff" * 5000,
        b"a" * 68 + APPLICATION_ID.to_bytes(4, "big") + b"a" * 4000,
        bytes(5000),
    ],
    ids=["text", "one byte", "magic only", "magic and nonsense", "id in a text", "zeros"],
)
def test_a_file_that_is_not_a_database_is_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(content)
    os.utime(path, (1_500_000_000, 1_500_000_000))
    refused(path, r"notes\.md is not recognisable as a file of knapcache; it was not changed")


@pytest.mark.parametrize("application_id", [0, 42])
@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_a_database_of_another_program_is_not_touched(tmp_path: Path, application_id: int, journal_mode: str) -> None:
    """It even has tables with our names. In write-ahead mode, opening it would create files beside it."""
    refused(database(tmp_path / "mail.db", application_id, journal_mode), "is a SQLite database of another program")


def test_a_database_of_another_program_with_a_log_is_not_touched(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "live.db"))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(tmp_path / f"live.db{suffix}", tmp_path / f"mail.db{suffix}")
    connection.close()
    refused(tmp_path / "mail.db", "mail.db(-wal)? is (a SQLite database of another program|not recognisable)")


def test_a_link_to_a_foreign_file_is_not_followed_to_its_harm(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_bytes(NOTES)
    (tmp_path / "answers.db").symlink_to(tmp_path / "notes.md")
    refused(tmp_path / "answers.db", r"notes\.md is not recognisable")


def test_a_link_to_a_store_opens_the_store(store_file: Path) -> None:
    link = store_file.with_name("link.db")
    link.symlink_to(store_file)
    with SqliteStore(link, SIZE_LIMIT) as store:
        assert store.totals().entries == 1
    assert link.is_symlink()
    assert not list(store_file.parent.glob("link.db?*"))


def test_a_directory_a_pipe_and_a_device_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("folder", "pipe", "null"):
        refused(tmp_path / name, "is not a regular file", InvalidInput)


def test_an_unreadable_file_is_refused() -> None:
    """In a directory of its own: another run of pytest may close the one of `tmp_path` to other users meanwhile."""
    code = """
        import os, sys
        from knapcache.errors import StoreError
        from knapcache.store.sqlite.store import SqliteStore
        if os.geteuid() == 0:
            os.seteuid(65534)  # root reads everything
        os.chdir(sys.argv[1])
        try:
            SqliteStore("shadow.db", 1 << 20)
        except StoreError as error:
            print(error)
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "shadow.db"
        path.write_bytes(NOTES)
        path.chmod(0)
        folder.chmod(0o777)
        before = path.stat()
        out, err = spawn(code, folder).communicate()
        assert "shadow.db cannot be opened" in out, err
        assert "Permission denied" in out
        assert [file.name for file in folder.iterdir()] == ["shadow.db"]
        assert path.stat() == before


@pytest.mark.parametrize("length", [1, 67, 71])
def test_a_store_truncated_within_its_header_is_not_recognised(store_file: Path, length: int) -> None:
    content = store_file.read_bytes()[:length]
    store_file.write_bytes(content)
    refused(store_file, "If it was a file of knapcache, it is damaged: move it away")
    with SqliteStore(store_file, SIZE_LIMIT, SqliteOptions(exclusive=True)) as store:
        assert store.counters()["quarantined"] == 1
    assert Path(f"{store_file}.damaged-1").read_bytes() == content


@pytest.mark.parametrize("length", [100, 2048, 5000])
def test_a_truncated_store_is_set_aside(store_file: Path, length: int) -> None:
    content = store_file.read_bytes()[:length]
    store_file.write_bytes(content)
    open_cache(store_file)
    assert Path(f"{store_file}.damaged-1").read_bytes() == content


@pytest.mark.parametrize("damaged_id", [False, True])
def test_a_damaged_header_is_ours_only_with_our_id(store_file: Path, damaged_id: bool) -> None:
    content = bytearray(store_file.read_bytes())
    content[24:48] = b"\xff" * 24
    content[100:2048] = b"\xff" * 1948
    if damaged_id:
        content[68:72] = b"\xff" * 4
    store_file.write_bytes(content)
    if damaged_id:
        refused(store_file, "is not recognisable as a file of knapcache")
    else:
        open_cache(store_file)
        assert Path(f"{store_file}.damaged-1").read_bytes() == content


@pytest.mark.parametrize("place", [*range(16), *range(68, 72)])
def test_one_flipped_bit_does_not_disown_a_store(store_file: Path, place: int) -> None:
    content = bytearray(store_file.read_bytes())
    content[place] ^= 4
    store_file.write_bytes(content)
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        # A damaged magic string cannot be repaired; a damaged id can.
        assert store.totals().entries == (0 if place < 16 else 1)


@pytest.mark.parametrize(
    ("suffix", "exists"),
    [
        ("-wal", False),
        ("-shm", False),
        (".new", False),
        *((x, y) for x in ("-journal", ".lock") for y in (False, True)),
    ],
)
def test_a_foreign_file_beside_the_path_is_not_touched(store_file: Path, suffix: str, exists: bool) -> None:
    if not exists:
        store_file.unlink()
    for path in store_file.parent.glob("answers.db?*"):
        path.unlink()
    other = Path(f"{store_file}{suffix}")
    other.write_bytes(NOTES)
    before = other.stat()
    with pytest.raises(StoreError, match=f"answers.db{suffix} is not"):
        open_cache(store_file)
    assert other.read_bytes() == NOTES
    assert other.stat().st_mtime_ns == before.st_mtime_ns
    assert other.stat().st_ino == before.st_ino
    assert sorted(store_file.parent.glob("*damaged*")) == []


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_foreign_file_with_the_name_of_a_log_is_renamed_and_kept(store_file: Path, suffix: str) -> None:
    """Beside a database of ours it may be a log that a power cut has damaged, so the database stays in use."""
    Path(f"{store_file}{suffix}").write_bytes(NOTES)
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        assert store.totals().entries == 1
        store.check()
    assert Path(f"{store_file}.damaged-1{suffix}").read_bytes() == NOTES


@pytest.mark.parametrize("suffix", ["-wal", "-shm", ".lock"])
def test_a_link_in_place_of_a_file_beside_the_path_is_not_followed(store_file: Path, suffix: str) -> None:
    victim = store_file.with_name("victim")
    victim.touch()
    Path(f"{store_file}{suffix}").unlink(missing_ok=True)
    Path(f"{store_file}{suffix}").symlink_to(victim)
    with pytest.raises(StoreError, match="cannot be opened"):
        open_cache(store_file)
    assert victim.read_bytes() == b""
    assert Path(f"{store_file}{suffix}").is_symlink()


def test_a_foreign_file_beside_the_log_of_a_removed_store_is_not_touched(store_file: Path) -> None:
    """The log has our first page. Applied to the foreign file, it would overwrite it."""
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        for name in range(20):
            store.apply(entry_of(store, name)).result()
        log = Path(f"{store_file}-wal").read_bytes()
    assert b"CREATE TABLE entries" in log
    Path(f"{store_file}-wal").write_bytes(log)
    other = database(store_file.with_name("other.db")).read_bytes()
    for content in (NOTES, other):
        store_file.write_bytes(content)
        refused(store_file, "it was not changed")


def test_a_store_whose_first_page_a_power_cut_destroyed_is_repaired_from_its_log(store_file: Path) -> None:
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        for name in range(20):
            store.apply(entry_of(store, name)).result()
        copy = {suffix: Path(f"{store_file}{suffix}").read_bytes() for suffix in ("", "-wal")}
    assert b"CREATE TABLE entries" in copy["-wal"]
    for suffix, content in copy.items():
        Path(f"{store_file}{suffix}").write_bytes(content)
    Path(f"{store_file}-shm").unlink(missing_ok=True)
    with open(store_file, "r+b") as file:
        file.write(random.Random(1).randbytes(PAGE))
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        assert store.totals().entries == 21
        store.check()
    assert sorted(store_file.parent.glob("*damaged*")) == []


def test_logs_of_a_removed_store_are_replaced(store_file: Path) -> None:
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        store.apply(entry_of(store, "b")).result()
        copy = {suffix: Path(f"{store_file}{suffix}").read_bytes() for suffix in ("-wal", "-shm")}
    for suffix, content in copy.items():
        Path(f"{store_file}{suffix}").write_bytes(content)
    store_file.unlink()
    with SqliteStore(store_file, SIZE_LIMIT) as store:
        assert store.totals().entries == 0
        store.check()


def test_files_in_a_foreign_directory_with_the_name_of_the_spool_stay(store_file: Path) -> None:
    folder = Path(f"{store_file}.spool")
    folder.mkdir()
    for name in ("letter.txt", "draft.entry", "totals.counts", "0123"):
        (folder / name).write_bytes(NOTES)
    with SqliteStore(store_file, SIZE_LIMIT) as store, SqliteStore(store_file, SIZE_LIMIT, own=False) as reader:
        reader.hand_over(entry_of(reader, "b"))
        assert len(list(store.collect())) == 1
        assert store.take_counts() == {}
    assert {file.name for file in folder.iterdir()} == {"letter.txt", "draft.entry", "totals.counts", "0123", "lock"}


def test_a_foreign_unfinished_copy_stays(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with SqliteStore(path, 4 * SIZE_LIMIT) as store:
        for name in range(1000):
            store.apply(entry_of(store, name))
    Path(f"{path}.rebuilt").write_bytes(NOTES)
    with pytest.raises(StoreError, match=r"answers\.db\.rebuilt is not recognisable"):
        SqliteStore(path, SIZE_LIMIT)
    assert Path(f"{path}.rebuilt").read_bytes() == NOTES
    with SqliteStore(path, 4 * SIZE_LIMIT) as store:
        assert store.totals().entries == 1000


def test_files_named_like_ours_that_were_set_aside_are_kept(store_file: Path) -> None:
    """Damaged files are numbered and the oldest removed, but only those that are ours."""
    mine = Path(f"{store_file}.damaged-3")
    mine.write_bytes(NOTES)
    Path(f"{store_file}.damaged-4-wal").write_bytes(NOTES)
    for number in (5, 6):
        store_file.write_bytes(store_file.read_bytes()[:3000])
        with SqliteStore(store_file, SIZE_LIMIT) as store:
            assert store.counters()["quarantined"] == 1
        assert Path(f"{store_file}.damaged-{number}").exists()
    assert not Path(f"{store_file}.damaged-5").exists()
    assert mine.read_bytes() == Path(f"{store_file}.damaged-4-wal").read_bytes() == NOTES


def test_a_foreign_file_put_in_place_of_an_open_store_is_not_touched(store_file: Path) -> None:
    with SqliteStore(store_file, SIZE_LIMIT, SqliteOptions(memory_tier=0)) as store:
        other = store_file.with_name("other")
        other.write_bytes(NOTES)
        other.rename(store_file)
        store._writer.report_damage()  # type: ignore[union-attr]
        with pytest.raises(StoreError, match="is not recognisable"):
            store.apply(entry_of(store, "b")).result()
        assert store_file.read_bytes() == NOTES
    assert store_file.read_bytes() == NOTES


def test_the_proxy_sets_an_unrecognisable_file_aside_in_its_own_directory(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").write_bytes(NOTES)
    with RunningProxy(tmp_path, "http://127.0.0.1:9/v1") as proxy:
        assert not proxy.proxy.storage.memory_fallback
        assert (tmp_path / "cache.sqlite.damaged-1").read_bytes() == NOTES
        proxy.proxy.cache.check()


def test_the_proxy_does_not_touch_a_database_of_another_program(tmp_path: Path) -> None:
    path = database(tmp_path / "cache.sqlite", journal_mode="wal")
    before = path.read_bytes()
    with RunningProxy(tmp_path, "http://127.0.0.1:9/v1") as proxy:
        assert proxy.proxy.storage.memory_fallback
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("cache.sqlite?*"))


def test_exclusive_reports_damage_where_the_library_refuses(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(NOTES)
    with pytest.raises(Damaged):
        require_own_files(path, exclusive=True)
    assert tree(tmp_path)[str(path)][-1] == NOTES
