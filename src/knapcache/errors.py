"""All exceptions that knapcache raises on purpose.

KnapcacheError
├── InvalidInput (also ValueError)    an argument, file or option is not usable; the message says what is allowed
├── MissingExtra (also ImportError)   an optional package is not installed; the message names the extra
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


class KnapcacheError(Exception):
    """Base class of all exceptions that knapcache raises on purpose."""


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


def reason_text(error: Exception) -> str:
    """Return why a file could not be read or written. Without the number and the path that str(OSError) has."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
