"""Every error knapcache raises on purpose.

KnapcacheError
├── InvalidInput (also ValueError)    an argument, a file or an option that cannot be used: says what is allowed
├── MissingExtra (also ImportError)   a package that is not installed: says which extra brings it
├── Uncacheable (also ValueError)     a request that no key can be made for: says why and where; it may still be sent
├── Incomplete (also ValueError)      an answer that is not whole, or failed: it may be given, and is not kept
├── NotCached (also LookupError)      a request that was to be answered from the cache alone, and has no answer there
├── ClusterFailed                     a cluster that cannot be reached, runs other code, or lost its workers: says which
├── UpstreamFailed                    a provider that cannot be reached, or broke off: says who, and a status
├── CorruptState                      check() found that totals and reality differ: a bug, never the user's fault
└── StoreError                        a store could not do it now (disk full, locked, damaged): answer, and do not keep
    └── NotOwner                      another process writes to this store: read, or hand over
"""

from __future__ import annotations


class KnapcacheError(Exception):
    """Root of the tree: catch this to catch everything knapcache raises on purpose."""


class InvalidInput(KnapcacheError, ValueError):  # noqa: N818 - reads as what it is, as in the drawing above
    """An argument, a file or an option cannot be used."""


class MissingExtra(KnapcacheError, ImportError):  # noqa: N818
    """An optional package is not installed."""


class Uncacheable(KnapcacheError, ValueError):  # noqa: N818
    """No key can be made for a request: it is not JSON, means two things, or depends on what it does not say."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{reason} at {path}" if path else reason)
        self.reason = reason
        self.path = path
        """Where in the request, as in `messages[0].content`; empty when it is the whole of it."""

    def __reduce__(self) -> tuple[type[Uncacheable], tuple[str, str]]:
        return Uncacheable, (self.reason, self.path)


class Incomplete(KnapcacheError, ValueError):  # noqa: N818
    """An answer is not whole: it was cut off, reports an error, or is not what its endpoint answers with."""


class NotCached(KnapcacheError, LookupError):  # noqa: N818
    """Only a kept answer was asked for, and there is none."""


class ClusterFailed(KnapcacheError):  # noqa: N818
    """A cluster cannot do the work."""


class UpstreamFailed(KnapcacheError):  # noqa: N818
    """A provider did not answer."""

    def __init__(self, status: int, message: str, safe_to_retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        """What a caller is told."""
        self.safe_to_retry = safe_to_retry
        """Nothing of an answer had come: the call may be made again."""

    def __reduce__(self) -> tuple[type[UpstreamFailed], tuple[int, str, bool]]:
        return UpstreamFailed, (self.status, str(self), self.safe_to_retry)


class CorruptState(KnapcacheError):  # noqa: N818
    """Totals and reality differ."""


class StoreError(KnapcacheError):
    """A store could not do what was asked. Nothing is half done, and the store goes on."""


class NotOwner(StoreError):  # noqa: N818
    """Another process owns the store and does the writing."""
