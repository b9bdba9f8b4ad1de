"""Reads of entries, listings and totals from the server."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from knapcache.errors import CorruptState, StoreError
from knapcache.store.base import Entry, EntryInfo, Totals
from knapcache.store.redis.layout import CHUNK, KeyNames
from knapcache.store.redis.records import decode, decode_head
from knapcache.store.redis.server import RedisServer, SlotMoving, as_number
from knapcache.store.sqlite.rows import Sealer

SCAN_COUNT = 500
"""Heads of one reply of a scan."""
SNAPSHOT_ATTEMPTS = 5


class EntryReader:
    """Reads verified entries. `names_of(key)` are the names under which an entry may be stored."""

    def __init__(
        self,
        server: RedisServer,
        names: KeyNames,
        sealer: Sealer,
        names_of: Callable[[bytes], Sequence[bytes]],
        counters: Counter[str],
    ) -> None:
        self._server, self._names, self._sealer = server, names, sealer
        self._names_of, self._counters = names_of, counters

    def value_keys(self, key: bytes, *, undecided: bool) -> list[bytes]:
        """Return the keys under which the server may have an entry. `undecided`: also those of the nursery."""
        tag = self._names.tags[self._names.shard(key)]
        kinds = (b":a:", b":u:") if undecided else (b":a:",)
        return [b"".join((tag, kind, name)) for name in self._names_of(key) for kind in kinds]

    def lease_key(self, key: bytes) -> bytes:
        """Return the server's key for the lease on a cache key."""
        return b"".join((self._names.tags[self._names.shard(key)], b":f:", self._names_of(key)[0]))

    def entries(self, keys: Sequence[bytes], *, undecided: bool) -> dict[bytes, tuple[Entry | None, bool]]:
        """Return the entry of each key or None, and whether a damaged value was found.

        One command reads all keys; in a cluster one for each shard. undecided: also read the nursery.
        """
        groups: dict[int, list[bytes]] = {}
        for key in keys:
            groups.setdefault(self._names.shard(key) if self._server.is_cluster else 0, []).append(key)
        found: dict[bytes, tuple[Entry | None, bool]] = {}
        for group in groups.values():
            names = [self.value_keys(key, undecided=undecided) for key in group]
            together = list(itertools.chain.from_iterable(names))
            try:
                values = iter(self._server.command(together[0], "MGET", *together))
            except SlotMoving:  # one by one, the server can say where each is
                values = iter([self._server.command(name, "GET", name) for name in together])
            for key, each in zip(group, names, strict=True):
                found[key] = self._newest(key, [next(values) for _ in each])
        return found

    def _newest(self, key: bytes, values: Iterable[Any]) -> tuple[Entry | None, bool]:
        """Return the newest entry of some values, and whether one of them is damaged."""
        found: Entry | None = None
        damaged = False
        for value in values:
            if value is None:
                continue
            entry = decode(self._sealer, value)
            if entry is None or entry.key != key:
                self._counters["damaged"] += 1
                damaged = True
            elif found is None or entry.created > found.created:
                found = entry
        return found, damaged

    def scan(self) -> Iterator[EntryInfo]:
        """Yield the metadata of every admitted entry. Damaged heads are counted and left out."""
        for tag in self._names.tags:
            cursor, seen = b"0", set()
            while True:
                reply = self._server.command(tag, "HSCAN", tag + b":h", cursor, "COUNT", SCAN_COUNT)
                cursor, heads = reply[0], reply[1]
                for name, head in heads.items():
                    info = decode_head(self._sealer, head)
                    if info is None or name not in self._names_of(info.key):
                        self._counters["damaged"] += 1
                    elif name not in seen:  # a scan may return an element twice
                        seen.add(name)
                        yield info
                if int(cursor) == 0:
                    break

    def expired(self, now: float) -> list[bytes]:
        """Return the keys of admitted entries that have expired."""
        keys = []
        for tag in self._names.tags:
            names = self._server.command(tag, "ZRANGEBYSCORE", tag + b":x", "-inf", repr(now))
            for k in range(0, len(names), SCAN_COUNT):
                heads = self._server.command(tag, "HMGET", tag + b":h", *names[k : k + SCAN_COUNT])
                infos = [decode_head(self._sealer, head) for head in heads if head is not None]
                keys += [info.key for info in infos if info is not None]
        return keys

    def shard_totals(self) -> list[tuple[int, int, int, int]]:
        """Return used bytes, entries, bytes in the nursery and limit of each shard."""
        found = []
        for key in self._names.totals:
            reply = self._server.command(key, "HMGET", key, "used", "count", "nused", "limit")
            used, count, parked, limit = (self._count(value) for value in reply)
            found.append((used, count, parked, limit))
        return found

    def _count(self, value: Any) -> int:
        """Return a number of the totals; 0 if it is damaged. The owner writes them anew (`ShardTable.open`)."""
        try:
            return as_number(value)
        except StoreError:
            self._counters["damaged"] += 1
            return 0

    def snapshot(self) -> bytes | None:
        """Return the policy's last snapshot; None if there is none, or if it is damaged."""
        name = self._names.snapshot
        for _ in range(SNAPSHOT_ATTEMPTS):  # a new one may replace it while it is read
            generation, chunks, seal = self._server.command(name, "HMGET", name, "generation", "chunks", "seal")
            if generation is None:
                return None
            parts = []
            for k in range(as_number(chunks)):
                parts.append(self._server.command(name, "GET", b"%s.%s.%d" % (name, generation, k)))
                if parts[-1] is None:
                    break
            else:
                return self._sealer.reveal(b"snapshot", seal, b"".join(parts))
        return None

    def snapshot_bytes(self) -> int:
        """Return an upper bound of the bytes of the stored snapshot."""
        name = self._names.snapshot
        return as_number(self._server.command(name, "HGET", name, "chunks")) * CHUNK

    def totals(self) -> Totals:
        shards = self.shard_totals()
        return Totals(sum(shard[1] for shard in shards), sum(shard[0] for shard in shards))

    def check(self, capacity: int) -> None:
        """Compare the totals of every shard with its entries; CorruptState if they differ or exceed the capacity."""
        shards = self.shard_totals()
        for tag, (used, count, parked, limit) in zip(self._names.tags, shards, strict=True):
            sizes = []
            for name, head in self._server.command(tag, "HGETALL", tag + b":h").items():
                info = decode_head(self._sealer, head)
                if info is None:
                    raise CorruptState(f"{tag!r}: a damaged head")
                sizes.append(info.size)
                if info.expires is None and not self._server.command(tag, "EXISTS", b"".join((tag, b":a:", name))):
                    raise CorruptState(f"{tag!r}: an entry has no value")
            nursery = sum(map(as_number, self._server.command(tag, "HVALS", tag + b":s")))
            if (used, count, parked) != (sum(sizes), len(sizes), nursery):
                recomputed = f"{sum(sizes)} bytes, {len(sizes)} entries, {nursery} bytes in the nursery"
                raise CorruptState(f"{tag!r}: {used}, {count}, {parked} counted, {recomputed} recomputed")
            if used > max(0, limit):
                raise CorruptState(f"{tag!r}: {used} bytes used, the limit is {limit}")
        if sum(max(0, shard[3]) for shard in shards) > capacity:
            raise CorruptState(f"the limits of the shards sum to more than the capacity of {capacity} bytes")
