"""The log of labels: all processes read the same labels in the same order, from a file or a server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from knapcache.errors import StoreError
from knapcache.features.swap import log as log_module
from knapcache.features.swap.log import LabelPosition, Labels, RedisLabels, SqliteLabels, SwapLabel
from knapcache.store.encryption import Encryption
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from knapcache.store.sqlite.rows import Sealer
from tests.support.redis_servers import RedisProcess

SEALER = Sealer(b"secret")


def label(k: int, z: float = 0.0) -> SwapLabel:
    return SwapLabel(
        id=f"{k:016x}", frame="f" * 64, tenant="team", route="cheap", model="a", swap_model="b", judge="", z=z,
        checks=("length",), cost=0.1, asked_cost=1.0, asked_answer=0.5, cheaper_answer=0.05, rung="equal",
        source="label", time=1e9 + k,
    )  # fmt: skip


@pytest.fixture(params=["file", "server"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Labels, Labels]]:
    """Two processes that share a log."""
    if request.param == "file":
        first, second = (SqliteLabels(tmp_path / "swap.sqlite", SEALER) for _ in range(2))
        yield first, second
        first.close()
        second.close()
        return
    with RedisProcess(tmp_path) as server:
        stores = [RedisStore(parse("redis", server.url.removeprefix("redis:")), 2 << 20) for _ in range(2)]
        yield RedisLabels(stores[0].record_logs), RedisLabels(stores[1].record_logs)
        for store in stores:
            store.close()


def test_processes_read_all_labels_in_one_order(pair: tuple[Labels, Labels], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_READ", 3)
    found, begin = pair[0].read(LabelPosition())
    assert (found, begin.place) == ([], "")
    for k in range(8):
        pair[k % 2].append(label(k))
    for reader in pair:
        found, position = list[SwapLabel](), LabelPosition()
        while some := (read := reader.read(position))[0]:
            found += some
            position = read[1]
        assert found == [label(k) for k in range(8)]
        for earlier in (begin, LabelPosition("another log", "7")):
            assert reader.read(earlier)[0] == [label(k) for k in range(3)]
    pair[0].append(label(8))
    assert pair[1].read(position)[0] == [label(8)]


def test_old_labels_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_LABELS", 5)
    labels = SqliteLabels(tmp_path / "swap.sqlite", SEALER)
    for k in range(12):
        labels.append(label(k))
    assert labels.read(LabelPosition())[0] == [label(k) for k in range(7, 12)]
    labels.close()


def test_labels_without_newer_fields_are_read(tmp_path: Path) -> None:
    """Records of the version before `again`."""
    labels = SqliteLabels(tmp_path / "swap.sqlite", SEALER)
    old = label(0)._asdict()
    del old["again"]
    record = b"".join(SEALER.protect(b"swap label", orjson.dumps(old)))
    labels._file.run(lambda connection: connection.execute("INSERT INTO labels (record) VALUES (?)", (record,)))
    labels.append(label(1)._replace(again=1.0))
    labels.append(label(2)._replace(again=7.0))
    assert labels.read(LabelPosition())[0] == [label(0), label(1)._replace(again=1.0)]
    labels.close()


def test_forged_labels_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "swap.sqlite"
    labels = SqliteLabels(path, SEALER)
    labels.append(label(0))
    labels.append(label(1, z=7.0))
    forged = log_module.LabelCodec(Sealer(b"another secret")).encode(label(2))
    labels._file.run(lambda connection: connection.execute("INSERT INTO labels (record) VALUES (?)", (forged,)))
    assert labels.read(LabelPosition())[0] == [label(0)]
    labels.close()


@pytest.mark.parametrize("other", [Sealer(b"new secret"), Sealer(b"secret", Encryption([b"k" * 32]))])
def test_a_log_of_another_secret_or_key_is_emptied(
    tmp_path: Path, other: Sealer, caplog: pytest.LogCaptureFixture
) -> None:
    first = SqliteLabels(tmp_path / "swap.sqlite", SEALER)
    first.append(label(0))
    _, position = first.read(LabelPosition())
    first.close()
    second = SqliteLabels(tmp_path / "swap.sqlite", other)
    with caplog.at_level(logging.WARNING):
        found, after = second.read(position)
    assert found == []
    assert after.epoch != position.epoch
    assert "another secret" in caplog.text
    second.append(label(1))
    assert second.read(position)[0] == [label(1)], "a position in the old log is not one in the new log"
    second.close()


def test_a_damaged_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "swap.sqlite"
    path.write_bytes(b"no database" * 1000)
    labels = SqliteLabels(path, SEALER)
    with caplog.at_level(logging.WARNING):
        labels.append(label(0))
    assert "all frames learn again" in caplog.text
    assert labels.read(LabelPosition())[0] == [label(0)]
    assert path.with_name("swap.sqlite.damaged").exists()
    labels.close()
    with pytest.raises(StoreError, match="the log of labels is closed"):
        labels.read(LabelPosition())
