"""A SQLite VFS that injects faults: a full disk, random I/O errors, slow writes, a disk that hangs or is gone."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

from knapcache.store import registry
from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.stores import spawn

_numbers = itertools.count()
SYSTEM = apsw.vfs_names()[0]
"""SQLite's own VFS: its default, until a faulty one is."""


class DiskFaults:
    """The faults to inject now."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.error_rate = 0.0
        """Probability that a read or a write fails."""
        self.write_delay = 0.0
        """Seconds added to each write."""
        self.full = False
        self.injected = 0

    def inject(self, *, writing: bool) -> None:
        """Called before every operation on a file."""
        if self.write_delay and writing:
            time.sleep(self.write_delay)
        if self.full and writing:
            self.injected += 1
            raise apsw.FullError("no space left on the device")
        if self.rng.random() < self.error_rate:
            self.injected += 1
            raise apsw.IOError("injected I/O error")


class FaultyVFS(apsw.VFS):
    """The real file system, with faults. Pass its `name` to SqliteOptions(vfs=…), or make it SQLite's default."""

    def __init__(self, faults: DiskFaults, *, default: bool = False) -> None:
        self.faults = faults
        self.name = f"faulty{next(_numbers)}"
        super().__init__(self.name, SYSTEM, makedefault=default)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _FaultyFile(self.faults, name, flags)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, faults: DiskFaults, name: Any, flags: list[int]) -> None:
        self.faults = faults
        super().__init__(SYSTEM, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self.faults.inject(writing=False)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.faults.inject(writing=True)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.faults.inject(writing=True)
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.faults.inject(writing=True)
        super().xTruncate(size)


class SlowDisk(DiskFaults):
    """Reads and writes take `delay` seconds (0: until `repair`), or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.repaired = threading.Event()
        self.repaired.set()
        self.broken = False
        self.delay = 0.0

    def inject(self, *, writing: bool) -> None:
        if not self.repaired.is_set():
            self.injected += 1
            self.repaired.wait(self.delay or None)
        if self.broken:
            self.injected += 1
            raise apsw.IOError("the disk is gone")
        super().inject(writing=writing)

    def start_fault(self, delay: float = 0.0, *, broken: bool = False) -> None:
        self.delay, self.broken = delay, broken
        if not broken:
            self.repaired.clear()

    def repair(self) -> None:
        self.broken = self.full = False
        self.error_rate = 0.0
        self.repaired.set()


DISK_FAULTS: dict[str, Callable[[SlowDisk], None]] = {
    "black-holed": lambda slow_disk: slow_disk.start_fault(),
    "5 s slow": lambda slow_disk: slow_disk.start_fault(5.0),
    "stopped": lambda slow_disk: slow_disk.start_fault(broken=True),
}


@contextmanager
def stores_on(faults: DiskFaults, **options: Any) -> Iterator[None]:
    """Open all SQLite stores of this block on a disk with these faults. Without a memory tier, every hit reads it."""
    disk = FaultyVFS(faults)
    defaults = SqliteOptions(vfs=disk.name, memory_tier=0, busy_timeout=0.05, **options)
    opener = functools.partial(SqliteStore.open, defaults=defaults)
    with mock.patch.dict(registry.STORES, {"sqlite": opener}):
        yield
    disk.unregister()


@contextmanager
def slow_disk_under_stores() -> Iterator[SlowDisk]:
    """Yield the disk under all SQLite stores of this block; it is repaired at the end."""
    found = SlowDisk()
    with stores_on(found):
        yield found
        found.repair()


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    """Let another process hold the write lock of a database."""
    child = spawn(
        """
        import sys, apsw
        connection = apsw.Connection(sys.argv[1])
        connection.set_busy_timeout(10_000)
        connection.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        sys.stdin.readline()
        """,
        path,
    )
    assert child.stdout
    assert child.stdout.readline() == "locked\n"
    try:
        yield
    finally:
        child.communicate("unlock\n")
