"""Secrets that the proxy generates once and stores in the data directory, in files with mode 0600.

    secret        32 random bytes; request keys, row seals and namespaces of callers depend on it; not used with the
                  setting `secret`
    admin-token   the token of the admin API and the dashboard, unless the settings give one. With a shared store and
                  `secret`, a copy of the token that is derived from the secret
    proxy-id      16 hex digits by which the proxies of a shared store know each other

Several processes may start at once, and the power may fail at any time. So a secret is written to a temporary file,
synced, and then hard-linked to its name. The link fails if another process was first, whose secret is then used.
Symbolic links in place of these files are not followed (`open_private`).

    Invariant: an unreadable secret is never replaced. The cache depends on it, and there may be a backup of it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from knapcache.errors import InvalidInput, reason_text
from knapcache.proxy.settings.value_types import TOKEN_CHARACTERS, valid_token
from knapcache.store.sqlite.files import sync

log = logging.getLogger("knapcache.serve")

SECRET, TOKEN, ID = "secret", "admin-token", "proxy-id"
BYTES = 32
HEX = re.compile(rf"[0-9a-f]{{{2 * BYTES}}}")
MAX_FILE = 1 << 16
"""Characters that are read of a secret's file."""
MIN_KEY_LENGTH = 20
"""Characters of a tenant's key. The digest is a plain SHA-256, so a short key could be found by trying all."""


def data_directory(path: Path) -> Path:
    """Create the data directory with mode 0700 if it is missing, check its owner and mode, and return it.

    Raises InvalidInput. Who can write to the directory can replace the secret, and so read or forge entries.
    """
    try:
        for folder in (*reversed(path.parents), path):  # not parents=True: those would get the umask's mode
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise InvalidInput(f"path: {folder} is a file; the data directory must be a directory") from None
    except OSError as error:
        raise InvalidInput(f"path: cannot create the data directory {path}: {reason_text(error)}") from None
    check_data_directory(path)
    return path


def check_data_directory(path: Path) -> None:
    """Raise InvalidInput unless the data directory can be used, and only by its user. Logs a warning for its group."""
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidInput(f"path: cannot read the data directory {path}: {reason_text(error)}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidInput(f"path: {path} is a file; the data directory must be a directory")
    if found.st_uid not in (os.geteuid(), 0):
        raise InvalidInput(
            f"path: {path} belongs to another user (uid {found.st_uid}); it must belong to the proxy's user "
            f"(uid {os.geteuid()}), or name a directory below it that does not exist yet"
        )
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & stat.S_IWOTH:
        raise InvalidInput(
            f"path: other users can write to {path} (mode {mode}); "
            f"run chmod go-w, or name a directory below it that does not exist yet"
        )
    if found.st_mode & stat.S_IWGRP:  # no error: a group of one user is usual, and so are volumes with a group
        log.warning("data directory is writable by its group: %s has mode %s; run chmod g-w", path, mode)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidInput(f"path: this user cannot write to {path}")


def server_secret(folder: Path | None, configured: str | None = None) -> bytes:
    """Return the configured secret, or that of the data directory; without a directory, a new one.

    Raises InvalidInput.
    """
    if configured is not None:
        return bytes.fromhex(configured)
    if folder is None:
        return secrets.token_bytes(BYTES)
    text = _read_or_create(folder / SECRET, secrets.token_hex(BYTES))
    if not HEX.fullmatch(text):
        raise InvalidInput(
            f"{folder / SECRET} must be {2 * BYTES} hex digits; restore it, or delete it, "
            "which invalidates every cached entry"
        )
    return bytes.fromhex(text)


def principal_namespace(secret: bytes, *principal: str) -> str:
    """Return the namespace of a principal such as ("tenant", its name): 32 digits of HMAC-SHA256(secret, principal)."""
    text = json.dumps(principal).encode()  # ASCII, whatever the headers contain
    return hmac.new(secret, b"namespace\0" + text, hashlib.sha256).hexdigest()[:32]


def proxy_id(folder: Path) -> str:
    """Return the id of the proxy with this data directory: 16 hex digits. It is no secret. Raises InvalidInput."""
    text = _read_or_create(folder / ID, secrets.token_hex(8))
    if not re.fullmatch(r"[0-9a-f]{16}", text):
        raise InvalidInput(f"{folder / ID} must be 16 hex digits; delete it to generate a new id")
    return text


def admin_token(folder: Path | None, configured: str | None = None) -> str:
    """Return the token of the admin API: the configured one, or the one generated at the first start."""
    if configured is not None or folder is None:
        return configured or secrets.token_urlsafe(BYTES)
    text = _read_or_create(folder / TOKEN, secrets.token_urlsafe(BYTES))
    if not valid_token(text):
        raise InvalidInput(f"{folder / TOKEN} must contain {TOKEN_CHARACTERS}; delete it to generate a new token")
    return text


def derived_token(secret: str) -> str:
    """Return the admin token that follows from a secret. The token does not reveal the secret."""
    digest = hmac.new(bytes.fromhex(secret), b"admin token", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def read_token(path: Path) -> str:
    """Return the token in a file that the settings name. It may be a link. Raises InvalidInput or OSError."""
    with path.open(encoding="ascii", errors="replace") as file:
        text = file.read(MAX_FILE).strip()
    if not valid_token(text):
        raise InvalidInput(f"{path} must contain {TOKEN_CHARACTERS}")
    return text


def replace_token(path: Path, token: str | None = None) -> str:
    """Write a token to a file in place of the old one, at once and durably, and return it. Raises OSError.

    Without `token` it is a new one.
    """
    token = token or secrets.token_urlsafe(BYTES)
    temporary = _write_temporary(path, token)
    try:
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    return token


def write_token(folder: Path, token: str) -> None:
    """Write a token to the data directory unless it is there: the start-up message names the file."""
    if _read_or_create(folder / TOKEN, token) != token:
        try:
            replace_token(folder / TOKEN, token)
        except OSError as error:
            raise InvalidInput(f"cannot write {folder / TOKEN}: {error.strerror}") from None


def digest_of(key: str) -> str:
    """Return the digest of a key or token for the settings."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def open_private(path: Path, flags: int) -> int:
    """Open a regular file of this user or of root, restrict it to mode 0600, and return its descriptor.

    A symbolic link is not followed: another user could direct the proxy's writes and mode changes to another file. A
    new file has mode 0600 with any umask. Raises OSError.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        if found.st_mode & 0o077:
            _restrict_to_owner(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def append_all(descriptor: int, data: bytes, size: int) -> None:
    """Append all of the data, or nothing: after an error the file has its old size again. Raises OSError."""
    done = 0
    try:
        while done < len(data):
            done += os.write(descriptor, data[done:])
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _read_or_create(path: Path, initial: str) -> str:
    """Return the text of a file, which is created with the text `initial` if it is missing."""
    try:
        if not os.path.lexists(path):
            _create(path, initial)
        with os.fdopen(open_private(path, os.O_RDONLY), encoding="ascii", errors="replace") as file:
            return file.read(MAX_FILE).strip()
    except OSError as error:
        raise InvalidInput(f"cannot read or create {path}: {error.strerror}") from None


def _create(path: Path, text: str) -> None:
    temporary = _write_temporary(path, text)
    try:
        with suppress(FileExistsError):  # another process was first
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync(path.parent)


def _write_temporary(path: Path, text: str) -> Path:
    """Write and sync a new file beside `path`, and return its path."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _restrict_to_owner(descriptor: int, path: Path) -> None:
    """Set mode 0600. A readable file is no error, because container volumes are often mounted that way."""
    log.warning("file permissions restricted to the owner: %s could be read by other users", path)
    try:
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        log.warning("file permissions not restricted: %s: %s", path, error)
