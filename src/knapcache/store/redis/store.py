"""A store in Valkey or Redis, shared by the threads and processes of many machines.

    hit       the near cache (near_cache.py), else one GET; every value is verified (records.py)
    miss      a reader hands the answer over, into the nursery (nursery.py)
    decide    the owner collects, its policy decides, and its writer sends evictions and puts (writer.py)
    limits    each shard has a limit, and they never sum to more than the capacity (shard_table.py)
    owner     one process by a lease; a former owner is fenced (ownership.py)

While the server does not answer, `get` returns None at once after the first timeout (server_state.py), `apply` fails,
and nothing else does. A store can be opened before its server answers: it is a reader until then.

A store does not survive a fork: in the child it is closed, and `reader` opens a new one.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Self

from knapcache.errors import StoreError
from knapcache.store.base import (
    NOT_IN_MEMORY,
    Clock,
    Entry,
    EntryInfo,
    NotInMemory,
    StoreOptions,
    Totals,
    expired,
    wall_clock,
)
from knapcache.store.encryption import Encryption
from knapcache.store.redis import layout, records
from knapcache.store.redis.call_counts import CallCounts
from knapcache.store.redis.documents import Documents
from knapcache.store.redis.key_leases import LEASE_SECONDS, KeyLease
from knapcache.store.redis.membership import Membership
from knapcache.store.redis.near_cache import NearCache
from knapcache.store.redis.owner_exchange import OwnerExchange
from knapcache.store.redis.record_logs import RecordLogs
from knapcache.store.redis.server_state import CLOSED, ServerState
from knapcache.store.redis.urls import Address, parse
from knapcache.store.redis.writer import QueuedChange, ServerWriter
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.validation import content_size, encode_fields, validate_entry, validate_key

MAX_NEAR = 64 << 20


class RedisStore(OwnerExchange):
    """Entries in a server. `size_limit` is the bytes of all its keys together."""

    shared: Final = True

    def __init__(
        self,
        address: Address,
        size_limit: int,
        *,
        own: bool = True,
        secret: bytes = b"",
        encryption_keys: Sequence[bytes] = (),
        clock: Clock = wall_clock,
    ) -> None:
        """Connect. InvalidInput if the server evicts keys by itself; StoreError if the store in it is not ours.

        `own`: become the owner if there is none. `secret`: key of the seals. `encryption_keys`: the first encrypts, all
        decrypt. A server that does not answer is tried again in the background.
        """
        super().__init__()
        self.address = address
        self.layout = parts = layout.ServerLayout.of(size_limit)
        self.size_limit, self.capacity, self.max_entry_size = size_limit, parts.capacity, parts.max_entry_size
        self.max_counted_keys = parts.max_counted_keys
        self._secret, self._encryption_keys, self._clock = secret, tuple(encryption_keys), clock
        self._counters: Counter[str] = Counter()
        encryption = Encryption(encryption_keys) if encryption_keys else None
        self._sealer = Sealer(secret, encryption)
        self.max_snapshot_size = parts.max_snapshot_size - self._sealer.overhead
        self._used_bytes = 0
        self._pid = os.getpid()
        self._member = Membership(address, self.layout, self._sealer, self._names_of, self._counters)
        near = min(size_limit // 8, MAX_NEAR) if address.near is None else address.near
        near_name = None if encryption is None else (lambda key: encryption.names(key)[0])
        channels = layout.channels(address.prefix)
        self._near = NearCache(self._member.server, channels, near, near_name, self._on_arrival)
        self.documents, self.record_logs = Documents(self._member, self._counters), RecordLogs(self._member)
        self.call_counts = CallCounts(self._member)
        self.may_own = True
        """Whether `own` may make this process the owner."""
        _STORES.add(self)
        if own:
            self.own()

    @classmethod
    def open(cls, scheme: str, location: str, options: StoreOptions) -> RedisStore:
        """Open `scheme:location`, as the registry does: as the owner, or as a reader while another process owns it."""
        return cls(
            parse(scheme, location),
            options.size_limit,
            secret=options.secret,
            encryption_keys=options.encryption_keys,
            clock=options.clock,
        )

    def entry_size(self, entry: Entry, fields: tuple[bytes, bytes, bytes] | None = None) -> int:
        """Return the bytes that the server allocates for an entry."""
        content = content_size(entry, fields) + self._sealer.overhead
        head = records.head_length(content, len(entry.request), len(entry.payload))
        expires = entry.expires is not None
        return layout.entry_size(records.value_length(content), head, len(self.address.prefix), expires)

    # Reading.

    def get(self, key: bytes) -> Entry | None:
        entry = self.get_nowait(key)
        if entry is NOT_IN_MEMORY:
            try:
                return self.read(key)
            except StoreError:  # counted
                return None
        return entry  # type: ignore[return-value]

    def get_nowait(self, key: bytes) -> Entry | NotInMemory | None:
        entry = self._near.get(key)
        if entry is None:
            validate_key(key)
            writer = self._member.writer
            if writer is None or (change := writer.pending.get(key)) is None:
                return None if self._member.closed else NOT_IN_MEMORY
            put = change.put
            if put is None or put.key != key:
                return None
            entry = put
        return entry if entry.expires is None or entry.expires > self._clock() else None

    def read(self, key: bytes) -> Entry | None:
        return self.read_many([key])[key]

    def peek(self, key: bytes) -> Entry | None:
        found = self.get_nowait(key)
        return self._read_many([key], keep=False)[key] if isinstance(found, NotInMemory) else found

    def read_many(self, keys: Sequence[bytes]) -> dict[bytes, Entry | None]:
        """Return `read` of several keys, in one round trip; in a cluster in one for each shard."""
        now = self._clock()
        return {
            key: None if entry is None or expired(entry.expires, now) else entry
            for key, entry in self._read_many(keys, keep=True).items()
        }

    def _read_many(self, keys: Sequence[bytes], *, keep: bool) -> dict[bytes, Entry | None]:
        version = self._near.version  # before the look into `pending`: a change after it outdates the version
        writer = self._member.writer
        found: dict[bytes, Entry | None] = {}
        missing = []
        for key in keys:
            if writer is not None and (change := writer.pending.get(key)) is not None:
                found[key] = change.put if change.put is not None and change.put.key == key else None
            else:
                missing.append(key)
        if not missing:
            return found
        try:
            reader = self._member.attachment().reader
            # The owner decides about what is in the nursery; until then it does not count it as stored.
            read = reader.entries(missing, undecided=writer is None)
        except StoreError:
            self._counters["failed_reads"] += 1
            raise
        for key, (entry, damaged) in read.items():
            found[key] = entry
            if damaged and entry is None and writer is not None:
                self._submit(writer, QueuedChange([key]))
            if entry is not None and keep:
                self._near.add(entry, version)
        return found

    def lead(self, key: bytes, seconds: float = LEASE_SECONDS) -> Entry | KeyLease | None:
        """Return the entry, or a lease to call the upstream, or None while another process has it (key_leases.py)."""
        entry = self.get_nowait(key)
        if isinstance(entry, Entry):
            return entry

        def accept(value: bytes) -> Entry | None:
            found = records.decode(self._sealer, value)
            if found is None or found.key != key or expired(found.expires, self._clock()):
                return None
            return found

        leases = self._member.key_leases
        try:
            reader = self._member.attachment().reader
            name, admitted = reader.lease_key(key), reader.value_keys(key, undecided=False)[0]
            lease = KeyLease(leases, name, admitted, self.leave_for_waiting, seconds)
            values = reader.value_keys(key, undecided=True) if entry is NOT_IN_MEMORY else ()
            return leases.lead(lease, name, values, accept)
        except StoreError:
            self._counters["unknown_leases"] += 1
            return KeyLease(leases)

    # Writing.

    @property
    def write_backlog_full(self) -> bool:
        writer = self._member.writer
        return writer is not None and writer.backlog_full

    @property
    def writes_stalled(self) -> bool:
        return bool(self._member.server.breakers.probes)

    def apply(
        self, put: Entry | None = None, evict: Collection[bytes] = (), snapshot: bytes | None = None
    ) -> Future[None]:
        writer, attachment = self._member.ownership()
        keys = [validate_key(key) for key in evict]
        change = QueuedChange(keys)
        if put is not None:
            put = validate_entry(put, self.entry_size(put, fields := encode_fields(put)))
            change.keys = [*keys, put.key]
            if put.size > self.max_entry_size:
                change.refusal = f"the entry has {put.size} bytes, at most {self.max_entry_size} are allowed"
            else:
                parked = attachment.nursery.decided(put)
                change.put, change.life, change.parked = put, self._life(put), parked is not None
                change.record = parked or records.encode(self._sealer, put, fields)
        if snapshot is not None:
            change.snapshot = self._sealer.protect(b"snapshot", snapshot)
            if len(snapshot) > self.max_snapshot_size:
                change.refusal = f"the snapshot has {len(snapshot)} bytes, at most {self.max_snapshot_size} are allowed"
        return self._submit(writer, change)

    def _submit(self, writer: ServerWriter, change: QueuedChange) -> Future[None]:
        names = [self._names_of(key)[0] for key in change.keys]
        return writer.submit(change, lambda: self._near.discard(names))

    def expire(self) -> tuple[bytes, ...]:
        writer, attachment = self._member.ownership()
        self.flush()
        keys = attachment.reader.expired(self._clock())
        self._submit(writer, QueuedChange(keys)).result()
        return tuple(keys)

    def flush(self) -> None:
        writer = self._member.writer
        if writer is not None and not self._member.closed:
            writer.submit(QueuedChange()).exception()

    # The whole store.

    def scan(self) -> Iterator[EntryInfo]:
        """Yield the metadata of every entry. StoreError when the server does not answer to the end."""
        self.flush()
        yield from self._member.attachment().reader.scan()

    def load_snapshot(self) -> bytes | None:
        self.flush()
        return self._member.attachment().reader.snapshot()

    def totals(self) -> Totals:
        """Return the owner's totals; in a reader, those of the server, and zeros while it does not answer."""
        writer = self._member.writer
        if writer is not None:
            return writer.table.totals
        try:
            return self._member.attachment().reader.totals()
        except StoreError:
            return Totals(0, 0)

    def disk_bytes(self) -> int:
        """Return the bytes in the server as it last counted them."""
        try:
            reader = self._member.attachment().reader
            snapshot = min(reader.snapshot_bytes(), self.layout.max_snapshot_size)
            self._used_bytes = sum(used + parked for used, _, parked, _ in reader.shard_totals()) + snapshot
        except StoreError:
            self._counters["failed_reads"] += 1
        return self._used_bytes

    def counters(self) -> Mapping[str, int]:
        """Return the faults so far: damaged, failed_reads, failed_writes, refused, breakers_opened…"""
        return {
            **self._counters,
            "breakers_opened": self._member.breakers.opened,
            "breakers_open": len(self._member.breakers.probes),
            "read_only_nodes": len(self._member.breakers.read_only),
            "subscriptions_lost": self._near.lost,
        }

    def server_state(self) -> ServerState:
        """Return the state of the server, at most a moment old (server_state.py)."""
        return CLOSED if self._member.closed else self._member.watch.current

    def check(self) -> None:
        """Recompute the totals of every shard and compare the limits; CorruptState if they differ."""
        if not self._member.closed:
            self.flush()
            self._member.attachment().reader.check(self.capacity)

    # Roles.

    @property
    def owner(self) -> bool:
        return self._member.writer is not None

    def own(self) -> bool:
        return self._member.own() if self.may_own else self.owner

    def hand_over(self, entry: Entry, /, *, displace: bool = True) -> None:
        entry = validate_entry(entry, self.entry_size(entry, fields := encode_fields(entry)))
        record = records.encode(self._sealer, entry, fields)
        self._member.attachment().nursery.park(entry, record, self._life(entry), displace=displace)

    def leave_for_waiting(self, entry: Entry) -> None:
        """Put an answer that the owner did not admit into the nursery, for the processes that wait for it."""
        record = records.encode(self._sealer, entry)
        self._member.attachment().nursery.park(entry, record, self._life(entry), decided=True)

    def reader(self) -> RedisStore:
        return RedisStore(
            self.address,
            self.size_limit,
            own=False,
            secret=self._secret,
            encryption_keys=self._encryption_keys,
            clock=self._clock,
        )

    def _names_of(self, key: bytes) -> Sequence[bytes]:
        return (key,) if self._sealer.encryption is None else self._sealer.encryption.names(key)

    def _life(self, entry: Entry) -> int | None:
        """Return the milliseconds after which the server removes an entry by itself."""
        if entry.expires is None:
            return None
        return int((max(0.0, entry.expires - self._clock()) + layout.GRACE) * 1000)

    # Closing.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued, release the ownership and close the connections."""
        if not self._member.closed:
            self._member.close()
            self._near.close()
            self._member.server.close()

    def _after_fork(self) -> None:
        """Close in a child. Threads and connections are the parent's: the child must not even close them."""
        if not self._member.closed and self._pid != os.getpid():
            _INHERITED.append((self._member.abandon(), self._near))
            self._near = NearCache(self._member.server)


_STORES: weakref.WeakSet[RedisStore] = weakref.WeakSet()
_INHERITED: list[object] = []
"""In a forked child: the parent's objects, kept so that the garbage collector does not close them."""


def _after_fork() -> None:
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
