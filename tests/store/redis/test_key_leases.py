"""Single flight across processes: one of them calls the upstream for a key."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from knapcache.store.redis import nursery
from knapcache.store.redis.key_leases import LEASE_SECONDS, KeyLease
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of, key_of
from tests.support.timing import wait_until


def test_one_leads_and_the_others_find_its_answer(url: str, open_store: OpenStore) -> None:
    owner, one, two = (open_store(url, query="near=0&shards=4") for _ in range(3))
    entry = entry_of(one, 1)
    lease = one.lead(entry.key)
    assert isinstance(lease, KeyLease)
    assert lease._key, "other processes do not respect it"
    assert (two.lead(entry.key), owner.lead(entry.key)) == (None, None)
    assert isinstance(two.lead(key_of("other")), KeyLease)
    one.hand_over(entry)
    assert (two.lead(entry.key), owner.lead(entry.key)) == (entry, entry)
    lease.end()
    assert not one._member.key_leases.remove(lease), "an ended lease is renewed no longer"
    owner.apply(evict=[entry.key]).result(60)
    assert isinstance(two.lead(entry.key), KeyLease)


def test_a_lease_lasts_as_long_as_its_holder(engine: RedisProcess, open_store: OpenStore) -> None:
    one, two = open_store(engine.url), open_store(engine.url)
    lease = one.lead(key_of(1), seconds=2.0)
    assert isinstance(lease, KeyLease)
    with engine.client() as client:
        first = client.pexpiretime(lease._key)
        wait_until(lambda: client.pexpiretime(lease._key) > first)  # renewed
        assert two.lead(key_of(1)) is None
        one._member.key_leases.remove(lease)  # as if its process had died
        assert client.pexpire(lease._key, 50)
    taken = wait_until(lambda: two.lead(key_of(1)))
    assert isinstance(taken, KeyLease)
    assert not lease.renew()
    lease.end()  # another process has it by now
    assert one.lead(key_of(1)) is None
    taken.end()
    assert isinstance(one.lead(key_of(1)), KeyLease)


def test_a_closed_store_ends_its_leases(engine: RedisProcess, open_store: OpenStore) -> None:
    one, two = open_store(engine.url), open_store(engine.url)
    assert isinstance(one.lead(key_of(1)), KeyLease)
    one.close()
    assert isinstance(two.lead(key_of(1)), KeyLease)


def test_the_owner_leaves_an_answer_that_it_did_not_store_for_those_who_wait(
    engine: RedisProcess, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, one = open_store(engine.url), open_store(engine.url)
    alone, waited_for = entry_of(owner, 1), entry_of(owner, 2)
    for entry, waits in ((alone, False), (waited_for, True)):
        lease = owner.lead(entry.key)
        assert isinstance(lease, KeyLease)
        assert not waits or one.lead(entry.key) is None
        lease.end(entry)
    assert isinstance(one.lead(alone.key), KeyLease)
    assert one.lead(waited_for.key) == waited_for
    assert list(owner.collect()) == [], "the owner decides twice"
    monkeypatch.setattr(nursery, "KEEP_SECONDS", 0.0)
    assert list(owner.collect()) == []
    owner.flush()
    assert isinstance(one.lead(waited_for.key), KeyLease), "the answer stays for ever"
    owner.check()


def test_an_answer_that_cannot_be_left_does_not_keep_the_lease(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, one = open_store(engine.url), open_store(engine.url)
    entry = entry_of(owner, 1, 100_000)  # larger than the nursery
    lease = owner.lead(entry.key)
    assert isinstance(lease, KeyLease)
    assert one.lead(entry.key) is None
    lease.end(entry)
    assert isinstance(one.lead(entry.key), KeyLease)


def test_the_owner_does_not_leave_an_answer_that_it_stored(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, one = open_store(engine.url), open_store(engine.url)
    entry = entry_of(owner, 1)
    lease = owner.lead(entry.key)
    assert isinstance(lease, KeyLease)
    assert one.lead(entry.key) is None
    owner.apply(entry).result(60)
    lease.end(entry)
    assert one.lead(entry.key) == entry
    with engine.client() as client:
        assert not client.exists(one._member.attachment().reader.value_keys(entry.key, undecided=True)[1])


def test_an_expired_or_damaged_answer_is_as_none(engine: RedisProcess, open_store: OpenStore) -> None:
    now = 1000.0
    store = open_store(engine.url, clock=lambda: now)
    entry = entry_of(store, 1, expires=1010.0)
    store.apply(entry).result(60)
    assert store.lead(entry.key) == entry
    now = 1010.0
    assert isinstance(store.lead(entry.key), KeyLease)
    damaged = entry_of(store, 2)
    store.apply(damaged).result(60)
    with engine.client() as client:
        client.set(store._member.attachment().reader.value_keys(damaged.key, undecided=False)[0], b"x")
    assert isinstance(store.lead(damaged.key), KeyLease)


def test_without_an_engine_everybody_leads(tmp_path: Path, open_store: OpenStore) -> None:
    with RedisProcess(tmp_path) as server:
        store = open_store(server.url)
        server.signal(signal.SIGSTOP)
        lease = store.lead(key_of(1))
        assert isinstance(lease, KeyLease)
        assert not lease._key, "other processes respect it"
        lease.end()
        server.signal(signal.SIGCONT)


def test_leases_of_a_stopped_engine_do_not_outlive_the_stop(tmp_path: Path, open_store: OpenStore) -> None:
    with RedisProcess(tmp_path) as server:
        one, two = open_store(server.url), open_store(server.url)
        held = one.lead(key_of("held"))
        server.signal(signal.SIGSTOP)
        try:
            assert isinstance(held, KeyLease)
            held.end()
            one._member.breakers.close("")  # the next command is sent, and executed when the server goes on
            assert isinstance(one.lead(key_of("sent")), KeyLease)
        finally:
            server.signal(signal.SIGCONT)
        for name in ("held", "sent"):
            found = wait_until(partial(two.lead, key_of(name)), "the lease", LEASE_SECONDS / 2)
            assert isinstance(found, KeyLease)
