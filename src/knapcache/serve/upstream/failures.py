"""Network errors of the upstream client, and the UpstreamFailed that callers get for them."""

from __future__ import annotations

from knapcache.errors import UpstreamFailed


class ConnectionLost(OSError):  # noqa: N818 - named like asyncio's connection_lost
    """The connection was closed before the exchange was complete."""


class ProtocolError(OSError):
    """The upstream's bytes are not valid HTTP/1.1, exceed a limit, or are in an encoding that was not requested."""


class ProxyRefused(OSError):  # noqa: N818 - named like ConnectionRefusedError
    """The proxy answered a request, or CONNECT, with an error of its own."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the proxy refused with status {status}")
        self.status = status


class TotalTimeout(TimeoutError):  # noqa: N818 - named like TimeoutError
    """The exchange took longer than the client's total_timeout."""


def without_traceback(error: Exception) -> Exception:
    """Drop the traceback: its frames refer to the response, and the response refers to the error."""
    return error.with_traceback(None)


def upstream_failed(name: str, error: Exception, *, safe_to_retry: bool = False) -> UpstreamFailed:
    """Convert a network error. The message holds the upstream's name and the kind of error, and never an address."""
    if isinstance(error, TotalTimeout):
        return UpstreamFailed(504, f"{name} did not complete its answer in time", safe_to_retry)
    if isinstance(error, TimeoutError):
        return UpstreamFailed(504, f"{name} did not answer in time", safe_to_retry)
    if isinstance(error, ProxyRefused):
        why = " (proxy authentication required)" if error.status == 407 else ""
        message = f"{name} cannot be reached: its proxy refused with status {error.status}{why}"
        return UpstreamFailed(502, message, safe_to_retry)
    return UpstreamFailed(
        502, f"{name} cannot be reached, or closed the connection: {type(error).__name__}", safe_to_retry
    )
