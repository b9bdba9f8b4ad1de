"""Single flight across machines: the process that holds the lease on a key calls the upstream, the others wait.

    lead(key) →  Entry      the answer is there
                 KeyLease   this process calls; it hands the answer over (or applies it), then releases the lease
                 None       another process calls: ask again after POLL_SECONDS

The lease is a key with a life time by the engine's clock, so a process that dies does not block a key for longer than
that. The holder renews it at a third of its life. While the engine does not answer, `lead` returns a lease that no
other process knows of: every process calls for itself, and no request waits.

Rejected: a message to those who wait. It can be lost, so they would have to ask again all the same, and one question
every POLL_SECONDS costs the engine less than a tenth of a millisecond.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from knapcache.errors import StoreError
from knapcache.store.base import Entry
from knapcache.store.redis import scripts
from knapcache.store.redis.engine import Engine

LEASE_SECONDS = 10.0
POLL_SECONDS = 0.05


class KeyLease:
    """The right to call the upstream for a key. `key` is empty if the engine did not answer."""

    def __init__(self, engine: Engine, key: bytes, token: bytes, seconds: float) -> None:
        self._engine, self._key, self._token = engine, key, token
        self._milliseconds = int(seconds * 1000)
        self.renewal_seconds = seconds / 3
        """Seconds after which it should be renewed."""

    @property
    def is_known(self) -> bool:
        """Whether other processes respect it."""
        return bool(self._key)

    def renew(self) -> bool:
        """Extend the lease. Return False if it ran out and another process may call, or the engine does not answer."""
        if not self._key:
            return False
        try:
            return bool(self._engine.run(scripts.RENEW_KEY, [self._key], self._token, self._milliseconds))
        except StoreError:
            return False

    def release(self) -> None:
        """Let others call, or find the answer. An engine that does not answer lets the lease run out."""
        if self._key:
            try:
                self._engine.run(scripts.RELEASE, [self._key], self._token)
            except StoreError:
                return


def lead(
    engine: Engine,
    lease_key: bytes,
    value_keys: Sequence[bytes],
    accept: Callable[[bytes], Entry | None],
    seconds: float,
) -> Entry | KeyLease | None:
    """Return the answer, a lease, or None while another process has the lease; StoreError if the engine is away.

    accept   returns the entry of a value, or None if it cannot be used; that is as if there were none
    """
    token = secrets.token_bytes(16)
    found = engine.run(scripts.LEAD, [lease_key, *value_keys], token, int(seconds * 1000))
    if isinstance(found, bytes):
        if (entry := accept(found)) is not None:
            return entry
        found = engine.run(scripts.LEAD, [lease_key], token, int(seconds * 1000))
    return KeyLease(engine, lease_key, token, seconds) if found == 1 else None
