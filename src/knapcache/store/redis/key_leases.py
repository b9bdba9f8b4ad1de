"""Single flight across machines: the process that holds the lease on a key calls the upstream, the others wait.

    lead(key) →  Entry      the answer is there
                 KeyLease   this process calls; `end` when its answer is handed over or stored, or when there is none
                 None       another process calls: ask again after a moment

The lease is a key with a life time by the server's clock, so a process that dies does not block a key for longer than
that. The holder renews it at a third of its life. While the server does not answer, `lead` returns a lease that no
other process knows of: every process calls for itself, and no request waits. A server that was stopped executes the
commands of callers that have given up. So a lease whose command had no answer is ended when the server answers again.

A reader hands its answer over before it ends the lease, so those who wait find it in the nursery. The owner may have
decided not to store its answer. If others wait for it, `end` leaves it in the nursery for them.

Rejected: a message to those who wait. It can be lost, so they would have to ask again all the same, and a request
costs the server less than a tenth of a millisecond.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from knapcache.errors import StoreError
from knapcache.store.base import Entry
from knapcache.store.redis import scripts
from knapcache.store.redis.server import RedisServer, ServerAway

LEASE_SECONDS = 10.0
MAX_LATE = 10_000
"""Leases that wait for a server that does not answer."""


class KeyLease:
    """The right to call the upstream for a key.

    key      the server's key of the lease; empty if the server did not answer
    stored   the server's key of the admitted entry
    leave    puts an answer where those who wait find it
    """

    def __init__(
        self,
        leases: KeyLeases,
        key: bytes = b"",
        stored: bytes = b"",
        leave: Callable[[Entry], None] = lambda _: None,
        seconds: float = LEASE_SECONDS,
    ) -> None:
        self._leases, self._key, self._stored, self._leave = leases, key, stored, leave
        self.token = secrets.token_bytes(16)
        self.milliseconds = int(seconds * 1000)
        self.renewed = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it should be renewed."""
        return time.monotonic() - self.renewed >= self.milliseconds / 3000

    def renew(self) -> bool:
        """Extend the lease. Return False if it ran out and another process may call; StoreError without an answer."""
        now = time.monotonic()
        renewed = bool(self._leases.server.run(scripts.RENEW_KEY, [self._key], self.token, self.milliseconds))
        self.renewed = now if renewed else self.renewed
        return renewed

    def end(self, answer: Entry | None = None) -> None:
        """Let others call, or find the answer. If the server does not answer, that happens when it does."""
        if not self._leases.remove(self):
            return
        try:
            if self._end(answer is not None) and answer is not None:
                with contextlib.suppress(StoreError):  # larger than the nursery: others call for themselves
                    self._leave(answer)
                self._end(False)
        except StoreError:
            self._leases.end_later(self)

    def end_late(self) -> None:
        """Let others call; StoreError if the server does not answer."""
        self._end(False)

    @property
    def has_run_out(self) -> bool:
        """Whether the server has removed the lease by itself."""
        return time.monotonic() - self.renewed >= self.milliseconds / 1000

    def _end(self, has_answer: bool) -> bool:
        """Remove the lease, unless others wait for an answer that is not stored. Return whether they do."""
        keys = [self._key, self._stored]
        return bool(self._leases.server.run(scripts.END_LEASE, keys, self.token, int(has_answer)))


class KeyLeases:
    """The leases that this process holds."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._held: set[KeyLease] = set()
        self._late: set[KeyLease] = set()  # to be ended when the server answers

    def lead(
        self, lease: KeyLease, key: bytes, values: Sequence[bytes], accept: Callable[[bytes], Entry | None]
    ) -> Entry | KeyLease | None:
        """Return the answer, the lease, or None while another process has one; StoreError if the server is away.

        values   the server's keys of the answer
        accept   returns the entry of a value, or None if it cannot be used; that is as if there were none
        """
        try:
            found = self.server.run(scripts.LEAD, [key, *values], lease.token, lease.milliseconds)
            if isinstance(found, bytes):
                if (entry := accept(found)) is not None:
                    return entry
                found = self.server.run(scripts.LEAD, [key], lease.token, lease.milliseconds)
        except ServerAway as error:
            if error.sent:
                self.end_later(lease)
            raise
        if found != 1:
            return None
        with self._lock:
            self._held.add(lease)
        return lease

    def remove(self, lease: KeyLease) -> bool:
        """Renew a lease no longer. Return whether this process held it."""
        with self._lock:
            held = lease in self._held
            self._held.discard(lease)
            return held

    def end_all(self) -> None:
        """End all leases: this process closes the store."""
        with self._lock:
            held = list(self._held)
        for lease in held:
            lease.end()

    def end_later(self, lease: KeyLease) -> None:
        """End a lease when the server answers. At most MAX_LATE leases wait for that; others run out by themselves."""
        with self._lock:
            if len(self._late) < MAX_LATE:
                self._late.add(lease)

    def renew_due(self) -> None:
        """Renew the leases that are due. One that ran out is forgotten; StoreError if the server does not answer."""
        self._end_late()
        with self._lock:
            due = [lease for lease in self._held if lease.is_due]
        for lease in due:
            try:
                renewed = lease.renew()
            except ServerAway:
                raise
            except StoreError:  # another program has written to its key
                renewed = False
            if not renewed:
                self.remove(lease)

    def _end_late(self) -> None:
        with self._lock:
            late = list(self._late)
        for lease in late:
            try:
                if not lease.has_run_out:
                    lease.end_late()
            except StoreError:  # of a node that is still away
                continue
            with self._lock:
                self._late.discard(lease)
