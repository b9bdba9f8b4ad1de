"""A primary is killed under load: a replica is promoted, no read fails, and the books stay consistent."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.store.redis.store import RedisStore
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import EngineCluster, EngineServer, SentinelGroup, wait_until
from tests.support.stores import entry_of, is_right, key_of


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
                self.owner.apply(entry_of(self.owner, name, 300 + number % 2000)).result(30)
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


def survive(owner: RedisStore, reader: RedisStore, primary: EngineServer) -> None:
    """Kill the primary under load, wait until puts go on, and check the books."""
    load = Load(owner, reader)
    try:
        wait_until(lambda: owner.totals().entries > 150)
        primary.kill()
        wait_until(lambda: owner.counters()["breakers_opened"] > 0)
        killed = time.monotonic()
        wait_until(lambda: load.last_put > killed + 0.5, 60)
        wait_until(lambda: all(reader.get(key_of(number)) is not None for number in range(0, 200, 20)), 60)
    finally:
        load.stop()
    assert owner.owner
    owner.flush()
    owner.check()


def test_sentinel_promotes_a_replica(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(SentinelGroup(tmp_path)) as group:
        owner = open_store(group.url, query="near=0&shards=4")
        survive(owner, open_store(group.url, query="near=100kB"), group.primary)


@pytest.mark.long
def test_a_cluster_promotes_a_replica(tmp_path: Path, open_store: OpenStore) -> None:
    with closing(EngineCluster(tmp_path, replicas=1)) as cluster:
        owner = open_store(cluster.url, query="near=0&shards=12")
        survive(owner, open_store(cluster.url, query="near=100kB"), cluster.servers[1])
