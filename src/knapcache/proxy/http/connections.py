"""The open connections of a process: how long each may wait, and how many there may be.

One sweep looks at all connections, about once a second. It reads the stage of each one from what the protocol stores
anyway, so a request costs no timer. A timeout may be late by two intervals.

    stage       what the connection waits for           timeout
    HEAD        the rest of a head, or the first one    head_timeout
    BODY        the rest of a body                      body_timeout, and one second more per MIN_RATE bytes received
    IDLE        the next request                        idle_timeout
    UNREAD      the client must read what was written   write_timeout without progress
    CLOSING     the end of the connection: everything   write_timeout
                was written, or the client has left
    BUSY        the response of the application         none; upstreams have timeouts of their own
    LINGERING   the client must read an error           LINGER_SECONDS

    Invariant: at most max_connections are open, of one address at most max_connections_per_address, and beside them at
    most MAX_REFUSED that get an error. Addresses in trusted_proxies have no share of their own.

If there is no room for a new connection, one in CLOSING, LINGERING, IDLE, HEAD or BODY is closed for it: of the address
with the most connections, in the order of these stages, the oldest first. If all are busy, the new one is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from enum import IntEnum
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from knapcache.proxy.settings import Settings

log = logging.getLogger("knapcache.serve")

INTERVAL = 1.0
"""Seconds between two sweeps. Shorter timeouts shorten it."""
RANK_INTERVAL = 25e-6
"""Seconds per open connection between two searches for connections that may be closed. A search visits all
connections and takes a tenth of that time."""
LINGER_SECONDS = 5.0
"""Seconds that a connection stays half open after an error, so that a client that is still sending can read it."""
MIN_RATE = 10_000
"""Bytes of a body for which a client gets another second."""
STAGE_WEIGHT = 1e10
"""More seconds than a clock shows."""
MAX_REFUSED = 100
"""Connections beyond the limit that are answered with status 503. Further ones are closed without an answer."""
WARNING_INTERVAL = 60.0
"""Seconds between two warnings about refused connections."""


class Stage(IntEnum):
    """What a connection waits for. The order is the order in which they are closed when there is no room."""

    CLOSING = 0
    LINGERING = 1
    IDLE = 2
    HEAD = 3
    BODY = 4
    UNREAD = 5
    BUSY = 6


CLOSING, LINGERING, IDLE, HEAD, BODY, UNREAD, BUSY = Stage


class ClientConnection(Protocol):
    """What a connection offers to the sweep."""

    client: tuple[str, int] | None
    body_size: int
    """Bytes of the current body that have arrived."""

    def stage(self) -> tuple[Stage, int]:
        """Return the stage, and a number that changes when the connection makes progress."""

    def expire(self, stage: Stage) -> None:
        """Close the connection: its stage took too long."""

    def evict(self) -> None:
        """Close the connection: another one needs the room."""


Candidate = tuple[ClientConnection, tuple[Stage, int]]
"""A connection that may be closed, and what it was waiting for."""


class Visit:
    """What the last sweep saw of a connection."""

    __slots__ = ("address", "mark", "since", "stage")

    def __init__(self, address: str, since: float) -> None:
        self.address, self.since = address, since
        self.stage, self.mark = HEAD, 0


class Connections:
    """The open connections of one process. on_refused: called with the status of an error that the edge sends."""

    def __init__(
        self,
        settings: Settings,
        on_refused: Callable[[int], Any] = lambda _status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_headers, self.max_header_count = settings.max_headers, settings.max_header_count
        self.max_body, self.on_refused = settings.max_body, on_refused
        self._clock = clock
        self._timeouts = {
            HEAD: settings.head_timeout,
            BODY: settings.body_timeout,
            IDLE: settings.idle_timeout,
            UNREAD: settings.write_timeout,
            CLOSING: settings.write_timeout,
            LINGERING: LINGER_SECONDS,
        }
        self._interval = min(INTERVAL, min(self._timeouts.values()) / 4)
        self._max, self._max_per_address = settings.max_connections, settings.max_connections_per_address
        self._trusted = [ip_network(network) for network in settings.trusted_proxies]
        self._open: dict[ClientConnection, Visit] = {}
        self._counts: Counter[str] = Counter()
        self._refused: dict[ClientConnection, float] = {}
        """Refused connections, and when they came."""
        self._ranked: deque[Candidate] = deque()
        """Connections that may be closed, in this order."""
        self._ranked_by_address: dict[str, deque[Candidate]] = {}
        self._ranked_at = self._warned_at = -WARNING_INTERVAL
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def reduce(self, most: int) -> None:
        """Accept fewer connections than the settings say, because the process may open fewer files."""
        self._max = min(self._max, most)
        self._max_per_address = min(self._max_per_address, most)

    def add(self, connection: ClientConnection) -> bool:
        """Add a new connection. Return False if there is no room for it."""
        address, trusted = self._address(connection)
        if (trusted or self._counts[address] < self._max_per_address or self._make_room(address)) and (
            len(self._open) < self._max or self._make_room()
        ):
            self._open[connection] = Visit(address, self._clock())
            self._counts[address] += 1
            self._start()
            return True
        self._warn(address)
        return False

    def add_refused(self, connection: ClientConnection) -> bool:
        """Add a connection that gets an error, because there is no room. Return False if there are too many of them."""
        if len(self._refused) >= MAX_REFUSED:
            return False
        self._refused[connection] = self._clock()
        self._start()
        return True

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection that has closed, or will close at once."""
        visit = self._open.pop(connection, None)
        if visit is None:
            self._refused.pop(connection, None)
            return
        self._counts[visit.address] -= 1
        if not self._counts[visit.address]:
            del self._counts[visit.address]

    def check(self) -> None:
        """Compare the counts with the connections."""
        assert Counter(visit.address for visit in self._open.values()) == self._counts
        assert len(self._refused) <= MAX_REFUSED

    def _address(self, connection: ClientConnection) -> tuple[str, bool]:
        """Return the address that the connection is counted for, and whether it is a trusted proxy.

        A host usually has a whole IPv6 network of 64 bits.
        """
        try:
            address = ip_address(connection.client[0].partition("%")[0]) if connection.client else None
        except ValueError:
            address = None
        if address is None:  # a Unix socket
            return "", True
        if isinstance(address, IPv6Address):
            if address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            else:
                trusted = any(address in network for network in self._trusted)
                return f"{int(address) >> 64:x}::/64", trusted
        return str(address), any(address in network for network in self._trusted)

    # Timeouts.

    def _start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._sweep)

    def _sweep(self) -> None:
        """Close connections whose stage takes too long. The next sweep is scheduled while connections are open."""
        self._timer = None
        now = self._clock()
        try:
            for connection, visit in list(self._open.items()):
                self._check_stage(connection, visit, now)
            for connection, since in list(self._refused.items()):
                if now - since >= LINGER_SECONDS:
                    connection.evict()
        finally:
            if self._open or self._refused:
                self._start()

    def _check_stage(self, connection: ClientConnection, visit: Visit, now: float) -> None:
        stage, mark = connection.stage()
        if stage is not visit.stage or mark != visit.mark:
            visit.stage, visit.mark, visit.since = stage, mark, now
        elif stage is not BUSY:
            allowed = self._timeouts[stage] + (connection.body_size / MIN_RATE if stage is BODY else 0.0)
            if now - visit.since >= allowed:
                connection.expire(stage)

    # Room for new connections.

    def _make_room(self, address: str | None = None) -> bool:
        """Close a connection that waits for its client; if an address is given, one of it. Return False if none does.

        A connection is closed only if it still waits for what it was waiting for when the connections were ranked.
        """
        now = self._clock()
        if now - self._ranked_at >= INTERVAL:
            self._rank(now)
        queue = self._queue(address)
        while True:
            while queue:
                connection, waiting = queue.popleft()
                if connection in self._open and connection.stage() == waiting:
                    self.remove(connection)
                    connection.evict()
                    return True
            if now - self._ranked_at < RANK_INTERVAL * len(self._open):
                return False
            self._rank(now)
            queue = self._queue(address)

    def _queue(self, address: str | None) -> deque[Candidate]:
        return self._ranked if address is None else self._ranked_by_address.get(address, deque())

    def _rank(self, now: float) -> None:
        """Sort the connections that may be closed: those of the address with the most of them first."""
        self._ranked_at = now
        found: dict[str, list[tuple[float, int, Candidate]]] = {}
        for number, (connection, visit) in enumerate(self._open.items()):
            stage, mark = waiting = connection.stage()
            if stage <= BODY:
                since = visit.since if stage is visit.stage and mark == visit.mark else now
                rank = stage * STAGE_WEIGHT + since  # one number sorts ten times as fast as a tuple
                found.setdefault(visit.address, []).append((rank, number, (connection, waiting)))
        addresses = sorted(found, key=self._counts.__getitem__, reverse=True)
        sorted_by_address = {address: [candidate for *_, candidate in sorted(found[address])] for address in addresses}
        self._ranked = deque(chain.from_iterable(sorted_by_address.values()))
        self._ranked_by_address = {address: deque(queue) for address, queue in sorted_by_address.items()}

    def _warn(self, address: str) -> None:
        now = self._clock()
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            log.warning(
                "Connections refused: %d are open (max_connections is %d), %d of them from %s "
                "(max_connections_per_address is %d), and all are busy.",
                len(self._open),
                self._max,
                self._counts[address],
                address,
                self._max_per_address,
            )
