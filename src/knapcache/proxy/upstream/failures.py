"""Network errors of the upstream client, and the UpstreamFailed that callers get for them.

The message names the upstream and says in plain words why it failed. It never contains an address: it is sent to
clients, and the upstream's address may be private.
"""

from __future__ import annotations

import errno
import socket
import ssl

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


class ModelNotReady(ConnectionError):  # noqa: N818 - named like ConnectionRefusedError
    """The embedded model does not run. The text says why."""


class TimeLimit(TimeoutError):  # noqa: N818 - named like TimeoutError
    """A time limit of the client has passed. The text says which one."""

    def __init__(self, text: str = "no answer in time") -> None:
        super().__init__(text)


class TotalTimeout(TimeLimit):
    """The exchange took longer than the client's total_timeout."""


REASONS: tuple[tuple[type[Exception], str], ...] = (
    (ConnectionRefusedError, "connection refused"),
    (ConnectionResetError, "connection reset"),
    (BrokenPipeError, "connection closed before the answer was complete"),
    (ConnectionLost, "connection closed before the answer was complete"),
    (ProtocolError, "its answer is not valid HTTP"),
    (ssl.SSLError, "TLS handshake failed"),
    (TimeoutError, "no answer in time"),
)
UNREACHABLE = {errno.EHOSTUNREACH: "host not reachable", errno.ENETUNREACH: "network not reachable"}


def reason_of(error: Exception) -> str:
    """Return why a call failed, in plain words and without an address."""
    if isinstance(error, TimeLimit | ModelNotReady):
        return str(error)
    if isinstance(error, ProxyRefused):
        why = " (proxy authentication required)" if error.status == 407 else ""
        return f"its proxy refused with status {error.status}{why}"
    if isinstance(error, socket.gaierror):
        return "the lookup of its host name failed" if error.errno == socket.EAI_AGAIN else "host name not found"
    if isinstance(error, ssl.SSLCertVerificationError):
        # What follows a comma is the name or address that was compared.
        return f"TLS certificate not valid: {str(error.verify_message).partition(',')[0]}"
    for kind, words in REASONS:
        if isinstance(error, kind):
            return words
    if isinstance(error, OSError) and error.errno in UNREACHABLE:
        return UNREACHABLE[error.errno]
    return f"connection failed ({type(error).__name__})"


def without_traceback(error: Exception) -> Exception:
    """Drop the traceback: its frames refer to the response, and the response refers to the error."""
    return error.with_traceback(None)


def upstream_failed(name: str, error: Exception, *, safe_to_retry: bool = False) -> UpstreamFailed:
    """Convert a network error."""
    status, reason = 504 if isinstance(error, TimeoutError) else 502, reason_of(error)
    return UpstreamFailed(status, f"upstream {name} failed: {reason}", safe_to_retry, reason)
