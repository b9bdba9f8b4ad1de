"""Logs of records in the engine: one order for all processes, bounded, on every topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.store.redis.record_logs import MAX_APPENDED, NO_RECORD, RecordLogs
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import EngineCluster, EngineServer, SentinelGroup


def contents(logs: RecordLogs, kind: str = "a", after: str = "") -> list[bytes]:
    return [content for _, content in logs.read(kind, after, 10_000)]


def exercise(first: RecordLogs, second: RecordLogs) -> None:
    assert first.epoch() == ""
    first.append("a", [(b"x", b"1"), (b"", b"2"), (b"y", b"3")], 100)
    second.append("b", [(b"x", b"other")], 100)
    assert first.epoch() == second.epoch() != ""
    assert contents(second) == [b"1", b"2", b"3"]
    ids = [number for number, _ in second.read("a", "", 2)]
    assert contents(second, after=ids[1]) == [b"3"]
    second.append("a", [(b"x", b"4"), (b"y", NO_RECORD), (b"unknown", NO_RECORD)], 100)
    assert contents(first) == [b"2", b"4"]
    assert contents(first, "b") == [b"other"]


def test_processes_read_the_same_records_on_a_server(engine: EngineServer, open_store: OpenStore) -> None:
    exercise(open_store(engine.url).record_logs, open_store(engine.url).record_logs)


def test_processes_read_the_same_records_in_a_cluster(cluster: EngineCluster, open_store: OpenStore) -> None:
    exercise(open_store(cluster.url).record_logs, open_store(cluster.url).record_logs)


def test_processes_read_the_same_records_under_sentinel(sentinel: SentinelGroup, open_store: OpenStore) -> None:
    exercise(open_store(sentinel.url).record_logs, open_store(sentinel.url).record_logs)


def test_the_oldest_records_and_their_names_are_removed(engine: EngineServer, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    logs = store.record_logs
    count = MAX_APPENDED + 50
    logs.append("a", [(b"n%d" % number, b"%d" % number) for number in range(count)], 20)
    assert contents(logs) == [b"%d" % number for number in range(count - 20, count)]
    assert logs.count("a") == 20
    with engine.client() as client:
        names = client.hkeys(f"{{{store.address.prefix}:o}}:l:a.i")
    assert sorted(names) == sorted(b"n%d" % number for number in range(count - 20, count))


def test_an_engine_that_lost_its_data_has_another_epoch(tmp_path: Path, open_store: OpenStore) -> None:
    with EngineServer(tmp_path) as server:
        logs = open_store(server.url).record_logs
        logs.append("a", [(b"", b"1")], 100)
        epoch = logs.epoch()
        with server.client() as client:
            client.flushall()
        assert logs.epoch() == ""
        assert contents(logs) == []
        logs.append("a", [(b"", b"2")], 100)
        assert logs.epoch() not in ("", epoch)
        server.kill()
        for use in (logs.epoch, lambda: logs.append("a", [(b"", b"3")], 100), lambda: logs.read("a", "", 1)):
            with pytest.raises(StoreError):
                use()


def test_a_closed_store_has_no_logs(engine: EngineServer, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.record_logs.read("a", "", 1)
