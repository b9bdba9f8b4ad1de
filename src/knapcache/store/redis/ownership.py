"""Ownership of a store in the server: a lease and an epoch. The thread of membership.py renews it.

The owner's token is a key that lasts LEASE_SECONDS by the server's clock. It is renewed three times as often. Each new
owner gets a higher epoch: the server's time in microseconds, so that it also rises when a failover has lost the last
one. A process that writes with a lower epoch is fenced, so an owner that was stopped and wakes up does no harm. An
owner whose lease ran out while the server was away goes on, unless another process has acquired the store since.
"""

from __future__ import annotations

import contextlib
import secrets
import time

from knapcache.errors import StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import KeyNames
from knapcache.store.redis.server import RedisServer, as_number

LEASE_SECONDS = 3.0


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
        """Leave the ownership to others, now rather than at the end of the lease, if the server answers."""
        if self.epoch is not None:
            self.epoch = None
            with contextlib.suppress(StoreError):
                self._server.run(scripts.RELEASE, [self._names.owner], self._token)
