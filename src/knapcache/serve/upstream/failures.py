"""What may go wrong on the way to a provider, and what a caller is told of it."""

from __future__ import annotations

from knapcache.errors import UpstreamFailed


class ConnectionLost(OSError):  # noqa: N818
    """The other side ended the connection in the middle of an exchange."""


class ProtocolError(OSError):
    """What came is no HTTP, or packed in a way that was not asked for."""


def without_traceback(error: OSError) -> OSError:
    """Without the frames that it was raised in: they hold the response, which holds the error."""
    return error.with_traceback(None)


def upstream_failed(name: str, error: Exception, *, safe_to_retry: bool = False) -> UpstreamFailed:
    """What a caller is told: who, and what kind of trouble; no address, for it may be nobody's business."""
    if isinstance(error, TimeoutError):
        return UpstreamFailed(504, f"{name} did not answer in time", safe_to_retry)
    return UpstreamFailed(502, f"{name} cannot be reached, or broke off: {type(error).__name__}", safe_to_retry)
