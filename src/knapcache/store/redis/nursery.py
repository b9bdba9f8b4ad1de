"""The nursery: answers that readers handed over and the owner has not decided.

They are in the server, within a limit of their own, and readers find them there. So an answer serves hits before the
owner has seen it, and also while there is no owner. The oldest give way to newer ones.

The owner collects each once. If the policy admits an entry, the server renames it, and its bytes stay where they are.
Those that were not admitted are dropped KEEP_SECONDS later: processes that wait for the answer (key_leases.py) find it
until then. Those that a former owner collected and did not decide are dropped when the next owner opens the shard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.base import Entry
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import KeyNames
from knapcache.store.redis.records import Record, decode, stored_record
from knapcache.store.redis.server import RedisServer
from knapcache.store.sqlite.rows import Sealer

COLLECT_BYTES = 1 << 20
"""Bytes that one command takes from a shard's nursery."""
KEEP_SECONDS = 1.0
"""Seconds that an answer that was not admitted stays."""


class Nursery:
    """The nursery as readers and the owner use it."""

    def __init__(self, server: RedisServer, names: KeyNames, sealer: Sealer) -> None:
        self._server, self._names, self._sealer = server, names, sealer
        self._lock = threading.Lock()
        self._collected: dict[bytes, tuple[Entry, Record, float]] = {}  # by key, with the time; not admitted yet

    def park(
        self, entry: Entry, record: Record, life: int | None, *, decided: bool = False, displace: bool = True
    ) -> None:
        """Put an entry into the nursery; StoreError when it was not; without `displace` InvalidInput if it never fits.

        decided    by the owner, which does not admit it. It is not collected, and is there for processes that wait
        displace   in a full nursery, drop the oldest entries, also those that the owner has not collected yet
        """
        shard = self._names.shard(entry.key)
        arguments = record.name, record.size, "" if life is None else life, record.value, b"t" if decided else b"n"
        tag = self._names.tags[shard]
        keys = [*self._names.tables[shard], tag + b":u:" + record.name]
        rest = self._names.arrivals, shard, int(displace)
        status = self._server.run(scripts.PARK, keys, tag, self._names.gone, *arguments, *rest)
        if status == b"closed":
            raise StoreError("the store has had no owner yet, so nothing can be handed over")
        if status == b"busy":
            raise StoreError("the nursery is full of answers that the owner has not collected")
        if status != b"ok":
            problem = f"the entry has {record.size} bytes, more than the nursery takes"
            raise StoreError(problem) if displace else InvalidInput(problem)
        if decided:
            with self._lock:
                self._collected[entry.key] = entry, record, time.monotonic()

    def collect(self, epoch: int, shards: Iterable[int] | None = None) -> Iterator[Entry]:
        """Take the entries that were parked, in some shards or in all.

        Damaged ones are dropped. A server that does not answer ends it.
        """
        for shard in range(self._names.shards) if shards is None else shards:
            tag, keys = self._names.tags[shard], self._names.tables[shard]
            more = True
            while more:
                try:
                    values = self._server.run(scripts.TAKE, keys, tag, self._names.gone, epoch, COLLECT_BYTES)
                except StoreError:
                    return
                more = sum(map(len, values)) >= COLLECT_BYTES
                for value in values:
                    entry = decode(self._sealer, value)
                    if entry is None or self._names.shard(entry.key) != shard:
                        continue
                    with self._lock:
                        self._collected[entry.key] = entry, stored_record(value), time.monotonic()
                    yield entry

    def decided(self, entry: Entry) -> Record | None:
        """Return the record of an entry that was collected, and no longer wait for its decision."""
        with self._lock:
            collected = self._collected.get(entry.key)
            if collected is None or collected[0] != entry:
                return None
            del self._collected[entry.key]
            return collected[1]

    def take_not_admitted(self) -> list[tuple[int, bytes]]:
        """Return shards and names of entries that were collected KEEP_SECONDS ago and not admitted since."""
        before = time.monotonic() - KEEP_SECONDS
        with self._lock:
            keys = [key for key, (_, _, collected_at) in self._collected.items() if collected_at <= before]
            records = [self._collected.pop(key)[1] for key in keys]
        return [(self._names.shard(key), record.name) for key, record in zip(keys, records, strict=True)]

    def forget(self) -> None:
        """Forget what was collected: another process is the owner."""
        with self._lock:
            self._collected.clear()
