"""A SQLite VFS that injects faults: a full disk, random I/O errors, slow writes."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import apsw

_numbers = itertools.count()


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
    """The real file system, with faults. Pass its `name` to SqliteStore(vfs=…)."""

    def __init__(self, faults: DiskFaults) -> None:
        self.faults = faults
        self.name = f"faulty{next(_numbers)}"
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _FaultyFile(self.faults, name, flags)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, faults: DiskFaults, name: Any, flags: list[int]) -> None:
        self.faults = faults
        super().__init__("", name, flags)

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
