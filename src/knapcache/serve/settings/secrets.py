"""Secrets that the proxy generates once and stores in the data directory, in files with mode 0600.

    secret        32 random bytes; request keys, row seals and namespaces of callers depend on it
    admin-token   the token of the admin API and the dashboard, unless the settings give one

Several processes may start at once, and the power may fail at any time. So a secret is written to a temporary file,
synced, and then hard-linked to its name. The link fails if another process was first, whose secret is then used.

    Invariant: an unreadable secret is never replaced. The cache depends on it, and there may be a backup of it.
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
MIN_KEY_LENGTH = 20
"""Characters of a tenant's key. The digest is a plain SHA-256, so a short key could be found by trying all."""


def data_directory(path: Path) -> Path:
    """Create the data directory with mode 0700 if it is missing, and return it. Raises InvalidInput."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"path: cannot create the data directory: {error}") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidInput(f"path: this user cannot write to {path}")
    return path


def server_secret(folder: Path | None) -> bytes:
    """Return the secret of the data directory; without a directory, a new one. Raises InvalidInput."""
    if folder is None:
        return secrets.token_bytes(BYTES)
    text = _read_or_create(folder / SECRET, secrets.token_hex(BYTES))
    if not HEX.fullmatch(text):
        raise InvalidInput(
            f"{folder / SECRET} must be {2 * BYTES} hex digits; restore it, or delete it, "
            "which invalidates every cached entry"
        )
    return bytes.fromhex(text)


def admin_token(folder: Path | None, configured: str | None = None) -> str:
    """Return the token of the admin API: the configured one, or the one generated at the first start."""
    if configured is not None or folder is None:
        return configured or secrets.token_urlsafe(BYTES)
    text = _read_or_create(folder / TOKEN, secrets.token_urlsafe(BYTES))
    if not PRINTABLE.fullmatch(text):
        raise InvalidInput(
            f"{folder / TOKEN} must contain 16 or more printable characters; delete it to generate a new token"
        )
    return text


def digest_of(key: str) -> str:
    """Return the digest of a tenant's key for the settings."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _read_or_create(path: Path, initial: str) -> str:
    """Return the text of a file, which is created with the text `initial` if it is missing."""
    try:
        if not path.exists():
            _create(path, initial)
        _restrict_to_owner(path)
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise InvalidInput(f"cannot read or create {path}: {error}") from None


def _create(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first
            os.link(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def _restrict_to_owner(path: Path) -> None:
    """Set mode 0600. A readable file is no error, because container volumes are often mounted that way."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        log.warning("file permissions restricted to the owner: %s could be read by other users", path)
        try:
            path.chmod(0o600)
        except OSError as error:
            log.warning("file permissions not restricted: %s: %s", path, error)
