"""Files of compiled kernels: where they are, how they are read and written, and when they are deleted.

    DIRECTORY/INSTALLATION/KERNEL-DIGEST    one kernel for one signature: stamp, checksum, machine code
    DIRECTORY/INSTALLATION/compile.lock     held by the process that compiles (compile_kernels.py)

A file is written under another name and renamed, so no process reads a part of it. Its modification time says when it
was last used: reading a file that is a day old renews it. A process that writes kernels then deletes those that were
not used for MAX_UNUSED seconds, of every installation: those of older versions, and of checkouts that are gone. A
process that has loaded a kernel does not need its file any more, and one that finds it missing compiles it again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import time
from pathlib import Path

import platformdirs

log = logging.getLogger("knapcache.kernel")

LOCK = "compile.lock"
MAX_UNUSED = 30 * 86_400.0
"""Seconds after which an unused kernel is deleted."""
MAX_DRAFT_AGE = 86_400.0
"""Seconds after which a file that was never renamed is deleted: its process has ended."""
RENEW_AFTER = 86_400.0
"""Seconds after which reading a kernel renews its modification time."""
MAX_EXAMINED = 20_000
"""Files that one sweep examines."""
INSTALLATION = re.compile(r"[0-9a-f]{12}")
KERNEL_FILE = re.compile(rf".+-[0-9a-f]{{32}}(?P<draft>\.[0-9a-f]{{16}})?|{re.escape(LOCK)}")


@functools.cache
def cache_directory() -> Path:
    """Return the directory for compiled kernels of this installation.

    It is below KNAPCACHE_KERNEL_CACHE, or below the user's cache directory. If that cannot be written, it is in a
    directory for temporary files that only this user can access.
    """
    configured = os.environ.get("KNAPCACHE_KERNEL_CACHE")
    root = Path(configured) if configured else Path(platformdirs.user_cache_dir("knapcache")) / "kernels"
    if not is_writable(root) and (private := private_temporary_directory()):
        log.info("compiled kernels are stored in %s, because %s is not writable", private, root)
        root = private
    return root / hashlib.sha256(str(Path(__file__).parent).encode()).hexdigest()[:12]


def is_writable(directory: Path) -> bool:
    """Return whether a directory, or the nearest existing one above it, can be written."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def private_temporary_directory() -> Path | None:
    """Return a temporary directory that belongs to this user alone; None if there is none.

    Machine code is loaded from it, so a directory that another user has prepared is refused.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(tempfile.gettempdir()) / f"knapcache-kernels-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    private = not hasattr(os, "getuid") or (found.st_uid == user and not found.st_mode & 0o077)
    return path if stat.S_ISDIR(found.st_mode) and private else None


def read(file: Path, stamp: bytes) -> bytes | None:
    """Return the code in `file`; None if it is missing, damaged, or has another stamp."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a file that cannot be renewed can still be used
        if time.time() - file.stat().st_mtime > RENEW_AFTER:
            os.utime(file)
    code = content[64:]
    return code if content[:64] == stamp + hashlib.sha256(code).digest() else None


def write(file: Path, stamp: bytes, code: bytes) -> None:
    """Write `code` to `file`. If that fails, it is reported on a terminal."""
    draft = file.with_name(f"{file.name}.{os.urandom(8).hex()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(stamp + hashlib.sha256(code).digest() + code)
        draft.replace(file)
        _sweep_once(file.parent.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        _report_not_cached(str(error))


@functools.cache  # once per reason
def _report_not_cached(reason: str) -> None:
    if sys.stderr.isatty():
        print(
            f"knapcache: cannot cache compiled code ({reason}); every run compiles it again."
            " Set KNAPCACHE_KERNEL_CACHE to a writable directory.",
            file=sys.stderr,
        )


@functools.cache  # once a process
def _sweep_once(root: Path) -> None:
    sweep(root, time.time())


def sweep(root: Path, now: float) -> int:
    """Delete unused kernels below `root`, and directories that are then empty. Return how many files were deleted.

    Files that do not have the name of a kernel are left alone: KNAPCACHE_KERNEL_CACHE may be a shared directory.
    """
    examined = deleted = 0
    for folder in _entries(root):
        if not INSTALLATION.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
            continue
        for file in _entries(folder.path):
            examined += 1
            if examined > MAX_EXAMINED:
                return deleted
            if match := KERNEL_FILE.fullmatch(file.name):
                limit = MAX_DRAFT_AGE if match["draft"] else MAX_UNUSED
                with contextlib.suppress(OSError):  # another process was faster
                    if now - file.stat(follow_symlinks=False).st_mtime > limit:
                        os.unlink(file.path)
                        deleted += 1
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder.path)
    return deleted


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
