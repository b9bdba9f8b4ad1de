"""A primary is killed under load: a replica is promoted, no read fails, and the totals stay consistent."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path

import pytest
from redis.cluster import NodesManager

from knapcache.errors import StoreError
from knapcache.store.base import Entry
from knapcache.store.redis.ownership import LEASE_SECONDS
from knapcache.store.redis.store import RedisStore
from tests.store.redis.conftest import OpenStore
from tests.support.certificates import make_certificate
from tests.support.engine_cuts import cut_repeatedly
from tests.support.owner_scenarios import check_when_it_answers, kill_owners, replace_owners, wake_stopped_owners
from tests.support.redis_servers import ClusterProcesses, RedisProcess, SentinelGroup
from tests.support.stores import entry_of, is_right, key_of
from tests.support.timing import check_seconds, wait_until, within


class Load:
    """Puts and reads in threads. Reads must neither raise nor return a wrong answer."""

    def __init__(self, owner: RedisStore, reader: RedisStore) -> None:
        self.owner, self.reader = owner, reader
        self.wrong: list[object] = []
        self.last_put = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name = number % 200
            try:
                self.owner.apply(entry_of(self.owner, name, 300 + number % 2000)).result(60)
            except StoreError:
                time.sleep(0.01)
            else:
                self.last_put = time.monotonic()

    def _read(self) -> None:
        number = 0
        while not self._stop.is_set():
            number = (number + 1) % 200
            try:
                entry = self.reader.get(key_of(number))
            except Exception as error:
                self.wrong.append(error)
            else:
                if entry is not None and not is_right(entry, number):
                    self.wrong.append(number)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.wrong == []


def survive(owner: RedisStore, reader: RedisStore, primary: RedisProcess) -> None:
    """Kill the primary under load, wait until puts go on, and check the totals."""
    load = Load(owner, reader)
    try:
        wait_until(lambda: owner.totals().entries > 150)
        primary.kill()
        wait_until(lambda: owner.counters()["breakers_opened"] > 0)
        killed = time.monotonic()
        wait_until(lambda: load.last_put > killed + 0.5)
        wait_until(lambda: all(reader.get(key_of(number)) is not None for number in range(0, 200, 20)))
    finally:
        load.stop()
    assert owner.owner
    check_when_it_answers(owner)


def test_sentinel_promotes_a_replica(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(SentinelGroup(tmp_path)) as group:
        owner = open_store(group.url, query="near=0&shards=4")
        survive(owner, open_store(group.url, query="near=100kB"), group.primary)


@pytest.mark.long
def test_a_cluster_promotes_a_replica(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(ClusterProcesses(tmp_path, replicas=1)) as cluster:
        owner = open_store(cluster.url, query="near=0&shards=12")
        survive(owner, open_store(cluster.url, query="near=100kB"), cluster.servers[1])


def test_each_frozen_node_of_a_cluster_delays_one_read(
    cluster: ClusterProcesses, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = []
    initialize = NodesManager.initialize

    def note_thread(self: NodesManager, *args: object, **options: object) -> None:
        asking.append(threading.current_thread())
        initialize(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(NodesManager, "initialize", note_thread)
    store = open_store(cluster.url, query="near=0&shards=16&timeout=0.1")
    keys = [key_of(k) for k in range(64)]
    store.apply(entry_of(store, 0)).result(60)
    asking.clear()
    for server in cluster.servers:
        server.signal(signal.SIGSTOP)
    try:
        with within(2.0, "a read of every shard: one timeout for each node"):
            for key in keys:
                assert store.get(key) is None
        wait_until(lambda: bool(asking))
        assert threading.current_thread() not in asking, "a read has waited for the topology of the cluster"
    finally:
        for server in cluster.servers:
            server.signal(signal.SIGCONT)
    wait_until(lambda: store.get(keys[0]) is not None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # redis-py leaves sockets open
def test_a_cluster_with_tls_promotes_a_replica(tmp_path: Path, open_store: OpenStore) -> None:
    made = make_certificate(tmp_path / "tls", "IP:127.0.0.1")
    try:
        cluster = ClusterProcesses(tmp_path, replicas=1, tls=made)
    except AssertionError:
        pytest.skip("the server was built without TLS")
    with closing(cluster):
        owner = open_store(cluster.url, query=f"near=0&shards=12&ca={made.cert}")
        survive(owner, open_store(cluster.url, query=f"near=100kB&ca={made.cert}"), cluster.servers[1])


def owner_port(server: RedisProcess, slot: int) -> int:
    """Return the port of the node that has a slot, in the view of a server."""
    with server.client() as client:
        slots = client.execute_command("CLUSTER SLOTS")
    return next(int(node[1]) for first, last, node, *_ in slots if first <= slot <= last)


def move_slot(slot: int, source: RedisProcess, target: RedisProcess, servers: list[RedisProcess]) -> int:
    """Move a slot to another node key by key, as resharding tools do. Return the number of keys moved."""
    moved = 0
    with source.client() as old, target.client() as new:
        old.response_callbacks.pop("CLUSTER GETKEYSINSLOT", None)  # it decodes keys, and ours are bytes
        old_id, new_id = (client.execute_command("CLUSTER MYID").decode() for client in (old, new))
        new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", new_id)
        while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 10):
            old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)
            moved += len(keys)
    for _ in range(3):  # gossip of the former owner may undo it at one node, and then the nodes disagree for good
        for server in sorted(servers, key=lambda each: each is not target):
            with server.client() as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
        time.sleep(0.3)
    wait_until(lambda: {owner_port(server, slot) for server in servers} == {target.port})
    return moved


def has_keys(server: RedisProcess, slot: int) -> bool:
    with server.client() as client:
        return bool(client.execute_command("CLUSTER COUNTKEYSINSLOT", slot))


@pytest.mark.long
def test_space_moves_while_one_primary_has_no_replica(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(ClusterProcesses(tmp_path, replicas=1)) as cluster:
        store = open_store(cluster.url, query="near=0&shards=12")
        writer, _ = store._member.ownership()
        assert len(writer.table._replicated) == 3
        cluster.servers[3].kill()  # the replica of the first primary, which is as one that was promoted
        wait_until(lambda: len(writer.table._replicated) == 2)
        stored: deque[Entry] = deque()
        for number in range(400):
            entry, evict = entry_of(store, number, 2000 + 50 * (number % 400)), []
            while sum(each.size for each in stored) + entry.size > store.capacity:
                evict.append(stored.popleft().key)
            store.apply(entry, evict=evict).result(60)
            stored.append(entry)
        assert not store.counters().get("failed_writes")
        store.check()


@pytest.mark.long
def test_slots_move_under_load(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(ClusterProcesses(tmp_path)) as cluster:
        owner = open_store(cluster.url, query="near=0&shards=6")
        load = Load(owner, open_store(cluster.url, query="near=0"))
        try:
            wait_until(lambda: owner.totals().entries > 150)
            for key in owner._member.attachment().names.totals:
                slot = owner._member.server.client().keyslot(key)
                source = next(server for server in cluster.servers if has_keys(server, slot))
                target = next(server for server in cluster.servers if server is not source)
                assert move_slot(slot, source, target, cluster.servers) > 10
            moved = time.monotonic()
            wait_until(lambda: load.last_put > moved + 0.5)
            wait_until(lambda: all(load.reader.get(key_of(number)) is not None for number in range(0, 200, 20)))
        finally:
            load.stop()
        check_when_it_answers(owner)


def test_owners_that_are_stopped_and_wake_up_are_fenced(engine: RedisProcess) -> None:
    assert wake_stopped_owners(engine, 2, together=2)["fenced"] == 2


def test_a_former_owner_never_replaces_what_a_new_one_wrote(engine: RedisProcess) -> None:
    assert replace_owners(engine, 20) == {"rounds": 20, "refused": 80, "stale_snapshots": 40}


@pytest.mark.long
def test_a_reader_takes_over_when_the_owner_is_killed(engine: RedisProcess) -> None:
    found = kill_owners(engine, 1000, 2, "lru")
    check_seconds(max(found["decides_seconds"]), LEASE_SECONDS + 5.0, "the takeover")


@pytest.mark.parametrize("cuts", [4, pytest.param(50, marks=pytest.mark.long)])
def test_the_books_are_consistent_after_cuts(tmp_path: Path, cuts: int) -> None:
    found = cut_repeatedly(tmp_path, cuts)
    assert (found["cuts"], found["promotions"]) == (cuts, cuts // 2)


@pytest.mark.long
def test_changes_that_were_not_replicated_are_lost_as_a_whole(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(SentinelGroup(tmp_path)) as group:
        store = open_store(group.url, query="near=0&shards=4")
        for number in range(100):
            store.apply(entry_of(store, number, 300 + number)).result(60)
        with group.primary.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        group.replica.signal(signal.SIGSTOP)  # what follows is not replicated
        for number in range(50, 150):
            change = store.apply(entry_of(store, number, 900), evict=[key_of(number - 50)])
        change.exception(60)
        group.primary.kill()
        group.replica.signal(signal.SIGCONT)
        wait_until(lambda: store.apply(entry_of(store, "after", 100)).exception(60) is None)
        check_when_it_answers(store)
        for info in store.scan():
            assert store.get(info.key) is not None
        assert sum(limit for *_, limit in store._member.attachment().reader.shard_totals()) <= store.capacity
