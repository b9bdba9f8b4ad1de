"""The lock that makes one process the owner of a database: on `….lock`, dropped by the kernel when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from knapcache.errors import NotOwner


class OwnerLock:
    """Held from construction until `release`. NotOwner when another process, or another store here, holds it."""

    # POSIX locks belong to the process: a second lock in the same process would be granted, and closing any descriptor
    # of the file would drop the first. So the locks of this process are registered here.
    _held: dict[Path, OwnerLock] = {}  # noqa: RUF012 - shared by all instances

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path.resolve()}.lock")
        if self._held.setdefault(self._path, self) is not self:  # atomic: threads may open at the same time
            raise NotOwner(f"{path} is already open in this process")
        try:
            self._acquire(path)
        except BaseException:
            del self._held[self._path]
            raise

    def _acquire(self, path: Path) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise NotOwner(f"{path} is owned by process {owner}") from None
        # The process id is only for error messages, so a full disk does not matter.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)

    @classmethod
    def forget_all(cls) -> None:
        """Clear the register in a forked child: locks are not inherited."""
        cls._held.clear()

    def release(self) -> None:
        self._held.pop(self._path, None)
        os.close(self._descriptor)
