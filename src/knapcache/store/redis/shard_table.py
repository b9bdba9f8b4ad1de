"""The owner's table of the shards, with their limits and sizes, and the moving of space between them.

    Invariant: Σ limit ≤ capacity at every instant, in the server. A limit is lowered before another one is raised, and
    where the server has replicas, one of them has confirmed the lower limit before.

Every reply of the server replaces what is known of its shard. After a failure, and when other primaries answer than
before, `open` reads all of them again: a failover may have lost the last changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from knapcache.errors import StoreError
from knapcache.store.base import Totals
from knapcache.store.redis import scripts
from knapcache.store.redis.layout import KeyNames, ServerLayout
from knapcache.store.redis.records import Record
from knapcache.store.redis.server import Fenced, RedisServer, ServerAway, WritesRefused, as_number

WAIT_MILLISECONDS = 1000


class ShardTable:
    """Used bytes, entries and limits of every shard, under one epoch."""

    def __init__(
        self,
        server: RedisServer,
        names: KeyNames,
        layout: ServerLayout,
        epoch: int,
        verify: Callable[[], object] = lambda: None,
    ) -> None:
        """verify: called before the shards are opened; raises StoreError if the store in the server is another one."""
        self._verify = verify
        self._server, self._names, self._layout, self.epoch = server, names, layout, epoch
        self.used, self.count, self.parked, self.limit = ([0] * names.shards for _ in range(4))
        self._replicated: frozenset[str] = frozenset()  # nodes that have replicas
        self._primaries: frozenset[str] = frozenset()
        self._failures = -1
        self._recount = False

    @property
    def totals(self) -> Totals:
        return Totals(sum(self.count), sum(self.used))

    def open(self) -> None:
        """Claim every shard for this epoch, read its totals and divide the capacity. Fenced, or ServerAway."""
        failures = self._server.failures
        self._verify()
        nursery = self._layout.nursery // self._names.shards
        for shard, (tag, keys) in enumerate(zip(self._names.tags, self._names.tables, strict=True)):
            arguments = tag, self._names.gone, self.epoch, nursery, int(self._recount)
            self._update(shard, self._server.run(scripts.OPEN, keys, *arguments))
        self._recount = False
        self.has_changed(self._server.each_primary("INFO", "replication"))
        if min(self.limit) < 0 or sum(self.limit) != self._layout.capacity:
            self._divide()
        self._failures = failures

    def has_changed(self, replies: Mapping[str, Mapping[str, Any]]) -> bool:
        """Note who the primaries are, and which have replicas, from their replies to INFO.

        Return whether others answer than before: a failover changes the replication ids. Then totals are read again.
        """
        self._replicated = frozenset(
            node for node, info in replies.items() if as_number(info.get("connected_slaves", 0)) > 0
        )
        primaries = frozenset(str(info.get("master_replid", "")) for info in replies.values())
        changed = primaries != self._primaries
        if changed:
            self._primaries, self._failures = primaries, -1
        return changed

    def ensure_open(self) -> None:
        """Read the totals again if a command has failed since."""
        if self._failures != self._server.failures:
            self.open()

    def correct_limits(self) -> None:
        """Divide the capacity anew if a shard uses more than its limit: the capacity was larger before."""
        over = any(used > limit for used, limit in zip(self.used, self.limit, strict=True))
        if over and sum(self.used) <= self._layout.capacity:
            self._divide()

    def _divide(self) -> None:
        """Give each shard what it uses and an equal part of the rest; less if more is used than there is."""
        shards, capacity, used = self._names.shards, self._layout.capacity, sum(self.used)
        if used <= capacity:
            limits = [own + (capacity - used) // shards for own in self.used]
        else:
            limits = [capacity * own // used for own in self.used]
        limits[0] += capacity - sum(limits)
        self._move({k: limit for k, limit in enumerate(limits) if self.limit[k] > limit})
        for shard, limit in enumerate(limits):
            if self.limit[shard] != limit:
                self.change(shard, limit=limit)

    def make_space(self, shard: int, size: int) -> int | None:
        """Take space from other shards. Return the limit that a shard needs for `size` more bytes; None: its own."""
        need = self.used[shard] + size - self.limit[shard]
        if need <= 0:
            return None
        need -= self._layout.capacity - sum(self.limit)
        limits: dict[int, int] = {}
        for donor in sorted(range(self._names.shards), key=lambda k: self.used[k] - self.limit[k]):
            spare = min(need, self.limit[donor] - self.used[donor])
            if donor != shard and spare > 0:
                limits[donor] = self.limit[donor] - spare
                need -= spare
        if need > 0:
            raise StoreError("the store is full")
        self._move(limits)
        return self.used[shard] + size

    def _move(self, limits: dict[int, int]) -> None:
        """Lower limits, and wait for a replica if there is one."""
        for shard, limit in limits.items():
            self.change(shard, limit=limit)
            key = self._names.totals[shard]
            # A node whose replica was promoted has none that could confirm.
            if self._server.node(key) in self._replicated and not self._server.wait_for_replica(key, WAIT_MILLISECONDS):
                self._failures = -1  # the replica may be gone: look again
                raise StoreError("no replica confirmed a lower limit, so no space can be moved to another shard")

    def change(
        self,
        shard: int,
        *,
        remove: Sequence[bytes] = (),
        drop: Sequence[bytes] = (),
        limit: int | None = None,
        put: tuple[Record, float | None, int | None, bool] | None = None,
    ) -> str:
        """Run DECIDE on a shard and return its status. put: record, expiry time, milliseconds to live, parked."""
        arguments: list[object] = ["" if limit is None else limit, len(remove), *remove, len(drop), *drop]
        if put is not None:
            record, expires, life, parked = put
            arguments += [record.name, record.size, "" if expires is None else expires, "" if life is None else life]
            arguments += [record.head, b"" if parked else record.value]
        tag, keys = self._names.tags[shard], [*self._names.tables[shard]]
        if put is not None:
            keys += [tag + b":a:" + put[0].name, tag + b":u:" + put[0].name]
        try:
            reply = self._server.run(scripts.DECIDE, keys, tag, self._names.gone, self.epoch, *arguments)
        except (ServerAway, Fenced, WritesRefused):
            raise
        except StoreError:  # the script may have ended half way
            self._failures, self._recount = -1, True
            raise
        self._update(shard, reply)
        return str(reply[4], "ascii")

    def _update(self, shard: int, reply: Sequence[int]) -> None:
        self.used[shard], self.count[shard], self.parked[shard], self.limit[shard] = map(as_number, reply[:4])
