"""The contract of the semantic tier's log, for every kind of it."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from knapcache.features.semantic.learner import Label
from knapcache.features.semantic.log import (
    START,
    LabelRecord,
    QuestionRecord,
    RecordCodec,
    RedisLog,
    SemanticLog,
    same_log,
)
from knapcache.features.semantic.sqlite_log import SqliteLog
from knapcache.store.encryption import Encryption
from knapcache.store.redis.store import RedisStore
from knapcache.store.redis.urls import parse
from knapcache.store.sqlite.rows import Sealer

OpenLog = Callable[..., SemanticLog]
ENCRYPTION_KEY = bytes(range(32))
_numbers = itertools.count()


def question(number: int, time: float = 1.0, scope: str = "tenant") -> QuestionRecord:
    return QuestionRecord("build", b"f" * 32, key(number), bytes([number % 256]) * 384, time, scope)


def label(number: int, scope: str = "tenant") -> LabelRecord:
    found = Label(key(number), (0.1, -2.0, 1 / 3), 0.2, 0.1 + number, number % 2 == 0, "audit", 5.5)
    return LabelRecord("build", scope, f"match {number}", "equal", found)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def questions(log: SemanticLog, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
    """Read the questions to the end of the log."""
    found: list[QuestionRecord] = []
    while True:
        more, position = log.read_questions(after, limit)
        found += more
        if position == after:
            return found, position
        after = position


@pytest.fixture(params=["memory", "sqlite", "sqlite encrypted", "redis", "redis encrypted"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLog]:
    """Open logs. Those of one test are the same log, in as many processes."""
    kind, _, encrypted = request.param.partition(" ")
    keys = (ENCRYPTION_KEY,) if encrypted else ()
    opened: list[SemanticLog] = []
    stores: list[RedisStore] = []
    prefix = f"semantic{next(_numbers)}"

    def open_one(max_questions: int = 1000) -> SemanticLog:
        if kind == "memory" and opened:
            return opened[0]
        if kind != "redis":
            sealer = Sealer(b"secret", Encryption(keys) if keys else None)
            path = None if kind == "memory" else tmp_path / "semantic.sqlite"
            opened.append(SqliteLog(path, sealer, max_questions))
        else:
            scheme, location = request.getfixturevalue("engine").url.split(":", 1)
            address = parse(scheme, f"{location}?prefix={prefix}&near=0")
            stores.append(RedisStore(address, 2 << 20, secret=b"secret", encryption_keys=keys))
            opened.append(RedisLog(stores[-1].record_logs, max_questions))
        return opened[-1]

    yield open_one
    for log in opened:
        if isinstance(log, SqliteLog):
            log.check()
        log.close()
    for store in stores:
        store.close()


def test_every_process_reads_all_records_in_their_order(open_log: OpenLog) -> None:
    first, second = open_log(), open_log()
    assert first.read_questions() == ([], START)
    first.append([question(1), question(2)], [label(1)])
    second.append(labels=[label(2)])
    second.append()
    for log in (first, second):
        found, position = questions(log, limit=1)
        assert found == [question(1), question(2)]
        assert log.read_questions(position) == ([], position)
        some, middle = log.read_labels(limit=1)
        more, end = log.read_labels(middle)
        assert some + more == [label(1), label(2)]
        assert log.read_labels(end) == ([], end)
        assert same_log(position, end)
    first.append([question(3)])
    assert questions(second, position)[0] == [question(3)]


def test_a_question_replaces_an_older_one_with_the_same_key(open_log: OpenLog) -> None:
    log = open_log()
    log.append([question(1), question(2)])
    _, position = questions(log)
    log.append([question(1, time=2.0)])
    assert questions(log, position)[0] == [question(1, time=2.0)]
    assert questions(log)[0] == [question(2), question(1, time=2.0)]


def test_dropped_questions_are_gone_and_other_processes_read_the_drop(open_log: OpenLog) -> None:
    first, second = open_log(), open_log()
    first.append([question(1), question(2)], [label(1)])
    first.drop([key(1), key(7)])
    first.drop([])
    dropped, position = second.read_drops()
    assert dropped == [key(1), key(7)]
    assert questions(second)[0] == [question(2)]
    first.append([question(1)])
    assert questions(second)[0] == [question(2), question(1)]
    first.drop({key(2)})
    assert second.read_drops(position)[0] == [key(2)]
    assert second.read_labels()[0] == [label(1)]


def test_the_oldest_records_are_removed(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("log", "sqlite_log"):
        monkeypatch.setattr(f"knapcache.features.semantic.{module}.MAX_LABELS", 5)
        monkeypatch.setattr(f"knapcache.features.semantic.{module}.MAX_DROPS", 3)
    log = open_log(max_questions=10)
    for number in range(0, 40, 4):
        log.append([question(number + k) for k in range(4)], [label(number + k) for k in range(4)])
        log.drop([key(number)])
    kept = [number for number in range(29, 40) if number % 4]
    assert [record.key for record in questions(log)[0]] == [key(number) for number in kept]
    assert log.read_labels()[0] == [label(number) for number in range(35, 40)]
    assert log.read_drops()[0] == [key(28), key(32), key(36)]
    log.append([question(40), question(41)])
    assert [record.key for record in questions(log)[0]] == [key(number) for number in (*kept[1:], 40, 41)]


def test_a_flood_leaves_the_share_of_every_other_scope(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("log", "sqlite_log"):
        monkeypatch.setattr(f"knapcache.features.semantic.{module}.MAX_LABELS", 30)
    first, second = open_log(max_questions=30), open_log(max_questions=30)
    shares = {"b": range(1000, 1010), "c": range(2000, 2007)}
    for scope, numbers in shares.items():
        first.append([question(k, scope=scope) for k in numbers], [label(k, scope=scope) for k in numbers])
    for number in range(0, 300, 5):
        flood = range(number, number + 5)
        second.append([question(k, scope="a") for k in flood], [label(k, scope="a") for k in flood])
    second.append([question(299, time=2.0, scope="a")])  # a replaced question
    second.drop([key(2000)])
    reopened = open_log(max_questions=30)
    kept = [record.key for record in questions(reopened)[0]]
    assert kept == [key(k) for k in (*shares["b"], *shares["c"][1:], *range(287, 300))]
    labels = [record.match_id for record in reopened.read_labels()[0]]
    assert labels == [f"match {k}" for k in (*shares["b"], *shares["c"], *range(287, 300))]
    # A scope beyond its share loses its own oldest records.
    first.append([question(k, scope="b") for k in range(1010, 1030)])
    counts = Counter(record.scope for record in questions(first)[0])
    assert counts == {"a": 12, "b": 12, "c": 6}


def test_a_position_in_another_log_is_the_beginning(open_log: OpenLog) -> None:
    log = open_log()
    log.append([question(1)], [label(1)])
    _, position = questions(log)
    other = b"another" + position[position.index(b"/") :]
    assert not same_log(position, other)
    assert questions(log, other) == ([question(1)], position)
    assert questions(log, b"\xff")[0] == [question(1)]
    nothing, begin = log.read_drops(other)  # at the end of an empty log the position is in it, too
    assert nothing == []
    assert same_log(begin, position)
    assert log.read_drops(begin) == ([], begin)


@pytest.mark.parametrize("encrypted", [False, True])
def test_records_that_are_damaged_or_of_another_version_or_secret_are_not_read(encrypted: bool) -> None:
    encryption = Encryption([ENCRYPTION_KEY]) if encrypted else None
    codec, sealer = RecordCodec(Sealer(b"secret", encryption)), Sealer(b"secret", encryption)
    for read, content, record in (
        (codec.read_question, codec.question(question(3)), question(3)),
        (codec.read_label, codec.label(label(3)), label(3)),
        (codec.read_drop, codec.drop(key(3)), key(3)),
    ):
        assert read(content) == record
        for wrong in (b"", None, 3, content[:-1], content[:20] + bytes([content[20] ^ 1]) + content[21:]):
            assert read(wrong) is None
        assert (key(3) in content) != encrypted or record == label(3)
    other = RecordCodec(Sealer(b"another secret", encryption))
    assert other.read_question(codec.question(question(3))) is None
    old = struct.pack("<dBBB", 1.0, 5, 32, 32) + b"build" + b"f" * 32 + key(3) + b"\3" * 384
    assert codec.read_question(b"".join(sealer.protect(b"semantic record", b"Q1" + old))) == question(3, scope="")
    for version, body in (
        (b"Q2", b""),
        (b"Q3", old),
        (b"Q1", b"short"),
        (b"Q1", bytes(8) + b"\x05\x05\x05" + b"x" * 15),
    ):
        assert codec.read_question(b"".join(sealer.protect(b"semantic record", version + body))) is None
    for json in (b'["a"]', b"{}", b"[1,2,3,4,5,6,7,8,9,10,11]", b'["","","","","00",[true],0,0,true,"audit",0]',
                 b'["","","","","00",[1],0,0,1,"audit",0]', b'["","","","","00",[1],0,0,true,"other",0]'):  # fmt: skip
        assert codec.read_label(b"".join(sealer.protect(b"semantic record", b"L1" + json))) is None
