"""Sockets that limit a reply: its bytes, and the time from the command to its last byte.

The client's own timeout is that of one read. So a server that sends a byte now and then would keep a thread for ever,
and one that sends an endless string would fill the memory.
"""

from __future__ import annotations

import re
import time
from typing import Any

MAX_REPLY_BYTES = 256 << 20
"""More than any reply of the store: entries of at most 16 MiB, some in one reply."""
REPLY_TIMEOUTS = 8
"""Timeouts that a whole reply may take: a large entry needs several reads."""


_HUGE_ARRAY = re.compile(rb"(?:\*\d+\r\n)*\*\d{8,}\r\n")
"""Beginning of an array of more than ten million elements: the client's parser would allocate it as a whole."""


class BoundedSocket:
    """A socket of a connection on which commands and replies alternate."""

    def __init__(self, sock: Any, seconds: float) -> None:
        self._sock, self._seconds = sock, seconds
        self._received, self._deadline = 0, time.monotonic() + seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, *given: Any) -> None:
        """Send a command. Its reply begins."""
        self._received, self._deadline = 0, time.monotonic() + self._seconds
        self._sock.sendall(*given)

    def recv_into(self, *given: Any) -> int:
        """Receive a part of the reply. TimeoutError if it takes too long, OSError if it is too long."""
        if time.monotonic() > self._deadline:
            raise TimeoutError("the reply has taken too long")
        count: int = self._sock.recv_into(*given)
        if not self._received and _HUGE_ARRAY.match(given[0][:64]):
            raise ConnectionResetError("the reply has too many elements")
        self._received += count
        if self._received > MAX_REPLY_BYTES:
            raise ConnectionResetError("the reply is too long")
        return count


def bound_replies(client: Any, timeout: float) -> None:
    """Limit the replies to a client. It has not connected yet."""
    pool = client.connection_pool
    connection_class = pool.connection_class

    class BoundedConnection(connection_class):  # type: ignore[misc,valid-type]
        def _connect(self) -> Any:
            return BoundedSocket(super()._connect(), timeout * REPLY_TIMEOUTS)

    pool.connection_class = BoundedConnection
