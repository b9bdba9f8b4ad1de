"""Space: the charge covers what the server allocates, and no limit is exceeded at any instant."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from knapcache.errors import StoreError
from knapcache.store.redis.layout import ServerLayout, size_class
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of, key_of

SUMS = """
local limit, used, parked, room = 0, 0, 0, 0
for _, key in ipairs(KEYS) do
  local x = redis.call('HMGET', key, 'limit', 'used', 'nused', 'nroom')
  limit, used, parked, room = limit + x[1], used + x[2], parked + x[3], room + x[4]
  if tonumber(x[2]) > tonumber(x[1]) or tonumber(x[3]) > tonumber(x[4]) then limit = limit + 1e12 end
end
return {limit, used, parked, room}
"""


def test_size_classes_are_those_of_jemalloc() -> None:
    sizes = [1, 16, 17, 48, 100, 128, 129, 160, 161, 257, 1025, 1280, 1281, 4097, 16385, 20480, 20481]
    classes = [16, 16, 32, 48, 112, 128, 160, 160, 192, 320, 1280, 1280, 1536, 5120, 20480, 20480, 24576]
    assert [size_class(n) for n in sizes] == classes


@pytest.mark.parametrize(("length", "expires"), [(10, None), (300, 4e9), (5000, None)])
def test_the_charge_covers_what_the_engine_allocates(
    each_engine: RedisProcess, open_store: OpenStore, length: int, expires: float | None
) -> None:
    store = open_store(each_engine.url, 32 << 20)
    with each_engine.client() as client:
        before = client.info("memory")["used_memory"]
        for k in range(1000):
            done = store.apply(entry_of(store, k, length + k % 100, expires=expires))
        done.result(60)
        allocated = client.info("memory")["used_memory"] - before
    charged = store.totals().size
    assert store.totals().entries == 1000
    buffers = 200_000  # of connections
    assert allocated - buffers <= charged, f"{allocated} bytes allocated, {charged} charged"
    assert charged <= 1.6 * allocated + 400_000, f"{allocated} bytes allocated, {charged} charged"


def test_limits_never_sum_to_more_than_the_capacity(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url, 1 << 20, query="near=0&shards=6")
    reader = store.reader()
    keys = store._member.attachment().names.totals
    stop, sums = threading.Event(), []

    def watch() -> None:
        with engine.client() as client:
            script = client.register_script(SUMS)
            while not stop.is_set():
                sums.append(script(keys=list(keys)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    choose = random.Random(0)
    held: dict[int, int] = {}
    parked = 0
    for k in range(400):
        entry = entry_of(store, k, choose.randrange(100, 40_000))
        evict = []
        while sum(held.values()) + entry.size > store.capacity:
            victim = choose.choice(list(held))
            del held[victim]
            evict.append(key_of(victim))
        held[k] = entry.size
        store.apply(entry, evict).result(60)
        try:
            reader.hand_over(entry_of(store, -k, choose.randrange(100, 3000)))
            parked += 1
        except StoreError:
            continue
    stop.set()
    watcher.join()
    reader.close()
    assert parked > 100
    assert len(sums) > 20
    assert max(limit for limit, *_ in sums) <= store.capacity
    assert max(used for _, used, _, _ in sums) > 0.7 * store.capacity
    assert max(room for *_, room in sums) + store.capacity <= store.size_limit
    assert store.totals() == (len(held), sum(held.values()))
    store.check()


def test_a_shard_takes_what_it_lacks_from_another_one(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url, 1 << 20, query="near=0&shards=2")
    writer = store._member.writer
    assert writer is not None
    first, second = writer.table.limit
    assert writer.table.make_space(0, first) is None
    assert writer.table.make_space(0, first + 1) == first + 1
    assert writer.table.limit == [first, second - 1], "the first limit changes with the entry"
    with pytest.raises(StoreError, match="the store is full"):
        writer.table.make_space(0, first + second + 1)


def test_a_replaced_entry_is_never_missing(
    engine: RedisProcess, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader = (open_store(engine.url, query="near=0") for _ in range(2))
    owner.apply(entry_of(owner, 1)).result(60)
    assert owner._member.writer is not None
    table = owner._member.writer.table
    change, versions = table.change, []

    def watched_change(*args: Any, **options: Any) -> str:
        status = change(*args, **options)
        found = reader.get(key_of(1))
        versions.append(found and found.meta["version"])
        return status

    monkeypatch.setattr(table, "change", watched_change)
    owner.apply(entry_of(owner, 1, version=1), [key_of(2)]).result(60)
    assert versions[-1] == 1
    assert None not in versions
    owner.check()


def test_an_entry_is_replaced_in_a_full_store(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url, 1 << 20, query="near=0&shards=1")
    size = entry_of(store, 0, 20_000).size
    names = range(store.capacity // size)
    for k in names:
        store.apply(entry_of(store, k, 20_000)).result(60)
    for k in names:
        store.apply(entry_of(store, k, 20_000, version=1)).result(60)
    assert store.totals() == (len(names), len(names) * size)
    assert store.get(key_of(0)) == entry_of(store, 0, 20_000, version=1)
    store.check()


def test_a_smaller_cache_lowers_the_limits(engine: RedisProcess, open_store: OpenStore) -> None:
    large = open_store(engine.url, 4 << 20, query="near=0&shards=4")
    for k in range(100):
        done = large.apply(entry_of(large, k, 20_000))
    done.result(60)
    large.close()
    small = open_store(engine.url, 2 << 20, query="near=0")
    assert small.totals().entries == 100
    assert isinstance(small.apply(entry_of(small, "new")).exception(60), StoreError)
    while small.totals().size > small.capacity // 2:
        small.apply(evict=[next(small.scan()).key]).result(60)
    small.apply(entry_of(small, "new")).result(60)
    small.check()


def test_a_small_cache_in_a_cluster_has_enough_shards_for_all_primaries() -> None:
    layout = ServerLayout.of(256 << 20)
    assert (layout.shards(cluster=False), layout.shards(cluster=True)) == (4, 16)
    assert ServerLayout.of(1 << 40).shards(cluster=False) == ServerLayout.of(1 << 40).shards(cluster=True) == 64
    assert ServerLayout.of(1 << 20).shards(cluster=True) == 1
