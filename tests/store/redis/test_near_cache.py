"""The near cache: hits without a command, and no entry that was removed longer than a second ago."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import dropwhile
from typing import Any, cast

import pytest

from knapcache.store.base import Entry
from knapcache.store.redis import near_cache
from knapcache.store.redis.near_cache import NearCache
from knapcache.store.redis.server import RedisServer
from knapcache.store.redis.store import RedisStore
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of, key_of
from tests.support.timing import DEADLINE, wait_until, within

NEAR = "near=1MB&shards=2"


def near_entry(store: RedisStore, key: bytes) -> Entry | None:
    """Return the entry once the near cache has it."""
    wait_until(lambda: store._near.subscribed)
    store.get(key)
    found = store.get_nowait(key)
    return found if isinstance(found, Entry) else None


def test_a_removal_reaches_other_processes_within_a_second(url: str, open_store: OpenStore) -> None:
    owner, reader = open_store(url, query=NEAR), open_store(url, query=NEAR)
    entries = [entry_of(owner, k, tenant="abc"[k % 3]) for k in range(9)]
    for entry in entries:
        owner.apply(entry).result(60)
    assert [near_entry(reader, entry.key) for entry in entries] == entries

    def are_gone(removed: list[Any]) -> bool:
        near = any(reader.get_nowait(entry.key) is entry for entry in removed)
        return not near and all(reader.get(entry.key) is None for entry in removed)

    for tenant in (1, 2):
        removed = entries[tenant::3]
        with within(1.0, "a removal"):
            owner.apply(evict=[entry.key for entry in removed]).result(60)
            wait_until(partial(are_gone, removed))
    assert [reader.get(entry.key) for entry in entries[::3]] == entries[::3]
    newer = entry_of(owner, 0, version=1, tenant="a")
    owner.apply(newer).result(60)
    assert owner.get(newer.key) == newer
    wait_until(lambda: reader.get(newer.key) == newer)


def test_hits_send_no_command(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url, query=NEAR)
    store.apply(entry_of(store, 1)).result(60)
    assert near_entry(store, key_of(1)) is not None
    with engine.client() as client:
        before = client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]
        for _ in range(50):
            assert store.get(key_of(1)) is not None
        assert client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"] == before


def test_a_lost_subscription_empties_it_and_is_renewed(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url, query=NEAR), open_store(engine.url, query=NEAR)
    entry = entry_of(owner, 1)
    owner.apply(entry).result(60)
    assert near_entry(reader, entry.key) == entry
    with engine.client() as client:
        assert client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
    wait_until(lambda: reader.counters()["subscriptions_lost"] > 0)
    assert near_entry(reader, entry.key) == entry
    assert reader.counters()["subscriptions_lost"] == 1


class SlowServer:
    """A server that confirms subscriptions after 0.3 s. The first ones fail then."""

    def __init__(self, failures: int) -> None:
        self.subscriptions, self._failures = 0, failures

    def client(self) -> SlowServer:
        return self

    pubsub = client

    def subscribe(self, *_channels: bytes) -> None:
        self.subscriptions += 1
        self._polls = 0

    def get_message(self, timeout: float) -> dict[str, str] | None:
        time.sleep(timeout)
        self._polls += 1
        if self._polls < 3:
            return None
        if self.subscriptions <= self._failures:
            raise ConnectionError("the server restarts")
        return {"type": "subscribe"}

    def ping(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("failures", [0, 1])
def test_a_subscription_that_is_confirmed_late_is_not_lost(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_cache, "SILENCE_SECONDS", DEADLINE)
    server = SlowServer(failures)
    near = NearCache(cast("RedisServer", server), (b"removed",), capacity=1000)
    try:
        wait_until(lambda: near.subscribed)
        assert (near.lost, server.subscriptions) == (failures, failures + 1)
    finally:
        near.close()


def test_silence_on_the_subscription_hides_all_entries(
    engine: RedisProcess, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(engine.url, query=NEAR)
    entry = entry_of(store, 1)
    store.apply(entry).result(60)
    assert near_entry(store, entry.key) == entry
    later = time.monotonic() + 1.0
    monkeypatch.setattr("knapcache.store.redis.near_cache.time.monotonic", lambda: later)
    assert store._near.get(entry.key) is None


def test_with_encryption_it_is_found_by_key_and_invalidated_by_name(
    engine: RedisProcess, open_store: OpenStore
) -> None:
    options: dict[str, Any] = {"query": NEAR, "encryption_keys": [b"k" * 32]}
    owner, reader = open_store(engine.url, **options), open_store(engine.url, **options)
    entry = entry_of(owner, 1)
    owner.apply(entry).result(60)
    assert near_entry(reader, entry.key) == entry
    owner.apply(evict=[entry.key]).result(60)
    wait_until(lambda: reader.get(entry.key) is None)


def test_readers_never_see_an_older_version_after_a_second(engine: RedisProcess, open_store: OpenStore) -> None:
    """One thread a reader: of two threads, one may add what it has read before the other read a newer version."""
    owner, *readers = (open_store(engine.url, query=NEAR) for _ in range(3))
    wait_until(lambda: all(reader._near.subscribed for reader in readers))
    last = 0

    def version(reader: RedisStore) -> int:
        entry = reader.get(key_of(1))
        return 0 if entry is None else int(entry.meta["version"])

    def is_last(reader: RedisStore) -> bool:
        return version(reader) == last

    def versions(reader: RedisStore) -> list[int]:
        return [version(reader) for _ in range(2000)]

    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(versions, reader) for reader in readers]
        while not all(read.done() for read in reads):
            last += 1
            owner.apply(entry_of(owner, 1, 100, version=last)).result(60)
    for reader, read in zip(readers, reads, strict=True):
        seen = list(dropwhile(lambda found: not found, read.result()))
        found = [each for each in seen if each]
        assert found == sorted(found), "an older entry followed a newer one"
        assert len(seen) - len(found) <= reader.counters().get("failed_reads", 0), "only a failed read finds nothing"
        wait_until(partial(is_last, reader), seconds=5)
