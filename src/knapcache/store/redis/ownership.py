"""Ownership of a store in the server: a lease, an epoch, and the thread that renews it.

The owner's token is a key that lasts LEASE_SECONDS by the server's clock. It is renewed three times as often. Each new
owner gets a higher epoch: the server's time in microseconds, so that it also rises when a failover has lost the last
one. A process that writes with a lower epoch is fenced, so an owner that was stopped and wakes up does no harm. An
owner whose lease ran out while the server was away goes on, unless another process has acquired the store since.

The same thread probes the nodes whose breakers are open (server_state.py).
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable

from knapcache.errors import StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import KeyNames
from knapcache.store.redis.server import RedisServer, as_number

LEASE_SECONDS = 3.0
TICK_SECONDS = 0.25


class OwnerLease:
    """The claim of one store object on the ownership."""

    def __init__(self, server: RedisServer, names: KeyNames) -> None:
        self._server, self._names = server, names
        self._token = secrets.token_hex(16).encode()
        self.epoch: int | None = None
        """The epoch while this is the owner."""
        self._renewed = 0.0

    def acquire(self, above: int = 0) -> int | None:
        """Return a new epoch that exceeds `above`, or None while another process is the owner."""
        keys = [self._names.owner, self._names.epoch]
        found = self._server.run(scripts.ACQUIRE, keys, self._token, int(LEASE_SECONDS * 1000), above)
        self.epoch, self._renewed = None if found is None else as_number(found), time.monotonic()
        return self.epoch

    def is_due(self) -> bool:
        """Return whether it is time to renew the lease."""
        return self.epoch is not None and time.monotonic() - self._renewed >= LEASE_SECONDS / 3

    def renew(self) -> bool:
        """Renew the lease. Return False when another process has become the owner."""
        now = time.monotonic()
        keys = [self._names.owner, self._names.epoch]
        renewed = self._server.run(scripts.RENEW, keys, self._token, int(LEASE_SECONDS * 1000), self.epoch)
        self._renewed = now
        return bool(renewed)

    def release(self) -> None:
        """Leave the ownership to others, now rather than at the end of the lease."""
        if self.epoch is not None:
            self.epoch = None
            self._server.run(scripts.RELEASE, [self._names.owner], self._token)


class UpkeepThread:
    """Calls a bound method every TICK_SECONDS, until it is stopped or the method's object is garbage."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = weakref.WeakMethod(tick)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="knapcache-server", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            tick = self._tick()
            if tick is None:
                return
            tick()
            del tick

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def probe_nodes(server: RedisServer, before_use: Callable[[], None]) -> None:
    """Try the nodes whose breakers are open, and ask a cluster for its topology if one does not answer."""
    found = [server.probe(node, key, before_use) for node, key in server.breakers.probes().items()]
    if not all(found):
        server.refresh()


def probe_writes(server: RedisServer) -> None:
    """Write to the nodes that refused writes."""
    for node, key in server.breakers.read_only().items():
        server.probe_write(node, key)


def release_quietly(lease: OwnerLease) -> None:
    """Release a lease. A server that does not answer lets it run out."""
    try:
        lease.release()
    except StoreError:
        return
