"""A primary, or the process that writes to it, is killed with -9 again and again. After each cut, before any write:

The totals of every shard are the sums of its entries, every entry has its value and is right, and the limits of the
shards sum to at most the capacity. After the cut of a primary, its replica is promoted: entries that were not
replicated are gone, as a whole.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from knapcache.errors import StoreError
from knapcache.store.redis.store import RedisStore
from tests.support.fork_server import ForkServer, random_delay
from tests.support.owner_scenarios import open_redis_store
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of, is_right, key_of
from tests.support.timing import wait_until

SIZE_LIMIT = 2 << 20
SHARDS = 4
NAMES = 600
QUERY = f"prefix=cuts&near=0&shards={SHARDS}"


# In the process that writes.


def warm_up() -> None:
    """Import what a store needs."""
    from knapcache.store.redis.connect import require_redis

    require_redis()


def run(ready: Callable[[], object], url: str, seed: str) -> None:
    """Write as the owner and hand over as a reader, for ever; the capacity is always nearly used."""
    owner = open_redis_store(url, SIZE_LIMIT)
    assert owner.owner
    reader = open_redis_store(url, SIZE_LIMIT, own=False)
    ready()
    threading.Thread(target=_hand_over, args=(reader, random.Random(int(seed))), daemon=True).start()
    rng = random.Random(int(seed) + 1)
    while True:
        try:
            _decide(owner, rng)
        except StoreError:
            time.sleep(0.002)


def _hand_over(reader: RedisStore, rng: random.Random) -> None:
    while True:
        try:
            reader.hand_over(entry_of(reader, rng.randrange(NAMES), int(min(20_000, rng.lognormvariate(7.5, 1)))))
        except StoreError:
            time.sleep(0.002)


def _decide(owner: RedisStore, rng: random.Random) -> None:
    """Put collected and new entries, and evict the oldest for them, until the server does not answer."""
    resident = {info.key: info.size for info in owner.scan()}
    order = deque(resident)
    while True:
        collected = list(owner.collect())
        made = [entry_of(owner, rng.randrange(NAMES), int(min(20_000, rng.lognormvariate(7.5, 1)))) for _ in range(4)]
        for entry in (*collected, *made):
            resident.pop(entry.key, None)
            evict = []
            while order and sum(resident.values()) + entry.size > owner.capacity:
                oldest = order.popleft()
                if resident.pop(oldest, None) is not None:
                    evict.append(oldest)
            owner.apply(entry, evict=[key for key in evict if key != entry.key]).result(60)
            resident[entry.key] = entry.size
            order.append(entry.key)


# In the process that cuts and verifies.


def check_shards(store: RedisStore) -> int:
    """Check the totals of all shards and read every entry, as a reader: nothing is repaired before. Return entries."""
    store.check()
    totals = store._member.attachment().reader.shard_totals()
    assert len(totals) == SHARDS
    assert sum(used for used, *_ in totals) <= store.capacity
    entries = 0
    for info in store.scan():
        entry = store.read(info.key)
        assert entry is not None, "an entry has no value"
        assert is_right(entry, int(entry.request.split()[1])), "a wrong answer"
        entries += 1
    return entries


class ReplicatedPrimary:
    """A primary with a replica. `promote` makes the replica the next primary, and starts another replica."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self.primary = self._start()
        self.replica = self._replica()

    def _start(self, *options: str) -> RedisProcess:
        self._number += 1
        folder = self._folder / f"server{self._number}"
        folder.mkdir()
        return RedisProcess(folder, "--repl-diskless-sync-delay", "0", *options)

    def _replica(self) -> RedisProcess:
        replica = self._start("--replicaof", "127.0.0.1", str(self.primary.port))

        def synchronised() -> bool:
            with self.primary.client() as client:
                return "online" in str(client.info("replication").get("slave0", ""))

        wait_until(synchronised)
        return replica

    def cut(self) -> None:
        """Kill the primary. The process that writes to it lives a little longer."""
        self.primary.kill()
        time.sleep(0.05)

    def promote(self) -> None:
        with self.replica.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        self.primary = self.replica
        self.replica = self._replica()

    @property
    def url(self) -> str:
        return f"{self.primary.url}?{QUERY}"

    def close(self) -> None:
        for server in (self.primary, self.replica):
            server.kill()


def cut_repeatedly(
    folder: Path, cuts: int, seed: int = 0, progress: Callable[[int], object] = lambda _: None
) -> dict[str, int]:
    """Cut so many times, in turn the primary and the process that writes. Return what was checked."""
    rng, counts = random.Random(seed), Counter[str]()
    with ExitStack() as stack:
        server = stack.enter_context(ForkServer(__name__))
        pair = stack.enter_context(closing(ReplicatedPrimary(folder)))
        for k in range(cuts):
            seconds, cuts_primary = random_delay(rng, 0.6), k % 2 == 0
            before_kill = pair.cut if cuts_primary else lambda: None
            server.run_and_kill(seconds, pair.url, seed * cuts + k, before_kill=before_kill)
            if cuts_primary:
                pair.promote()
            with closing(open_redis_store(pair.url, SIZE_LIMIT, own=False)) as store:
                counts["entries"] += check_shards(store)
                with pair.primary.client() as client:  # as if the lease had run out
                    client.delete(store._member.attachment().names.owner)
                assert store.own()
                store.apply(entry_of(store, "after the cut", 100)).result(60)
                store.check()
                store.apply(evict=[key_of("after the cut")]).result(60)
            counts["cuts"] += 1
            counts["promotions"] += cuts_primary
            counts["shards"] += SHARDS
            progress(k + 1)
    assert counts["entries"] > 0
    return dict(counts)
