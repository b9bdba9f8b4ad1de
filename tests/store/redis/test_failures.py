"""A server that is absent, killed, stopped, emptied or unsuitable, and an owner that was replaced."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.redis.ownership import LEASE_SECONDS
from knapcache.store.redis.server_state import ServerState
from knapcache.store.redis.store import RedisStore
from tests.store.redis.conftest import OpenStore
from tests.store.redis.test_failovers import Load
from tests.support.redis_servers import RedisProcess, free_port
from tests.support.stores import entry_of, key_of
from tests.support.timing import wait_until, within

QUICK_SECONDS = 2.0
"""Far more than hundreds of reads take that do not wait, and less than two that wait for each timeout would."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server that the test may stop."""
    with RedisProcess(tmp_path) as server:
        yield server


def put(store: RedisStore, name: object, **changes: Any) -> bytes:
    entry = entry_of(store, name, **changes)
    store.apply(entry).result(60)
    return entry.key


def test_a_store_opens_before_its_server_and_owns_it_later(tmp_path: Path, open_store: OpenStore) -> None:
    port = free_port()
    store = open_store(f"redis://127.0.0.1:{port}/0")
    assert (store.owner, store.own(), store.get(key_of(1)), store.totals().entries) == (False, False, None, 0)
    with pytest.raises(StoreError, match="not answered yet"):
        store.hand_over(entry_of(store, 1))
    with RedisProcess(tmp_path, port=port):
        wait_until(store.own)
        assert store.get(put(store, 1)) is not None
        store.check()


def test_reads_go_on_while_a_server_is_killed_and_writes_after_its_return(
    server: RedisProcess, open_store: OpenStore
) -> None:
    owner, reader = (open_store(server.url, query="near=0&shards=4") for _ in range(2))
    load = Load(owner, reader)
    try:
        wait_until(lambda: owner.totals().entries > 20)
        server.kill()
        wait_until(lambda: owner.counters()["breakers_opened"] > 0)
        with within(QUICK_SECONDS, "300 reads without a server"):
            for number in range(300):
                assert reader.get(key_of(number)) is None
        server.start()  # without data
        wait_until(lambda: sum(reader.get(key_of(number)) is not None for number in range(50)) > 20)
    finally:
        load.stop()
    assert owner.owner
    owner.check()


def test_a_stopped_server_delays_one_read_and_no_more(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    key = put(store, 1)
    server.signal(signal.SIGSTOP)
    try:
        with within(QUICK_SECONDS, "the first read"):
            assert store.get(key) is None
        with within(QUICK_SECONDS, "300 reads"):
            for _ in range(300):
                assert store.get(key) is None
        assert store.write_backlog_full, "a put would wait for the server"
        with pytest.raises(StoreError):
            store.read(key)
    finally:
        server.signal(signal.SIGCONT)
    wait_until(lambda: store.get(key) is not None)
    wait_until(lambda: not store.write_backlog_full)
    assert store.owner
    assert store.get(put(store, 2)) is not None
    store.check()


def test_a_put_that_failed_is_absent_and_its_evictions_are_made_later(
    server: RedisProcess, open_store: OpenStore
) -> None:
    store = open_store(server.url, query="near=0&timeout=0.1")
    old, other = put(store, "old"), put(store, "other")
    server.signal(signal.SIGSTOP)
    try:
        failed = store.apply(entry_of(store, "new"), evict=[old])
        assert isinstance(failed.exception(60), StoreError)
        assert store.get(old) is None
    finally:
        server.signal(signal.SIGCONT)
    wait_until(lambda: store.get(other) is not None)
    wait_until(lambda: [info.key for info in store.scan()] == [other])
    assert store.get(key_of("new")) is None
    store.check()


def test_an_owner_notices_without_writing_that_it_was_replaced(engine: RedisProcess, open_store: OpenStore) -> None:
    first, second = open_store(engine.url), open_store(engine.url)
    with engine.client() as client:
        client.delete(first._member.attachment().names.owner)
    assert second.own()
    wait_until(lambda: not first.owner)
    assert first.counters()["ownership_lost"] == 1


def test_an_owner_goes_on_when_its_lease_ran_out_and_nobody_else_took_it(
    engine: RedisProcess, open_store: OpenStore
) -> None:
    store = open_store(engine.url)
    names = store._member.attachment().names
    with engine.client() as client:
        client.delete(names.owner)
        wait_until(lambda: client.exists(names.owner))
    assert store.owner
    assert store.get(put(store, 1)) is not None


def test_a_store_survives_that_its_server_is_emptied(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    key = put(store, 1)
    with server.client() as client:
        client.flushall()
    assert store.get(key) is None
    store.apply(entry_of(store, 2)).exception(60)  # finds the totals gone, and opens the shard again
    assert store.get(put(store, 3)) is not None
    assert store.owner
    store.check()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_engine_that_evicts_is_refused(server: RedisProcess, open_store: OpenStore, policy: str) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
    with pytest.raises(InvalidInput, match=f"maxmemory-policy of the server must be noeviction, not {policy}"):
        open_store(server.url)


def test_a_full_engine_refuses_puts_and_makes_evictions(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    key = put(store, 1)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        assert isinstance(store.apply(entry_of(store, 2)).exception(60), StoreError)
        wait_until(lambda: store.server_state().state == "read-only")
        assert "out of memory" in store.server_state().reason
        assert (store.counters()["read_only_nodes"], store.counters()["breakers_open"]) == (1, 0)
        lease = store._member.attachment().lease
        assert lease.renew(), "the owner cannot renew its lease"
        assert 0 < client.pttl(store._member.attachment().names.owner) <= LEASE_SECONDS * 1000
        assert store.get(key) is not None
        store.apply(evict=[key]).result(60)
        assert store.get(key) is None
        client.config_set("maxmemory", 0)
    wait_until(lambda: store.server_state() == ServerState())
    assert store.get(put(store, 2)) is not None
    store.check()


def test_another_secret_or_encryption_is_refused(engine: RedisProcess, open_store: OpenStore) -> None:
    open_store(engine.url, secret=b"one")
    with pytest.raises(StoreError, match="was written with another secret"):
        open_store(engine.url, secret=b"two")
    with pytest.raises(StoreError, match="is not encrypted: it takes no key"):
        open_store(engine.url, secret=b"one", encryption_keys=[b"k" * 32])


def test_another_secret_is_refused_by_an_engine_that_lost_its_data(server: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(server.url, secret=b"one"), open_store(server.url, secret=b"one", own=False)
    put(owner, 1)
    meta = owner.address.prefix.join(("{", ":o}:meta"))
    with server.client() as client:
        for restart in (False, True):
            if restart:
                server.kill()
                server.start()
            else:
                client.flushall()
            wait_until(lambda: client.hget(meta, "secret") == owner._sealer.secret_mark.hex().encode())
            with pytest.raises(StoreError, match="was written with another secret"):
                open_store(server.url, secret=b"two")
        owner.close()
        reader.own()
        mark = client.hget(meta, "secret")
        client.delete(meta)  # and a process with another secret is faster than those that run
        client.hset(meta, mapping={"format": 1, "shards": 1, "secret": "ab" * 16, "encrypted": 0, "since": 10**17})
        wait_until(lambda: client.hget(meta, "secret") == mark)
        wait_until(reader.own)
        assert reader.get(put(reader, 2)) is not None
        reader.check()


def test_a_process_that_was_faster_with_another_secret_stops_using_the_store(
    server: RedisProcess, open_store: OpenStore
) -> None:
    first = open_store(server.url, secret=b"one")
    meta = first.address.prefix.join(("{", ":o}:meta"))
    with server.client() as client:
        older = client.hgetall(meta)
        client.delete(meta)
        client.hset(meta, mapping=older | {b"secret": b"ab" * 16, b"since": b"1"})  # it was there before
        wait_until(lambda: first.server_state().state == "away")
        assert "another secret" in first.server_state().reason
        assert (first.owner, first.get(key_of(1))) == (False, None)
        client.delete(meta)
    wait_until(first.own)
    assert first.get(put(first, 1)) is not None


def test_damaged_values_are_misses(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    names = store._member.attachment().names
    with engine.client() as client:
        for damage in (b"", b"x", None):
            key = put(store, 1)
            stored = names.tags[0] + b":a:" + key
            value = client.get(stored)
            client.set(stored, value[:-1] + bytes([value[-1] ^ 1]) if damage is None else damage)
            assert store.get(key) is None
            store.flush()
            assert not client.exists(stored), "the damaged entry was not removed"
        one, two = put(store, "one"), put(store, "two")
        client.copy(names.tags[0] + b":a:" + one, names.tags[0] + b":a:" + two, replace=True)
        assert store.get(two) is None, "the answer to another request was returned"
    assert store.counters()["damaged"] == 4
