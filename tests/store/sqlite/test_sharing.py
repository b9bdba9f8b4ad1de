"""One file, many processes: one writes, the others read and hand over, and ownership passes on, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from knapcache.errors import NotOwner, StoreError
from knapcache.store.sqlite.database import SNAPSHOT_ROW, Ownership
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import entry_of, files_bytes, key_of, spawn

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
    elif word == "break":
        store._writer.suspect()
        store.flush()
    print("done", flush=True)
"""


class Owner:
    def __init__(self, path: Path) -> None:
        self.process = spawn(OWNER, path)
        self.answers()

    def answers(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline().strip() in ("owner", "done")

    def tell(self, word: str, name: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word} {name}\n")
        self.process.stdin.flush()
        self.answers()


@contextmanager
def owner(path: Path) -> Iterator[Owner]:
    started = Owner(path)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def test_others_read_what_the_owner_writes(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with owner(path) as other, SqliteStore(path, SIZE_LIMIT, own=False) as reader:
        assert not reader.owner
        assert reader.get(key_of("a")) is None
        other.tell("put", "a")
        assert reader.get(key_of("a")) == entry_of(reader, "a")
        other.tell("evict", "a")
        assert reader.get(key_of("a")) is None, "what the owner evicted is gone for all at once"
        other.tell("put", "b")
        assert [head.key for head in reader.scan()] == [key_of("b")]
        assert reader.totals() == (1, entry_of(reader, "b").size)
        calls: list[Callable[[], object]] = [
            lambda: reader.apply(entry_of(reader, "c")),
            reader.purge,
            reader.expire,
            reader.collect,
            lambda: SqliteStore(path, SIZE_LIMIT),
        ]
        for call in calls:
            with pytest.raises(NotOwner, match=f"{path} "):
                call()
        with pytest.raises(NotOwner, match=f"belongs to process {other.process.pid}"):
            SqliteStore(path, SIZE_LIMIT)
        assert reader.own() is False
        reader.check()


def test_ownership_passes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with owner(path) as other, SqliteStore(path, SIZE_LIMIT, own=False) as heir:
        other.tell("put", "a")
        assert heir.own() is False
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()
        assert heir.get(key_of("a")) == entry_of(heir, "a")
        assert heir.own() is True
        assert heir.owner
        heir.apply(entry_of(heir, "b"), evict=[key_of("a")]).result()
        assert heir.get(key_of("a")) is None
        heir.check()


def test_a_reader_notices_that_the_file_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with owner(path) as other, SqliteStore(path, SIZE_LIMIT, own=False) as reader:
        other.tell("put", "a")
        assert reader.get(key_of("a")) is not None
        other.tell("break", "-")  # the owner sets its file aside
        other.tell("put", "b")
        deadline = time.monotonic() + 5
        while reader.get(key_of("b")) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert reader.get(key_of("b")) == entry_of(reader, "b")
        assert reader.get(key_of("a")) is None
        # The reader let go of the old file, as its last user, and left alone the log that has the old one's name.
        other.tell("put", "c")
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()
        assert reader.own()
        assert {head.key for head in reader.scan()} == {key_of("b"), key_of("c")}


def test_one_goes_as_the_other_comes(quick_path: Path) -> None:
    """Seen from outside, evictions and the put are one step: there is always one entry, and its own snapshot."""
    path = quick_path / "answers.db"
    seen = []
    with SqliteStore(path, SIZE_LIMIT) as store:
        store.apply(entry_of(store, 0), snapshot=b"0").result()
        names: dict[object, bytes] = {key_of(name): b"%d" % name for name in range(400)}
        done = threading.Event()

        def look() -> None:
            plain = apsw.Connection(str(path))
            both = f"SELECT key, (SELECT value FROM state WHERE id = {SNAPSHOT_ROW}) FROM entries"
            while not done.is_set():
                seen.append([(names[key], snapshot) for key, snapshot in plain.execute(both).fetchall()])
            plain.close()

        observer = threading.Thread(target=look)
        observer.start()
        for name in range(1, 400):
            store.apply(entry_of(store, name), [key_of(name - 1)], b"%d" % name).result()
        done.set()
        observer.join()
    assert len({str(rows) for rows in seen}) > 3  # on one busy core not many
    assert all(len(rows) == 1 and rows[0][0] == rows[0][1] for rows in seen)


def test_one_owner_within_a_process(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with SqliteStore(path, SIZE_LIMIT) as store:
        with pytest.raises(NotOwner, match="open in this process already"):
            SqliteStore(path, SIZE_LIMIT)
        with SqliteStore(path, SIZE_LIMIT, own=False) as reader:
            store.apply(entry_of(store, "a")).result()
            assert reader.get(key_of("a")) is not None
        child = spawn(OWNER, path)
        assert "NotOwner" in child.communicate()[1], "the refused attempt, or the reader, dropped the lock"
    with SqliteStore(path, SIZE_LIMIT) as store:
        assert store.get(key_of("a")) is not None


def test_a_fork_has_no_store(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    code = """
        import os, sys
        from knapcache.errors import StoreError
        from knapcache.store.sqlite.store import SqliteStore
        from tests.support.stores import entry_of
        path = sys.argv[1]
        store = SqliteStore(path, 2 << 20)
        entry = entry_of(store, "a")
        store.apply(entry).result()
        assert store.get(entry.key) == entry
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
            other = SqliteStore(path, 2 << 20, own=False)
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


def test_hand_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with SqliteStore(path, SIZE_LIMIT) as store, SqliteStore(path, SIZE_LIMIT, own=False) as other:
        entries = [entry_of(other, name, 500, expires=None if name else 4e9) for name in range(3)]
        for entry in entries:
            other.hand_over(entry)
        assert sorted(store.collect()) == sorted(entries)
        assert list(store.collect()) == []
        handed = store.layout.spool // 8192  # each takes two blocks
        for name in range(handed):
            other.hand_over(entry_of(other, name, 5000))
        with pytest.raises(StoreError, match="the spool is full"):
            other.hand_over(entry_of(other, "more", 5000))
        assert handed >= 2
        assert files_bytes(path) <= SIZE_LIMIT
        store.check()
        assert len(list(store.collect())) == handed


def test_what_is_handed_over_damaged_or_half_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with SqliteStore(path, SIZE_LIMIT) as store, SqliteStore(path, SIZE_LIMIT, own=False) as other:
        folder = Path(f"{path}.spool")
        for name in range(4):
            other.hand_over(entry_of(other, name, 500))
            assert (folder.stat().st_mode & 0o777, (folder / "lock").stat().st_mode & 0o777) == (0o700, 0o600)
        first, second, third, _ = sorted(folder.glob("*.entry"))
        first.write_bytes(first.read_bytes()[:-1])
        second.write_bytes(b"nonsense")
        third.write_bytes(third.read_bytes().replace(b"tenant", b"tyrant"))
        (folder / "0123").write_bytes(b"half of something, by somebody who died")
        assert len(list(store.collect())) == 1
        assert [file.name for file in folder.iterdir()] == ["lock"]


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
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


def test_weighing_the_outbox_while_it_is_emptied(tmp_path: Path) -> None:
    """A file that is listed and then gone: a link to nothing looks the same."""
    path = tmp_path / "answers.db"
    with SqliteStore(path, 2 << 20) as store, SqliteStore(path, 2 << 20, own=False) as reader:
        reader.hand_over(entry_of(reader, 0))
        before = reader.disk_bytes()
        Path(f"{path}.spool", "gone.entry").symlink_to(tmp_path / "nowhere")
        assert reader.disk_bytes() == before
        reader.hand_over(entry_of(reader, 1))
        assert len(list(Path(f"{path}.spool").glob("*.entry"))) == 3
        assert store.owner


def test_many_threads_open_and_one_owns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, together = tmp_path / "answers.db", threading.Barrier(2, timeout=10)
    opened = os.open

    def slow(*arguments: Any) -> int:
        if str(arguments[0]).endswith(".lock"):
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(0.5)  # both are here, or one was turned away
        return opened(*arguments)

    monkeypatch.setattr(os, "open", slow)
    owners: list[Ownership] = []

    def own() -> None:
        with contextlib.suppress(NotOwner):
            owners.append(Ownership(path))

    threads = [threading.Thread(target=own) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(owners) == 1
    owners[0].release()
    Ownership(path).release()
