"""One file, several processes: one owner writes, readers read and hand over, and ownership passes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from knapcache.errors import NotOwner, StoreError
from knapcache.store.sqlite.owner_lock import OwnerLock
from knapcache.store.sqlite.snapshot_rows import SNAPSHOT_ROW
from knapcache.store.sqlite.store import SqliteStore
from tests.support.caches import read_line, send
from tests.support.stores import entry_of, files_bytes, key_of, spawn
from tests.support.timing import wait_until

SIZE_LIMIT = 2 << 20

OWNER = f"""
import sys
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, key_of
store = SqliteStore(sys.argv[1], {SIZE_LIMIT})
print("owner", flush=True)
for line in sys.stdin:
    word, name = line.split()
    if word == "put":
        store.apply(entry_of(store, name)).result()
    elif word == "evict":
        store.apply(evict=[key_of(name)]).result()
    elif word == "damage":
        store._writer.report_damage()
        store.flush()
    print("done", flush=True)
"""


@contextmanager
def owner_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run OWNER. `send(process, "put NAME")` returns when that is done."""
    process = spawn(OWNER, path)
    try:
        assert read_line(process) == "owner"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_readers_see_what_the_owner_writes_and_cannot_write(path: Path) -> None:
    with owner_process(path) as other, SqliteStore(path, SIZE_LIMIT, own=False) as reader:
        assert not reader.owner
        assert reader.get(key_of("a")) is None
        send(other, "put a")
        assert reader.get(key_of("a")) == entry_of(reader, "a")
        send(other, "evict a")
        assert reader.get(key_of("a")) is None, "an evicted entry is still visible to a reader"
        send(other, "put b")
        assert [info.key for info in reader.scan()] == [key_of("b")]
        assert reader.totals() == (1, entry_of(reader, "b").size)
        calls: list[Callable[[], object]] = [
            lambda: reader.apply(entry_of(reader, "c")),
            reader.expire,
            reader.collect,
            lambda: SqliteStore(path, SIZE_LIMIT),
        ]
        for call in calls:
            with pytest.raises(NotOwner, match=f"{path} "):
                call()
        with pytest.raises(NotOwner, match=f"is owned by process {other.pid}"):
            SqliteStore(path, SIZE_LIMIT)
        assert reader.own() is False
        reader.check()


def test_a_reader_notices_that_the_file_was_replaced(path: Path) -> None:
    with owner_process(path) as other, SqliteStore(path, SIZE_LIMIT, own=False) as reader:
        send(other, "put a")
        assert reader.get(key_of("a")) is not None
        send(other, "damage -")  # the owner quarantines its file
        send(other, "put b")
        wait_until(lambda: reader.get(key_of("b")), "the entry in the new file")
        assert reader.get(key_of("b")) == entry_of(reader, "b")
        assert reader.get(key_of("a")) is None
        # The reader closed the old file, as its last user, without deleting the new log, which has the same name.
        send(other, "put c")
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert reader.own()
        assert {info.key for info in reader.scan()} == {key_of("b"), key_of("c")}


def test_an_eviction_and_a_put_are_one_step_for_other_connections(path: Path) -> None:
    """There is always exactly one entry, together with its own snapshot."""
    seen = []
    with SqliteStore(path, SIZE_LIMIT) as store:
        store.apply(entry_of(store, 0), snapshot=b"0").result()
        names: dict[object, bytes] = {key_of(name): b"%d" % name for name in range(400)}
        done = threading.Event()

        def observe() -> None:
            plain = apsw.Connection(str(path))
            both = f"SELECT key, (SELECT value FROM state WHERE id = {SNAPSHOT_ROW}) FROM entries"
            while not done.is_set():
                seen.append([(names[key], snapshot) for key, snapshot in plain.execute(both).fetchall()])
            plain.close()

        observer = threading.Thread(target=observe)
        observer.start()
        for name in range(1, 400):
            store.apply(entry_of(store, name), [key_of(name - 1)], b"%d" % name).result()
        done.set()
        observer.join()
    assert len({str(rows) for rows in seen}) > 3  # on one busy core not many
    assert all(len(rows) == 1 and rows[0][0] == rows[0][1] for rows in seen)


def test_a_process_has_one_owner(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store:
        with pytest.raises(NotOwner, match="already open in this process"):
            SqliteStore(path, SIZE_LIMIT)
        with SqliteStore(path, SIZE_LIMIT, own=False) as reader:
            store.apply(entry_of(store, "a")).result()
            assert reader.get(key_of("a")) is not None
        child = spawn(OWNER, path)
        assert "NotOwner" in child.communicate()[1], "the refused attempt or the reader dropped the lock"
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.get(key_of("a")) is not None


def test_a_store_is_closed_in_a_forked_child(path: Path) -> None:
    code = """
        import os, sys, warnings
        from knapcache.errors import StoreError
        from knapcache.store.sqlite.store import SqliteStore
        from tests.support.stores import entry_of
        path = sys.argv[1]
        store = SqliteStore(path, 2 << 20)
        entry = entry_of(store, "a")
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: the process has threads
        child = os.fork()
        if child == 0:
            assert store.get(entry.key) is None
            try:
                store.apply(entry)
            except StoreError as error:
                assert "closed" in str(error)
            else:
                os._exit(1)
            store.close()
            other = store.reader()
            assert other.get(entry.key) == entry and not other.own()
            other.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        store.apply(entry_of(store, "b")).result()
        store.check()
        store.close()
    """
    child = spawn(code, path)
    assert child.communicate()[1] == ""
    assert child.returncode == 0


def test_handed_over_entries_are_collected_once_and_bounded(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store, SqliteStore(path, SIZE_LIMIT, own=False) as other:
        entries = [entry_of(other, name, 500, expires=None if name else 4e9) for name in range(3)]
        for entry in entries:
            other.hand_over(entry)
        assert sorted(store.collect()) == sorted(entries)
        assert list(store.collect()) == []
        count = store.layout.spool // 8192  # each takes two blocks
        for name in range(count):
            other.hand_over(entry_of(other, name, 5000))
        with pytest.raises(StoreError, match="the spool is full"):
            other.hand_over(entry_of(other, "more", 5000))
        assert count >= 2
        assert files_bytes(path) <= SIZE_LIMIT
        store.check()
        assert len(list(store.collect())) == count


def test_damaged_and_partial_spool_files_are_dropped(path: Path) -> None:
    with SqliteStore(path, SIZE_LIMIT) as store, SqliteStore(path, SIZE_LIMIT, own=False) as other:
        folder = Path(f"{path}.spool")
        for name in range(4):
            other.hand_over(entry_of(other, name, 500))
            assert (folder.stat().st_mode & 0o777, (folder / "lock").stat().st_mode & 0o777) == (0o700, 0o600)
        first, second, third, _ = sorted(folder.glob("*.entry"))
        first.write_bytes(first.read_bytes()[:-1])
        second.write_bytes(b"nonsense")
        third.write_bytes(third.read_bytes().replace(b"tenant", b"tyrant"))
        (folder / "0123456789abcdef").write_bytes(b"partial file of a process that died")
        assert len(list(store.collect())) == 1
        assert [file.name for file in folder.iterdir()] == ["lock"]


def test_files_are_readable_by_their_user_only(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        path = tmp_path / "new" / "folder" / "answers.db"
        with SqliteStore(path, SIZE_LIMIT) as store:
            store.apply(entry_of(store, "a")).result()
            store.hand_over(entry_of(store, "b"))
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.rglob("*") if file.is_file()}
        assert set(modes.values()) == {0o600}
        assert len(modes) == 6
        assert path.parent.stat().st_mode & 0o777 == 0o700
        path.chmod(0o644)
        with SqliteStore(path, SIZE_LIMIT):
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(previous)


def test_the_size_of_the_spool_while_files_are_removed(tmp_path: Path, path: Path) -> None:
    """A dangling link stands for a file that was listed and then removed."""
    with SqliteStore(path, 2 << 20) as store, SqliteStore(path, 2 << 20, own=False) as reader:
        reader.hand_over(entry_of(reader, 0))
        before = reader.disk_bytes()
        Path(f"{path}.spool", "0123456789abcdef.entry").symlink_to(tmp_path / "nowhere")
        assert reader.disk_bytes() == before
        reader.hand_over(entry_of(reader, 1))
        assert len(list(Path(f"{path}.spool").glob("*.entry"))) == 3
        assert store.owner


def test_of_two_threads_that_open_at_once_one_owns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, barrier = tmp_path / "answers.db", threading.Barrier(2, timeout=60)
    real_open = os.open

    def slow_open(*arguments: Any) -> int:
        if str(arguments[0]).endswith(".lock"):
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(0.5)  # both are here, or one was refused
        return real_open(*arguments)

    monkeypatch.setattr(os, "open", slow_open)
    owners: list[OwnerLock] = []

    def own() -> None:
        with contextlib.suppress(NotOwner):
            owners.append(OwnerLock(path))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: own(), range(2)))
    assert len(owners) == 1
    owners[0].release()
    OwnerLock(path).release()


def test_only_one_writer_at_a_time_is_in_the_spool(path: Path) -> None:
    """Two writers that both measure first and then write would exceed the size limit."""
    with SqliteStore(path, SIZE_LIMIT) as store, SqliteStore(path, SIZE_LIMIT, own=False) as reader:
        reader.hand_over(entry_of(reader, 0))
        writer = threading.Thread(target=reader.hand_over, args=[entry_of(reader, 1)])
        with open(f"{path}.spool/lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            writer.start()
            writer.join(0.2)
            assert writer.is_alive()
            assert len(list(Path(f"{path}.spool").glob("*.entry"))) == 1
        wait_until(lambda: not writer.is_alive(), "the thread")
        assert len(list(store.collect())) == 2


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", False),
        (b"123 knapcache\n", False),
        (b"1234567890 knapcache\n", False),
        (b"123\n", True),  # of an earlier version
        (b"1234567890\n", True),
    ],
)
def test_a_lock_file_of_ours_is_taken(path: Path, content: bytes, kept: bool) -> None:
    lock_file = Path(f"{path}.lock")
    lock_file.write_bytes(content)
    lock = OwnerLock(path)
    with pytest.raises(NotOwner, match="already open in this process"):
        OwnerLock(path)
    lock.release()
    assert lock_file.read_bytes() == (content if kept else b"%d knapcache\n" % os.getpid())


@pytest.mark.parametrize("content", [b"123", b"123 other\n", b"notes\n", b"12345678901\n", b"1 knapcache\n2\n", b"\n"])
def test_a_lock_file_of_another_program_is_left_alone(path: Path, content: bytes) -> None:
    lock_file = Path(f"{path}.lock")
    lock_file.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreError, match="is not a lock file of knapcache"):
            OwnerLock(path)
    assert lock_file.read_bytes() == content
