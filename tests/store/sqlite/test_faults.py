"""Disks that fill up, fail, lock and stall: writes say so, reads find less, nothing is wrong, and all is well after."""

from __future__ import annotations

import itertools
import random
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import apsw
import pytest

from knapcache.errors import StoreError
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import content, entry_of, key_of, right, spawn

SIZE_LIMIT = 2 << 20
_numbers = itertools.count()


class Weather:
    """What the disk is like now."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.share = 0.0
        self.seconds = 0.0
        self.full = False
        self.struck = 0

    def strike(self, *, writing: bool) -> None:
        if self.seconds and writing:
            time.sleep(self.seconds)
        if self.full and writing:
            self.struck += 1
            raise apsw.FullError("no space left on the device")
        if self.rng.random() < self.share:
            self.struck += 1
            raise apsw.IOError("the disk says no")


class Disk(apsw.VFS):
    """The real file system, with weather."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.name = f"weather{next(_numbers)}"
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return File(self.weather, name, flags)


class File(apsw.VFSFile):
    def __init__(self, weather: Weather, name: Any, flags: list[int]) -> None:
        self.weather = weather
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self.weather.strike(writing=False)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.weather.strike(writing=True)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.weather.strike(writing=True)
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.weather.strike(writing=True)
        super().xTruncate(size)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(Weather())
    yield disk
    disk.unregister()


def outcome(done: Future[None]) -> bool:
    error = done.exception(30)
    assert error is None or isinstance(error, StoreError), error
    return error is None


@pytest.mark.parametrize("memory", [0, None])
@pytest.mark.parametrize("seed", range(3))
def test_two_in_a_hundred_operations_fail(quick_path: Path, disk: Disk, seed: int, memory: int | None) -> None:
    disk.weather.rng = rng = random.Random(seed)
    names = 40
    with SqliteStore(quick_path / "answers.db", SIZE_LIMIT, vfs=disk.name, memory=memory) as store:
        held: dict[int, int] = {}
        disk.weather.share = 0.02
        kept = 0
        for version in range(1, 400):
            name, gone = rng.randrange(names), rng.randrange(names)
            evict = [] if gone == name else [key_of(gone)]
            done = store.apply(entry_of(store, name, rng.randrange(9000), version), evict)
            held.pop(gone, None)
            held.pop(name, None)
            if outcome(done):
                held[name] = version
                kept += 1
            for other in rng.sample(range(names), 5):
                entry = store.get(key_of(other))
                if entry is not None:  # None is always allowed: the disk may have failed
                    assert right(entry, other)
                    assert entry.meta["version"] == held.get(other), "an older entry, or one that was evicted"
        assert kept > 100
        assert disk.weather.struck > 20
        disk.weather.share = 0.0
        for _ in range(3):
            store.flush()
        assert store.counters().get("quarantined", 0) == 0
        found = {other: entry.meta["version"] for other in range(names) if (entry := store.get(key_of(other)))}
        assert found == held, "what was kept, and nothing else, is there when the disk works again"
        store.check()


def test_a_full_disk_and_an_emptied_one(tmp_path: Path, disk: Disk) -> None:
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, vfs=disk.name, memory=0) as store:
        entries = [entry_of(store, name) for name in range(6)]
        for entry in entries[:4]:
            store.apply(entry).result()
        disk.weather.full = True
        with pytest.raises(StoreError, match="not stored"):
            store.apply(entries[4], evict=[entries[0].key], snapshot=b"state").result()
        newer = entry_of(store, 1, version=1)
        assert not outcome(store.apply(newer))
        assert not outcome(store.apply(evict=[entries[2].key]))
        # Policies have forgotten these, so they are gone, whatever the disk says.
        assert [store.get(entry.key) for entry in entries] == [None, None, None, entries[3], None, None]
        assert store.load_snapshot() is None
        disk.weather.full = False
        store.apply(entries[5]).result()
        assert store.totals() == (2, entries[3].size + entries[5].size), "owed evictions were not made good"
        assert [store.get(entry.key) for entry in entries] == [None, None, None, entries[3], None, entries[5]]
        assert store.counters()["failed_writes"] == 3
        store.check()


def test_owed_evictions_are_made_good_without_being_asked(tmp_path: Path, disk: Disk) -> None:
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, vfs=disk.name) as store:
        entry = entry_of(store, 0)
        store.apply(entry).result()
        disk.weather.full = True
        assert not outcome(store.apply(evict=[entry.key]))
        disk.weather.full = False
        deadline = time.monotonic() + 10
        while store.totals().entries and time.monotonic() < deadline:
            time.sleep(0.05)
        assert store.totals() == (0, 0)


def test_a_slow_disk_fills_the_queue_and_no_more(tmp_path: Path, disk: Disk) -> None:
    with SqliteStore(tmp_path / "answers.db", 8 << 20, vfs=disk.name) as store:
        disk.weather.seconds = 0.002
        began = time.monotonic()
        done = [store.apply(entry_of(store, name % 8, 200_000, name)) for name in range(120)]
        enqueued = time.monotonic() - began
        disk.weather.seconds = 0.0
        errors = [future.exception() for future in done]
        assert enqueued < 2.0
        assert errors[0] is None
        assert any(isinstance(error, StoreError) and "too slow" in str(error) for error in errors)
        entry = entry_of(store, "after")
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        store.check()


def test_a_damaged_file_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """No new file can be made in its place; when the disk works again, one is."""
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT, vfs=disk.name, memory=0) as store:
        store.apply(entry_of(store, "before")).result()
        disk.weather.full = True
        assert store._writer
        store._writer.suspect()
        assert not outcome(store.apply(entry_of(store, 0)))
        assert not outcome(store.apply(entry_of(store, 1)))
        assert store.get(key_of(0)) is None
        disk.weather.full = False
        entry = entry_of(store, 2)
        store.apply(entry).result()
        assert store.get(entry.key) == entry
        assert store.totals() == (1, entry.size)
        store.check()


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A real limit of the operating system, in a process of its own: writes fail with EFBIG."""
    child = spawn(
        """
        import resource, signal, sys
        from knapcache.errors import StoreError
        from knapcache.store.sqlite.store import SqliteStore
        from tests.support.stores import entry_of, key_of, right
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = SqliteStore(sys.argv[1], 8 << 20)
        first = entry_of(store, "first")
        store.apply(first).result()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        errors = [store.apply(entry_of(store, name, 30_000)).exception() for name in range(100)]
        assert all(error is None or isinstance(error, StoreError) for error in errors)
        assert errors[-1] is not None, "nothing failed"
        assert store.get(first.key) == first
        for name, error in enumerate(errors):
            entry = store.get(key_of(name))
            assert (entry is None) if error else (entry is None or right(entry, name)), name
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.apply(entry_of(store, "after", 30_000)).result()
        assert store.get(key_of("after")) is not None
        store.check()
        store.close()
        print(sum(error is None for error in errors))
        """,
        tmp_path / "answers.db",
    )
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert 5 < int(out) < 100
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_database_locked_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    with SqliteStore(path, SIZE_LIMIT, busy=0.1, memory=0) as store:
        entry, other = entry_of(store, 0), entry_of(store, 1)
        store.apply(entry).result()
        child = spawn(
            """
            import sys, apsw
            connection = apsw.Connection(sys.argv[1])
            connection.execute("BEGIN IMMEDIATE")
            print("locked", flush=True)
            sys.stdin.readline()
            """,
            path,
        )
        assert child.stdout
        assert child.stdout.readline() == "locked\n"
        began = time.monotonic()
        done = [store.apply(entry_of(store, name)) for name in range(2, 40)]
        assert store.get(entry.key) == entry, "readers wait for nobody"
        assert not any(outcome(future) for future in done)
        assert time.monotonic() - began < 3.0, "each of them waited for the lock in vain"
        child.communicate("enough\n")
        store.apply(other).result()
        assert store.get(other.key) == other
        store.check()


def test_a_writer_that_dies_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug, for once: callers get an error, not silence."""
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    with SqliteStore(tmp_path / "answers.db", SIZE_LIMIT) as store:
        assert store._writer
        monkeypatch.setattr(store._writer, "_commit", lambda _batch: 1 / 0)
        done = [store.apply(entry_of(store, name, 10)) for name in range(5)]
        assert all(isinstance(future.exception(10), StoreError) for future in done)
        assert isinstance(store.apply(entry_of(store, 9)).exception(10), StoreError)
    assert len(died) == 1


def test_content_follows_from_names() -> None:
    """The judge of right and wrong answers can tell them apart."""
    assert content(("a", 1), 50) != content(("a", 2), 50)
