"""The lock that makes one process the owner of a database: on `….lock`, dropped by the kernel when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from pathlib import Path

from knapcache.errors import NotOwner, StoreError

_CONTENT = re.compile(rb"(\d{1,10} knapcache\n)?")
_OLD_CONTENT = re.compile(rb"\d{1,10}\n")  # of earlier versions, and perhaps of another program: not overwritten


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
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        try:
            content = self._content()
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = content.split()[0].decode() if content else "unknown"
                raise NotOwner(f"{path} is owned by process {owner}") from None
        except BaseException:
            os.close(self._descriptor)
            raise
        # The process id is only for error messages, so a full disk does not matter.
        if _CONTENT.fullmatch(content):
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, b"%d knapcache\n" % os.getpid(), 0)

    def _content(self) -> bytes:
        """Return what the lock file contains; StoreError if we did not write it."""
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            content = os.pread(self._descriptor, 64, 0)
            if _CONTENT.fullmatch(content) or _OLD_CONTENT.fullmatch(content):
                return content
        raise StoreError(f"{self._path} is not a lock file of knapcache; it was not changed")

    @classmethod
    def forget_all(cls) -> None:
        """Clear the register in a forked child: locks are not inherited."""
        cls._held.clear()

    def release(self) -> None:
        self._held.pop(self._path, None)
        os.close(self._descriptor)
