"""The tokens of the admin API: whose they are, what they allow, and how they change without a restart.

    admin          role operator. The setting `admin_token`, or the file `admin-token` of the data directory. With a
                   shared store and the setting `secret` it is derived from the secret, the same at every proxy
    admin_tokens   settings with a name and a role. The token's digest, or the variable or the file that has it

The files are looked at once a second, when somebody authenticates. A changed file is read again. So a token can be
replaced by writing its file, by `rotate`, or by a change of the settings and SIGHUP (`apply`). The old token is refused
from then on, and sessions that it began have ended: a session is valid only while its token is.

    Invariant: a token whose file is missing, damaged or replaced is refused. Only while the disk does not answer, the
    last known tokens stay valid, so that its state can still be seen.

Only the owner process serves the admin API, so no other process has to know the tokens.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from knapcache.errors import InvalidInput
from knapcache.proxy.admin_routes import Role as Role
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import AdminTokenSettings, Settings
from knapcache.proxy.settings.secrets import TOKEN, admin_token, read_token, replace_token

log = logging.getLogger("knapcache.serve")

ADMIN = "admin"
"""Name of the token that always exists."""
CHECK_INTERVAL = 1.0
"""Seconds between two checks of the files."""
DEADLINE = 2.0
"""Seconds that a request waits for such a check."""
LONG = 32
"""Characters from which on a token cannot be found by guessing, at any rate of attempts."""
Stamp = tuple[int, int, int, int]


class Identity(NamedTuple):
    """The holder of a valid token."""

    name: str
    role: Role
    digest: bytes
    """SHA-256 of the token."""
    guessable: bool
    """Whether the token is shorter than LONG, so that guesses have to be limited."""


class AdminTokens:
    """The valid tokens. folder: the data directory; None: the token `generated` exists in memory only."""

    def __init__(
        self,
        settings: Settings,
        folder: Path | None,
        generated: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._folder, self._generated, self._clock = settings, folder, generated, clock
        self._lock = threading.Lock()
        self._stamps: dict[Path, Stamp | None] = {}
        """By file: what it was when its token was read. None: the token could not be read."""
        self._identities: dict[bytes, Identity] = {}
        with self._lock:
            self._load(strict=True)
        self._next_check = clock() + CHECK_INTERVAL

    def find(self, token: str) -> Identity | None:
        """Return the holder of a token, or None."""
        # A dictionary lookup by digest: an attacker cannot choose digests that begin alike, so timing reveals nothing.
        return self._identities.get(token_digest(token))

    def all(self) -> list[Identity]:
        """Return the holders of all valid tokens, in the order of the settings."""
        return list(self._identities.values())

    def by_digest(self, digest: bytes) -> Identity | None:
        """Return the holder of the token with a digest, or None."""
        return self._identities.get(digest)

    def current(self, identity: Identity) -> bool:
        """Return whether the token of an identity is still valid, with the same name and role."""
        return self._identities.get(identity.digest) == identity

    async def refresh(self) -> None:
        """Read changed files again, at most once a second. A disk that does not answer delays one request."""
        if self._clock() < self._next_check:
            return
        self._next_check = math.inf  # other requests do not wait
        try:
            with anyio.move_on_after(DEADLINE):
                await anyio.to_thread.run_sync(self._refresh, abandon_on_cancel=True)
        finally:
            self._next_check = self._clock() + CHECK_INTERVAL

    def rotate(self, name: str) -> str:
        """Replace a token that is in a file, and return the new one. Raises RequestRejected."""
        with self._lock:
            if name == ADMIN and self._settings.derives_admin_token:
                raise RequestRejected(
                    409,
                    f"The token {ADMIN!r} is derived from the setting secret, at every proxy: change secret, or set "
                    "admin_token or admin_tokens.",
                    "not_rotatable",
                )
            path = self._files().get(name)
            if path is None or path.is_symlink():
                raise RequestRejected(
                    409, f"The token {name[:64]!r} is not in a file of its own: change it where it is.", "not_rotatable"
                )
            try:
                token = replace_token(path)
            except OSError as error:
                raise RequestRejected(503, f"The token was not replaced: {error.strerror}.", "write_failed") from None
            self._load()
        return token

    def apply(self, settings: Settings) -> None:
        """Use the tokens of other settings. Raises InvalidInput, and changes nothing, if one cannot be read."""
        with self._lock:
            before, self._settings = self._settings, settings
            try:
                self._load(strict=True)
            except InvalidInput:
                self._settings = before
                raise

    def _refresh(self) -> None:
        if not self._lock.acquire(blocking=False):  # an earlier look still waits for the disk
            return
        try:
            if any(_stamp(path) != stamp or stamp is None for path, stamp in self._stamps.items()):
                self._load()
        except OSError as error:
            log.warning("Admin tokens not checked: %s", error)
        finally:
            self._lock.release()

    def _files(self) -> dict[str, Path]:
        found = {each.name: each.token_file for each in self._settings.admin_tokens if each.token_file is not None}
        if self._folder is not None and self._settings.fixed_admin_token is None:
            found[ADMIN] = self._folder / TOKEN
        return found

    def _load(self, *, strict: bool = False) -> None:
        """Read all tokens. Those that cannot be read are invalid; with `strict` they raise InvalidInput."""
        identities: dict[bytes, Identity] = {}
        stamps: dict[Path, Stamp | None] = {}
        files = self._files()
        for entry in (None, *self._settings.admin_tokens):
            name = ADMIN if entry is None else entry.name
            path = files.get(name)
            try:
                stamp = None if path is None else _stamp(path)
                identity = self._read(entry)
                if path is not None and stamp is None:  # it was just created
                    stamp = _stamp(path)
                if identity.digest in identities:
                    raise InvalidInput(f"it is the same as {identities[identity.digest].name!r}")
            except (InvalidInput, OSError) as error:
                if strict:
                    raise InvalidInput(f"admin token {name!r}: {error}") from None
                log.error("Admin token %r is not accepted: %s", name, error)
                stamp = None
            else:
                identities[identity.digest] = identity
            if path is not None:
                stamps[path] = stamp
        self._identities, self._stamps = identities, stamps

    def _read(self, entry: AdminTokenSettings | None) -> Identity:
        """Read the token of a setting; None: the token `admin`. Raises InvalidInput or OSError."""
        if entry is None:
            return _identity(ADMIN, "operator", self._admin_token())
        if entry.digest is not None:
            return Identity(entry.name, entry.role, bytes.fromhex(entry.digest.removeprefix("sha256:")), False)
        if entry.token_env is not None:
            return _identity(entry.name, entry.role, os.environ.get(entry.token_env, ""))
        assert entry.token_file is not None
        return _identity(entry.name, entry.role, read_token(entry.token_file))

    def _admin_token(self) -> str:
        fixed = self._settings.fixed_admin_token
        if fixed is not None:
            return fixed
        return self._generated if self._folder is None else admin_token(self._folder)


def token_digest(token: str) -> bytes:
    """Return the digest that a token is known by."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _identity(name: str, role: Role, token: str) -> Identity:
    return Identity(name, role, token_digest(token), len(token) < LONG)


def _stamp(path: Path) -> Stamp | None:
    """Return what changes with a file's content; None: it is missing. Raises OSError if the disk fails."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
