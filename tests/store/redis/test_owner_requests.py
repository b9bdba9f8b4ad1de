"""Any process of a store can ask its owner."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from knapcache.errors import NotOwner, StoreError
from knapcache.store.redis import owner_exchange
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until


def test_the_owner_hears_of_a_request_and_its_reply_reaches_the_process_that_asked(
    engine: RedisProcess, open_store: OpenStore
) -> None:
    owner, one, two = (open_store(engine.url, encryption_keys=[b"k" * 32]) for _ in range(3))
    wait_until(lambda: owner._near.subscribed)
    taken: dict[bytes, bytes] = {}

    def take_both() -> bool:
        if owner.has_arrivals:
            taken.update(owner.take_owner_requests())
        return len(taken) == 2

    with ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(store.ask, name) for store, name in ((one, b"one"), (two, b"two"))]
        wait_until(take_both)
        for number, request in taken.items():
            owner.reply(number, b"reply to " + request)
        assert [reply.result() for reply in replies] == [b"reply to one", b"reply to two"]
    assert list(owner.take_owner_requests()) == []
    assert not owner.has_arrivals


def test_without_an_owner_there_is_no_reply(engine: RedisProcess, open_store: OpenStore) -> None:
    reader = open_store(engine.url, own=False)
    with pytest.raises(NotOwner, match="no process owns the store now"):
        reader.ask(b"?", seconds=0.1)
    with pytest.raises(NotOwner):
        list(reader.take_owner_requests())


def test_requests_and_replies_are_bounded_and_sealed(engine: RedisProcess, open_store: OpenStore) -> None:
    owner, reader = open_store(engine.url), open_store(engine.url)
    with pytest.raises(StoreError, match="at most"):
        reader.ask(bytes(owner_exchange.MAX_BYTES + 1))
    names = owner._member.attachment().names
    with engine.client() as client:
        client.rpush(names.owner_requests, b"", b"x" * 10, b"y" * 100)
    assert list(owner.take_owner_requests()) == []
    with engine.client() as client:
        client.rpush(names.owner_requests, *[b"x"] * owner_exchange.MAX_WAITING)
    with pytest.raises(StoreError, match="wait for the owner"):
        reader.ask(b"?")


def test_unknown_messages_are_no_arrivals(engine: RedisProcess, open_store: OpenStore) -> None:
    owner = open_store(engine.url)
    for message in (b"", b"-1", b"4096", b"x" * 1000, b"12 "):
        owner._on_arrival(message)
    assert not owner.has_arrivals
    owner._on_arrival(b"77")  # a shard that this store does not have
    assert list(owner.collect_arrivals()) == []
    assert not owner.has_arrivals
