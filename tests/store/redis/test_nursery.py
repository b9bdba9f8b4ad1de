"""The nursery: readers find what was handed over, and the owner decides about each once."""

from __future__ import annotations

import pytest

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.redis import nursery
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess
from tests.support.stores import entry_of


def test_readers_find_an_answer_before_the_owner_decides(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, one, two = (open_store(engine.url) for _ in range(3))
    entry = entry_of(one, 1)
    one.hand_over(entry)
    assert (two.get(entry.key), owner.get(entry.key), owner.totals().entries) == (entry, None, 0)


def test_an_admitted_answer_is_renamed_and_its_bytes_are_not_sent_again(
    engine: RedisProcess, open_store: OpenStore
) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    entry = entry_of(reader, 1, 30_000)
    reader.hand_over(entry)
    (collected,) = owner.collect()
    with engine.client() as client:
        before = client.info("stats")["total_net_input_bytes"]
        owner.apply(collected).result(60)
        assert client.info("stats")["total_net_input_bytes"] - before < 10_000
    assert (owner.get(entry.key), reader.get(entry.key), owner.totals()) == (entry, entry, (1, entry.size))
    assert list(owner.collect()) == []
    assert reader.get(entry.key) == entry
    owner.check()


def test_an_answer_that_was_not_admitted_stays_for_a_moment(
    engine: RedisProcess, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    entry = entry_of(reader, 1)
    reader.hand_over(entry)
    assert list(owner.collect()) == [entry]
    assert list(owner.collect()) == []
    owner.flush()
    assert reader.get(entry.key) == entry, "processes that wait for it do not find it"
    monkeypatch.setattr(nursery, "KEEP_SECONDS", 0.0)
    assert list(owner.collect()) == []
    owner.flush()
    assert reader.get(entry.key) is None
    owner.check()


def test_the_oldest_give_way(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    entries = [entry_of(reader, k, 4000) for k in range(30)]
    for entry in entries:
        reader.hand_over(entry)
    found = [reader.get(entry.key) is not None for entry in entries]
    assert found == sorted(found)
    assert 3 <= sum(found) < 30
    assert list(owner.collect()) == [entry for entry, is_there in zip(entries, found, strict=True) if is_there]
    with pytest.raises(StoreError, match="more than the nursery takes"):
        reader.hand_over(entry_of(reader, "large", 100_000))
    owner.check()


def test_an_import_waits_until_the_owner_has_collected(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    parked = []

    def park_all() -> None:
        for k in range(30):
            entry = entry_of(reader, k, 4000)
            reader.hand_over(entry, displace=False)
            parked.append(entry)

    with pytest.raises(StoreError, match="the nursery is full"):
        park_all()
    owner.check()
    assert list(owner.collect()) == parked, "none was displaced"
    reader.hand_over(entry_of(reader, 30, 4000), displace=False)  # in place of one that was collected
    with pytest.raises(InvalidInput, match="more than the nursery takes"):
        reader.hand_over(entry_of(reader, "large", 100_000), displace=False)
    owner.check()


def test_an_eviction_also_removes_an_undecided_answer(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    entry = entry_of(reader, 1)
    reader.hand_over(entry)
    owner.apply(evict=[entry.key]).result(60)
    assert reader.get(entry.key) is None
    assert list(owner.collect()) == []


def test_a_newer_undecided_answer_is_preferred(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    old, new = entry_of(owner, 1), entry_of(owner, 1, version=1)
    owner.apply(old).result(60)
    reader.hand_over(new)
    assert (owner.get(old.key), reader.get(old.key)) == (old, new)
    (collected,) = owner.collect()
    owner.apply(collected).result(60)
    assert (owner.get(old.key), owner.totals().entries) == (new, 1)
    owner.check()


def test_what_a_former_owner_collected_is_not_collected_again(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    first, second = entry_of(reader, 1), entry_of(reader, 2)
    reader.hand_over(first)
    assert list(owner.collect()) == [first]
    reader.hand_over(second)
    owner.close()
    assert reader.own()
    assert list(reader.collect()) == [second]
    reader.check()


def test_nothing_can_be_handed_over_before_there_was_an_owner(engine: RedisProcess, open_store: OpenStore) -> None:
    reader = open_store(engine.url, own=False)
    with pytest.raises(StoreError, match="has had no owner yet"):
        reader.hand_over(entry_of(reader, 1))
