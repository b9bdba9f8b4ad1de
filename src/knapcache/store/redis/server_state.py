"""The state of a server as one process sees it. The log, the admin API, the page and the metrics all use it.

ok          every node that was asked answers, and takes writes
read-only   every node answers, and one takes no writes, such as at its maxmemory: stored answers are served, new ones
            are not stored, evictions are made
away        a node does not answer, or the store in the server cannot be used: requests for its answers go upstream

Circuit breakers for the nodes of a server: a node that does not answer must not delay requests.

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

import logging
import threading
import time
from typing import NamedTuple

log = logging.getLogger("knapcache.store")

OK, READ_ONLY, AWAY = "ok", "read-only", "away"


class ServerState(NamedTuple):
    """A state, since when it holds (Unix time; None for ok), and why."""

    state: str = OK
    since: float | None = None
    reason: str = ""


CLOSED = ServerState(AWAY, None, "the store is closed")


class ServerWatch:
    """Remembers the state, and logs its changes."""

    def __init__(self) -> None:
        self.current = ServerState()

    def update(self, away: str | None, read_only: str | None) -> None:
        """Set the state. away, read_only: why a node does not answer or refuses writes; None: none does."""
        before, now = self.current, time.time()
        state = AWAY if away is not None else READ_ONLY if read_only is not None else OK
        reason = ((away if away is not None else read_only) or "").rstrip(".")
        if state == before.state:
            self.current = before._replace(reason=reason)
            return
        self.current = ServerState(state, None if state == OK else now, reason)
        if state == AWAY:
            log.warning("The shared store does not answer: %s. Requests for its answers go to the upstreams.", reason)
        elif state == READ_ONLY:
            log.warning("The shared store takes no writes: %s. It serves answers, and stores no new ones.", reason)
        else:
            log.warning("The shared store is read and written again, after %.1f s.", now - (before.since or now))


class NodeBreakers:
    """The open breakers, and the nodes that answer and refuse writes, by the name of the node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.probes: dict[str, bytes] = {}
        """A key for each node whose breaker is open."""
        self.read_only: dict[str, bytes] = {}
        """A key for each node that refuses writes."""
        self.away_reason = self.read_only_reason = ""
        """Why the last breaker opened, and the last write was refused."""
        self.opened = 0
        """How often one has opened."""

    def allows(self, node: str) -> bool:
        return node not in self.probes

    def open(self, node: str, key: bytes, reason: str = "") -> None:
        """Open the breaker of a node. `key` is a key of it, for the probe."""
        with self._lock:
            self.away_reason = reason
            if node not in self.probes:
                self.probes = {**self.probes, node: key}
                self.opened += 1

    def close(self, node: str) -> None:
        with self._lock:
            self.probes = {name: key for name, key in self.probes.items() if name != node}

    def refuse_writes(self, node: str, key: bytes, reason: str) -> None:
        """Note that a node refuses writes. `key` is a key of it, for the probe."""
        with self._lock:
            self.read_only = {**self.read_only, node: key}
            self.read_only_reason = reason

    def accept_writes(self, node: str) -> None:
        """Note that a node has made a write."""
        with self._lock:
            self.read_only = {name: key for name, key in self.read_only.items() if name != node}
