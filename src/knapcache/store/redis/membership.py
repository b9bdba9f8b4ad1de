"""The part of one process in a shared store: its connections, and whether it is the owner or a reader.

detached   the server has not answered yet; a background thread tries again
reader     another process is the owner, or none
owner      this process has the lease, and a writer
closed
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.key_leases import KeyLeases
from knapcache.store.redis.layout import KeyNames, ServerLayout, owner_tag
from knapcache.store.redis.nursery import Nursery
from knapcache.store.redis.ownership import OwnerLease
from knapcache.store.redis.reading import EntryReader
from knapcache.store.redis.server import WRITE_TIMEOUTS, Fenced, RedisServer, ServerAway, WritesRefused, as_number
from knapcache.store.redis.server_state import NodeBreakers, ServerWatch
from knapcache.store.redis.shard_table import ShardTable
from knapcache.store.redis.urls import Address
from knapcache.store.redis.writer import QueuedChange, ServerWriter
from knapcache.store.sqlite.rows import Sealer
from knapcache.threads import PeriodicThread

log = logging.getLogger("knapcache.store")

TICK_SECONDS = 0.25
"""How often the background thread probes, renews leases and looks at the store."""
WRITE_PROBE_SECONDS = 1.0
CHECK_SECONDS = 1.0
"""How often a process looks whether the store in the server is still its own."""
FORMAT = 1
IDENTITY = ("format", "shards", "secret", "encrypted", "since")
"""Fields of the description of a store, in the order of DESCRIBE."""
MEMORY_FACTOR = 1.3
"""The server's maxmemory, in size limits: below it, fragmentation and replication buffers may leave too little."""


class StoreIdentity(NamedTuple):
    """The values by which a store differs from another one under the same prefix."""

    shards: int
    since: str
    """When it was created, by the clock of the server."""


class Attachment:
    """The objects that need a server that has answered: the names of the keys, and the objects that use them."""

    def __init__(self, member: Membership) -> None:
        server, sealer = member.server, member.sealer
        require_no_eviction(server, member.layout)
        self.identity = describe(server, member.address, member.layout, sealer, member.identity)
        self.names = KeyNames(member.address.prefix, self.identity.shards)
        self.reader = EntryReader(server, self.names, sealer, member.names_of, member.counters)
        self.nursery = Nursery(server, self.names, sealer)
        self.lease = OwnerLease(server, self.names)


class Membership:
    """Connections and role. `names_of(key)` are the names under which an entry may be stored."""

    def __init__(
        self,
        address: Address,
        layout: ServerLayout,
        sealer: Sealer,
        names_of: Callable[[bytes], Sequence[bytes]],
        counters: Counter[str],
    ) -> None:
        """Connect. Raise what makes the server or the store in it unusable; one that does not answer is tried again."""
        self.address, self.layout, self.sealer = address, layout, sealer
        self.names_of, self.counters = names_of, counters
        self.breakers, self.watch = NodeBreakers(), ServerWatch()
        self._next_write_probe = 0.0
        self.server = RedisServer(address, address.timeout, self.breakers, refreshes=False)
        self._writing_server = RedisServer(address, address.timeout * WRITE_TIMEOUTS, self.breakers)
        self.key_leases = KeyLeases(self.server)
        self.writer: ServerWriter | None = None
        """The writer while this process is the owner."""
        self.closed = False
        self._attachment: Attachment | None = None
        self.identity: StoreIdentity | None = None
        """The store that this process has used; None: none yet."""
        self._next_check = 0.0
        self._unusable: InvalidInput | StoreError | None = None
        self._changing = threading.Lock()
        self._attach()
        if self._unusable is not None:
            self.server.close()
            raise self._unusable
        self._upkeep = PeriodicThread("knapcache-server", self._tick, TICK_SECONDS)
        self._upkeep.start()

    def attachment(self) -> Attachment:
        """Return what uses the server; StoreError if it has not answered yet."""
        if self.closed:
            raise StoreError("the store is closed")
        if self._attachment is None:
            raise StoreError(str(self._unusable or "the server has not answered yet"))
        return self._attachment

    def attached_server(self) -> RedisServer:
        """Return the server; StoreError if the store is closed or cannot be used."""
        self.attachment()
        return self.server

    def ownership(self) -> tuple[ServerWriter, Attachment]:
        """Return the writer and what uses the server; NotOwner in a reader."""
        attachment, writer = self.attachment(), self.writer
        if writer is None:
            raise NotOwner("the store is owned by another process; this one may only read it")
        return writer, attachment

    def own(self) -> bool:
        """Become the owner if there is none. Return whether this process is the owner now."""
        with self._changing:
            if self.writer is None and not self.closed:
                self._attach()
                if self._unusable is not None:
                    raise StoreError(str(self._unusable))
                if self._attachment is not None:
                    self._become_owner(self._attachment)
        return self.writer is not None

    def close(self) -> None:
        """Write what is queued, release the ownership and end the thread. The server remains open for others."""
        with self._changing:
            self.closed = True
            writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
        self._upkeep.stopped.set()
        self._upkeep.join()
        self.key_leases.end_all()
        if self._attachment is not None:
            self._attachment.lease.release()
        self._writing_server.close()

    def abandon(self) -> object:
        """Close in a forked child. Return the parent's objects, which the child must not close."""
        inherited = (self.server, self._writing_server, self.writer, self._attachment)
        self.closed, self.writer, self._attachment = True, None, None
        return inherited

    def _attach(self) -> None:
        """Prepare the store in the server, if that has not been done and the server answers."""
        if self._attachment is None and not self.closed:
            try:
                self._attachment, self._unusable = Attachment(self), None
                self.identity = self._attachment.identity
            except ServerAway:
                return
            except (InvalidInput, StoreError) as error:
                self._unusable = error

    def _verify(self, *, probe: bool = False) -> None:
        """Raise StoreError if the server has another store than this process uses. Restore a lost description."""
        if self.identity is not None and self._attachment is not None:
            found = describe(self.server, self.address, self.layout, self.sealer, self.identity, probe=probe)
            if found.shards != self._attachment.names.shards:
                raise StoreError("the store in the server was replaced by one with another number of shards")

    def _verify_before_use(self) -> None:
        """Verify the store of a server that answers again. Another node than that of the description may be away."""
        with contextlib.suppress(ServerAway):
            self._verify(probe=True)

    def _detach(self, error: StoreError) -> None:
        """Stop using the store in the server: it is another one. `_attach` tries again."""
        with self._changing:
            attachment, writer = self._attachment, self.writer
        if attachment is not None:
            attachment.lease.release()
        if writer is not None:
            self._on_fenced(writer)
            writer.fence()
        with self._changing:
            self._attachment, self._unusable = None, error
        log.error("the store cannot be used: %s", error)

    def _become_owner(self, attachment: Attachment) -> None:
        try:
            epoch = attachment.lease.acquire()
            if epoch is None:
                return
            for _ in range(attachment.names.shards + 1):
                table = ShardTable(self._writing_server, attachment.names, self.layout, epoch, self._verify)
                try:
                    table.open()
                    break
                except Fenced as fenced:  # a shard has a higher epoch, and no other process has the lease
                    if (epoch := attachment.lease.acquire(fenced.epoch)) is None:
                        return
            else:
                raise StoreError("the epochs of the shards change all the time")
        except StoreError:  # away, or replaced already: the next call tries again
            attachment.lease.release()
            return
        self.writer = ServerWriter(
            self._writing_server, attachment.names, self.layout, table, self.names_of, self.counters, self._on_fenced
        )

    def _on_fenced(self, writer: ServerWriter) -> None:
        """Become a reader: another process owns the store."""
        with self._changing:
            if self.writer is not writer:  # it was noticed before, and this process may be the owner again
                return
            self.writer = None
        if self._attachment is not None:
            self._attachment.lease.epoch = None
            self._attachment.nursery.forget()
            self.counters["ownership_lost"] += 1
            log.warning("another process has become the owner of the store; this one only reads now")

    def _tick(self) -> float:
        """Probe nodes that are away, attach, renew leases. What fails is left to the next round."""
        with contextlib.suppress(StoreError):
            self._check_store()
            self._watch_state()
            writer = self.writer
            if writer is not None and self._attachment is not None and self._attachment.lease.is_due():
                self._renew(writer, self._attachment.lease)
            self.key_leases.renew_due()
        return TICK_SECONDS

    def _check_store(self) -> None:
        """Probe nodes that are away, and verify the store in the server, or attach to it, every second."""
        try:
            self.server.probe_nodes(self._verify_before_use)
            if self._attachment is not None and time.monotonic() < self._next_check:
                return
            if self._unusable is None or time.monotonic() >= self._next_check:
                self._next_check = time.monotonic() + CHECK_SECONDS
                self._verify()
                unusable = self._unusable
                self._attach()
                if self._unusable is not None and str(self._unusable) != str(unusable):
                    log.error("the store cannot be used: %s", self._unusable)
        except (ServerAway, WritesRefused):
            return
        except StoreError as error:
            if self._attachment is not None:
                self._detach(error)

    def _watch_state(self) -> None:
        """Write to nodes that refused writes, and note the state of the server."""
        if time.monotonic() >= self._next_write_probe:
            self._next_write_probe = time.monotonic() + WRITE_PROBE_SECONDS
            with contextlib.suppress(StoreError):
                self.server.probe_writes()
        breakers = self.breakers
        away = breakers.away_reason if breakers.probes else None
        self.watch.update(
            str(self._unusable) if self._unusable is not None else away,
            breakers.read_only_reason if breakers.read_only else None,
        )

    def _renew(self, writer: ServerWriter, lease: OwnerLease) -> None:
        if not lease.renew():
            self._on_fenced(writer)
            writer.fence()
        elif writer.table.has_changed(self.server.each_primary("INFO", "replication")):
            writer.submit(QueuedChange())  # reads the totals before it does nothing


def describe(
    server: RedisServer,
    address: Address,
    layout: ServerLayout,
    sealer: Sealer,
    known: StoreIdentity | None,
    *,
    probe: bool = False,
) -> StoreIdentity:
    """Return the identity of the store in the server; StoreError for one of another format, secret or encryption.

    A server that lost its data has no description. Then this process writes the one that it knows again. If a process
    with another secret was faster, the older store wins: `since` decides, so all processes reach the same result.
    """
    new = StoreIdentity(address.shards or layout.shards(cluster=address.kind == "cluster"), "")
    wanted = [FORMAT, (known or new).shards, sealer.secret_mark.hex(), is_encrypted(sealer), (known or new).since]
    found = server.run(scripts.DESCRIBE, [owner_tag(address.prefix) + b":meta"], *wanted, probe=probe)
    return identity_in(found, address, sealer)


def identity_in(found: Sequence[bytes | None], address: Address, sealer: Sealer) -> StoreIdentity:
    """Return the identity in the values of IDENTITY. StoreError for another format, secret or encryption."""
    version, shards, secret, was_encrypted, since = (str(value or b"", "ascii", "replace") for value in found)
    place = f"the store with prefix {address.prefix!r}"
    if version != str(FORMAT):
        raise StoreError(f"{place} has format {version}; this version of knapcache reads format {FORMAT}")
    if secret != sealer.secret_mark.hex():
        raise StoreError(f"{place} was written with another secret; all processes must use the same secret")
    if was_encrypted != str(is_encrypted(sealer)):
        form = "encrypted: it needs encryption_key" if was_encrypted == "1" else "not encrypted: it takes no key"
        raise StoreError(f"{place} is {form}")
    if not shards.isdigit() or not int(shards):
        raise StoreError(f"{place} is damaged: it has {shards!r} shards")
    return StoreIdentity(int(shards), since)


def is_encrypted(sealer: Sealer) -> int:
    """Return what the description of a store has for its encryption: 0 or 1."""
    return 0 if sealer.encryption is None else 1


def require_no_eviction(server: RedisServer, layout: ServerLayout) -> None:
    """Raise InvalidInput if a primary may evict keys by itself: the totals would be wrong."""
    limits = []
    for info in server.each_primary("INFO", "memory").values():
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise InvalidInput(
                f"maxmemory-policy of the server must be noeviction, not {policy}: knapcache decides what to evict"
            )
        limits.append(as_number(info.get("maxmemory", 0)))
    if all(limits) and sum(limits) < MEMORY_FACTOR * layout.size_limit:
        log.warning(
            "maxmemory of the server is %d bytes; a cache of %d bytes needs at least %.1f times as much",
            sum(limits), layout.size_limit, MEMORY_FACTOR,
        )  # fmt: skip
