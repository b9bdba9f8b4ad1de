"""Logs of records in the server: one order for all processes, bounded, on every topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from knapcache.errors import StoreError
from knapcache.store.redis.record_logs import MAX_APPENDED, NO_RECORD, LogChange, RecordLogs
from tests.store.redis.conftest import OpenStore
from tests.support.redis_servers import RedisProcess


def contents(logs: RecordLogs, kind: str = "a", after: str = "") -> list[bytes]:
    return [content for _, content in logs.read(kind, after, 10_000)]


def exercise(first: RecordLogs, second: RecordLogs) -> None:
    assert first.epoch() == ""
    first.append("a", [LogChange(b"x", b"1"), LogChange(b"", b"2"), LogChange(b"y", b"3")], 100)
    second.append("b", [LogChange(b"x", b"other")], 100)
    assert first.epoch() == second.epoch() != ""
    assert contents(second) == [b"1", b"2", b"3"]
    ids = [number for number, _ in second.read("a", "", 2)]
    assert contents(second, after=ids[1]) == [b"3"]
    second.append("a", [LogChange(b"x", b"4"), LogChange(b"y", NO_RECORD), LogChange(b"unknown", NO_RECORD)], 100)
    assert contents(first) == [b"2", b"4"]
    assert contents(first, "b") == [b"other"]


def test_processes_read_the_same_records(url: str, open_store: OpenStore) -> None:
    exercise(open_store(url).record_logs, open_store(url).record_logs)


def test_the_oldest_records_and_their_names_are_removed(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    logs = store.record_logs
    count = MAX_APPENDED + 50
    logs.append("a", [LogChange(b"n%d" % number, b"%d" % number) for number in range(count)], 20)
    assert contents(logs) == [b"%d" % number for number in range(count - 20, count)]
    assert logs.count("a") == 20
    with engine.client() as client:
        names = client.hkeys(f"{{{store.address.prefix}:o}}:l:a.i")
    assert sorted(names) == sorted(b"n%d" % number for number in range(count - 20, count))


def test_records_of_an_earlier_version_are_removed_first(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    logs = store.record_logs
    stream = f"{{{store.address.prefix}:o}}:l:a"
    with engine.client() as client:
        for number in range(3):
            client.hset(f"{stream}.i", b"o%d" % number, client.xadd(stream, {"n": b"o%d" % number, "r": b"old"}))
    logs.append("a", [LogChange(b"", b"%d" % number, b"one") for number in range(3)], 4)
    assert contents(logs) == [b"old", b"0", b"1", b"2"]
    logs.append("a", [LogChange(b"", b"3", b"two")], 4)
    assert contents(logs) == [b"0", b"1", b"2", b"3"]
    with engine.client() as client:  # an earlier version removes the oldest record, and counts no scopes
        client.xdel(stream, logs.read("a", "", 1)[0][0])
    logs.append("a", [LogChange(b"", b"%d" % number, b"two") for number in range(4, 8)], 4)
    assert contents(logs) == [b"2", b"5", b"6", b"7"]
    assert logs.count("a") == 4
    with engine.client() as client:
        assert client.hkeys(f"{stream}.i") == []


def test_an_engine_that_lost_its_data_has_another_epoch(tmp_path: Path, open_store: OpenStore) -> None:
    with RedisProcess(tmp_path) as server:
        logs = open_store(server.url).record_logs
        logs.append("a", [LogChange(b"", b"1")], 100)
        epoch = logs.epoch()
        with server.client() as client:
            client.flushall()
        assert logs.epoch() == ""
        assert contents(logs) == []
        logs.append("a", [LogChange(b"", b"2")], 100)
        assert logs.epoch() not in ("", epoch)
        server.kill()
        for use in (logs.epoch, lambda: logs.append("a", [LogChange(b"", b"3")], 100), lambda: logs.read("a", "", 1)):
            with pytest.raises(StoreError):
                use()


def test_a_closed_store_has_no_logs(engine: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(engine.url)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.record_logs.read("a", "", 1)
