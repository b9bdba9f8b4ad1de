"""Secrets that the proxy makes for itself, once, and keeps in the data directory in files that only its user may read.

    secret        32 random bytes: keys of requests, seals of rows and namespaces of callers depend on it
    admin-token   what the admin API and the dashboard ask for, unless the settings name one

Several processes may start at once, and a power cut may come at any time: a secret is written to a file of its own,
put on the disk, and then linked to its name, which fails where somebody was first. Whoever was first has made it.

    Invariant: a secret that cannot be read is never replaced. What was kept depends on it, and there may be a backup.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from knapcache.errors import InvalidInput

log = logging.getLogger("knapcache.serve")

SECRET, TOKEN = "secret", "admin-token"
BYTES = 32
HEX = re.compile(rf"[0-9a-f]{{{2 * BYTES}}}")
PRINTABLE = re.compile(r"[!-~]{16,}")
LEAST_KEY = 20
"""Characters of a tenant's key. Its digest is a plain SHA-256, from which a short key could be guessed."""


def data_directory(path: Path) -> Path:
    """The directory, made where it is missing, closed to others."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"path: the data directory cannot be made: {error}") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidInput(f"path: {path} cannot be written to by this user")
    return path


def server_secret(folder: Path | None) -> bytes:
    """The server's secret; without a folder, where nothing outlives the process, a new one."""
    if folder is None:
        return secrets.token_bytes(BYTES)
    text = _kept(folder / SECRET, secrets.token_hex(BYTES))
    if not HEX.fullmatch(text):
        raise InvalidInput(
            f"{folder / SECRET} must be {2 * BYTES} hex digits: restore it, or remove it, and with it all kept answers"
        )
    return bytes.fromhex(text)


def admin_token(folder: Path | None, given: str | None = None) -> str:
    """The token of the admin API: the given one, or the one made at the first start."""
    if given is not None or folder is None:
        return given or secrets.token_urlsafe(BYTES)
    text = _kept(folder / TOKEN, secrets.token_urlsafe(BYTES))
    if not PRINTABLE.fullmatch(text):
        raise InvalidInput(f"{folder / TOKEN} must hold 16 or more printable characters, and does not: remove it")
    return text


def digest_of(key: str) -> str:
    """What the settings hold of a tenant's key."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _kept(path: Path, fresh: str) -> str:
    """The text of a file; of a new one with `fresh` in it, where there is none."""
    try:
        if not path.exists():
            _make(path, fresh)
        _close_to_others(path)
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise InvalidInput(f"the data directory's {path.name} cannot be read or made: {error}") from None


def _make(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first
            os.link(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        draft.unlink(missing_ok=True)


def _close_to_others(path: Path) -> None:
    """Rejected: to refuse a file that others may read. Volumes of containers are often mounted so."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        log.warning("%s could be read by other users of this machine, and is now closed to them", path)
        try:
            path.chmod(0o600)
        except OSError as error:
            log.warning("%s cannot be closed to others: %s", path, error)
