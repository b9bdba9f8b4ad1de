"""All exceptions that knapcache raises on purpose.

KnapcacheError
├── InvalidInput (also ValueError)    an argument, file or option is not usable; the message says what is allowed
├── MissingExtra (also ImportError)   an optional package is not installed; the message has the command for it
├── Uncacheable (also ValueError)     a request has no cache key; it may still be sent upstream
├── Unserializable (also ValueError)  a function's result cannot be stored, or a stored one cannot be read
├── Incomplete (also ValueError)      an answer is truncated or an error; it may be returned but is not stored
├── NotCached (also LookupError)      the caller allowed only a cached answer, and there is none
├── ClusterFailed                     a compute cluster is unreachable, runs different code, or lost its workers
├── UpstreamFailed                    a provider is unreachable, or the connection broke; has an HTTP status
├── CorruptState                      check() found an inconsistency: a bug in knapcache, not a user error
└── StoreError                        the store failed (disk full, locked, damaged); the answer is not stored
    └── NotOwner                      another process owns the store and writes to it; this one may only read
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Collection
from pathlib import Path

SQLITE_MODULES = ("apsw", "sqlite3")
MAKE_TARGETS = ("lab", "redis", "semantic")
"""Extras that the Makefile has a target for. `make setup` installs all extras."""


class KnapcacheError(Exception):
    """Base class of all exceptions that knapcache raises on purpose."""

    @property
    def public(self) -> str:
        """The message without parts of a request. A class whose message may quote one overrides it."""
        return str(self)


class InvalidInput(KnapcacheError, ValueError):  # noqa: N818 - the tree above reads better without "Error"
    """An argument, a file or an option is not usable."""


class MissingExtra(KnapcacheError, ImportError):  # noqa: N818
    """An optional package is not installed."""


class Uncacheable(KnapcacheError, ValueError):  # noqa: N818
    """A request has no cache key: it is not JSON, is ambiguous, or depends on data outside the request."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{reason} at {path}" if path else reason)
        self.reason = reason
        self.path = path
        """Location in the request, such as `messages[0].content`; empty for the whole request."""

    @property
    def public(self) -> str:
        """The reason alone: a path has names that the caller chose."""
        return self.reason

    def __reduce__(self) -> tuple[type[Uncacheable], tuple[str, str]]:
        return Uncacheable, (self.reason, self.path)


class Unserializable(KnapcacheError, ValueError):  # noqa: N818
    """A value cannot be stored, or a stored value cannot be read."""


class Incomplete(KnapcacheError, ValueError):  # noqa: N818
    """An answer is truncated, reports an error, or does not have the format of its endpoint."""


class NotCached(KnapcacheError, LookupError):  # noqa: N818
    """The caller allowed only a cached answer, and there is none."""


class ClusterFailed(KnapcacheError):  # noqa: N818
    """A compute cluster is unreachable, runs different code, or lost its workers."""


class UpstreamFailed(KnapcacheError):  # noqa: N818
    """A provider is unreachable, or the connection to it broke."""

    def __init__(self, status: int, message: str, safe_to_retry: bool = False, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status to send to the client."""
        self.safe_to_retry = safe_to_retry
        """True if no byte of the response had arrived, so the request may be retried."""
        self.reason = reason
        """Why, in plain words and without the name of the provider; empty if the provider itself has not failed."""

    def __reduce__(self) -> tuple[type[UpstreamFailed], tuple[int, str, bool, str]]:
        return UpstreamFailed, (self.status, str(self), self.safe_to_retry, self.reason)


class CorruptState(KnapcacheError):  # noqa: N818
    """Stored totals differ from recomputed ones: a bug in knapcache."""


class StoreError(KnapcacheError):
    """A store operation failed. It had no partial effect, and the store remains usable."""


class NotOwner(StoreError):  # noqa: N818
    """Another process owns the store and writes to it."""


def install_command(extra: str, pip: str = "") -> str:
    """Return the command that installs an extra into the environment of this process.

    It is a make target in the .venv that `make` built in a checkout, and a pip command elsewhere. In a .venv that the
    user built it is pip, because make would clear that .venv.

    pip   the pip command, if it is another one than `pip install 'knapcache[EXTRA]'`
    """
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    environment = checkout / ".venv"
    built_by_make = package == checkout / "src" / "knapcache" and (environment / ".ready-run").exists()
    if not built_by_make or Path(sys.prefix).resolve() != environment.resolve():
        return (pip or f"pip install 'knapcache[{extra}]'").replace("pip install", f"{_pip()} install")
    directory = "" if os.path.samefile(os.curdir, checkout) else f"-C {shlex.quote(str(checkout))} "
    return f"make {directory}{extra if extra in MAKE_TARGETS else 'setup'}"


def _pip() -> str:
    """Return the command that runs the pip of this environment: `pip`, unless the path leads to another one."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def public_text(error: BaseException) -> str:
    """Return what may be logged and shown of an exception: its message, or its type and where it was raised.

    The message of another library's exception may quote its input, which may be a prompt. Messages of the operating
    system and of SQLite are about files, hosts and tables.
    """
    kind = type(error).__qualname__
    if isinstance(error, KnapcacheError):
        return error.public or kind
    module = type(error).__module__
    ours = module.startswith("knapcache.")
    if module in SQLITE_MODULES or (isinstance(error, OSError) and (ours or error.errno is not None)):
        return str(error) or kind
    frames = traceback.extract_tb(error.__traceback__)
    return f"{kind} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else kind


def suggestion(name: str, allowed: Collection[str], otherwise: str | None = None) -> str:
    """Return what an error says after an unknown name: the closest allowed one, else `otherwise`, else all of them."""
    if close := difflib.get_close_matches(name, allowed, 1):
        return f": did you mean {close[0]}?"
    text = (f"it must be one of {', '.join(allowed)}" if allowed else "") if otherwise is None else otherwise
    return f": {text}" if text else ""


def reason_text(error: Exception) -> str:
    """Return why a file could not be read or written. Without the number and the path that str(OSError) has."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text in UTF-8 (byte {error.start + 1})"
    if isinstance(error, json.JSONDecodeError):
        if not error.doc.strip():
            return "it is empty"
        return f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    return str(error)
