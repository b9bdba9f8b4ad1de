"""Circuit breakers for the nodes of a server: a node that does not answer must not delay requests.

    closed   commands are sent
                │ one command fails, or has no reply within the timeout
                ▼
    open     commands for the node fail at once
                │ a probe of the store's background thread succeeds
                ▼
             closed

A node is the process that has a shard: a standalone server, or the primary of the shard's slot in a cluster. So
at most one request per thread waits for a node that has stopped, however many shards it has, and no request is a probe.
Nor does a request wait until a cluster has said who has the slots now: the background thread asks.
"""

from __future__ import annotations

import threading


class NodeBreakers:
    """The open breakers, and the nodes that answer and refuse writes, by the name of the node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, bytes] = {}
        self._read_only: dict[str, bytes] = {}
        self.away_reason = self.read_only_reason = ""
        """Why the last breaker opened, and the last write was refused."""
        self.opened = 0
        """How often one has opened."""

    def allows(self, node: str) -> bool:
        return node not in self._open

    def open(self, node: str, key: bytes, reason: str = "") -> None:
        """Open the breaker of a node. `key` is a key of it, for the probe."""
        with self._lock:
            self.away_reason = reason
            if node not in self._open:
                self._open = {**self._open, node: key}
                self.opened += 1

    def close(self, node: str) -> None:
        with self._lock:
            self._open = {name: key for name, key in self._open.items() if name != node}

    def refuse_writes(self, node: str, key: bytes, reason: str) -> None:
        """Note that a node refuses writes. `key` is a key of it, for the probe."""
        with self._lock:
            self._read_only = {**self._read_only, node: key}
            self.read_only_reason = reason

    def accept_writes(self, node: str) -> None:
        """Note that a node has made a write."""
        with self._lock:
            self._read_only = {name: key for name, key in self._read_only.items() if name != node}

    def read_only(self) -> dict[str, bytes]:
        """Return a key for each node that refuses writes."""
        return self._read_only

    def probes(self) -> dict[str, bytes]:
        """Return a key for each node whose breaker is open."""
        return self._open
