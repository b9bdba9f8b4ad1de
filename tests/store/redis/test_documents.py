"""Documents of the processes of a store for each other."""

from __future__ import annotations

import pytest

from knapcache.errors import InvalidInput, StoreError
from knapcache.store.redis.documents import MAX_DOCUMENT
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import ClusterProcesses, RedisProcess
from tests.support.timing import wait_until

KEY = bytes(range(32))


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_a_document_is_found_by_other_processes(
    engine: RedisProcess, open_store: OpenStore, keys: tuple[bytes]
) -> None:
    first, second = (open_store(engine.url, encryption_keys=keys).documents for _ in range(2))
    assert second.get("proxy", "a") is None
    first.put("proxy", "a", b"one" * 9, 60.0, limit=10)
    first.put("proxy", "a", b"two" * 9, 60.0, limit=10)
    first.put("proxy", "b", b"", 61.0, limit=10)
    assert (second.get("proxy", "a"), second.get("proxy", "b")) == (b"two" * 9, b"")
    assert list(second.ends("proxy", 10)) == ["b", "a"]
    assert list(second.ends("proxy", 1)) == ["b"]
    assert list(second.ends("session", 10)) == []
    second.remove("proxy", "a")
    assert first.get("proxy", "a") is None
    assert list(first.ends("proxy", 10)) == ["b"]
    with engine.client() as client:
        stored = [client.get(key) for key in client.keys("*:d:proxy:b")]
    assert stored
    assert not any(b"two" in value for value in stored) or not keys


def test_a_document_ends(engine: RedisProcess, open_store: OpenStore) -> None:
    documents = open_store(engine.url).documents
    documents.put("proxy", "a", b"content", 0.05, limit=10)
    wait_until(lambda: documents.get("proxy", "a") is None)


def test_a_kind_has_a_limit_and_those_that_end_first_give_way(engine: RedisProcess, open_store: OpenStore) -> None:
    documents = open_store(engine.url).documents
    for k in range(5):
        documents.put("proxy", f"n{k}", b"content", 60.0 + k, limit=3)
    assert list(documents.ends("proxy", 10)) == ["n4", "n3", "n2"]
    assert documents.get("proxy", "n1") is None


def test_foreign_damaged_and_huge_documents_are_ignored_and_counted(
    engine: RedisProcess, open_store: OpenStore
) -> None:
    store = open_store(engine.url)
    store.documents.put("proxy", "good", b"content", 60.0, limit=10)
    tag = f"{{{store.address.prefix}:o}}:d:proxy".encode()
    with engine.client() as client:
        good = client.get(tag + b":good")
        for name, value in {
            "flipped": good[:-1] + b"x",
            "renamed": good,
            "short": b"x",
            "huge": b"x" * (MAX_DOCUMENT * 2),
        }.items():
            client.set(tag + b":" + name.encode(), value)
            client.zadd(tag, {name: 2e9})
        client.zadd(tag, {b"\xff\x00": 2e9, "../x": 2e9})
    assert sorted(store.documents.ends("proxy", 10)) == ["flipped", "good", "huge", "renamed", "short"]
    assert [store.documents.get("proxy", name) for name in ("flipped", "renamed", "short", "huge")] == [None] * 4
    assert store.counters()["damaged_documents"] == 4


def test_what_cannot_be_stored_is_refused(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    with pytest.raises(InvalidInput, match="at most 262144 bytes"):
        store.documents.put("proxy", "a", b"x" * (MAX_DOCUMENT + 1), 60.0, limit=10)
    for name in ("", "a b", "a:b", "x" * 65):
        with pytest.raises(InvalidInput, match="1 to 64 letters"):
            store.documents.get("proxy", name)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.documents.get("proxy", "a")


def test_documents_of_a_cluster_are_on_one_node(cluster: ClusterProcesses, open_store: OpenStore) -> None:
    documents = open_store(cluster.url).documents
    documents.put("proxy", "a", b"content", 60.0, limit=10)
    assert list(documents.ends("proxy", 10)) == ["a"]
    assert documents.get("proxy", "a") == b"content"


def test_a_process_that_may_not_own_stays_a_reader(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url, own=False)
    store.may_own = False
    assert not store.own()
    store.may_own = True
    assert store.own()
