"""The semantic log in a file: damage, several processes, kill -9, other secrets, and what stays on the disk."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import apsw
import pytest

from knapcache.errors import StoreError
from knapcache.features.semantic.log import START, same_log
from knapcache.features.semantic.sqlite_log import FIRST_SCHEMA, KIND, SqliteLog
from knapcache.store.encryption import Encryption
from knapcache.store.sqlite.rows import Sealer
from tests.features.semantic.serving.test_log import key, label, question, questions

OpenLog = Callable[..., SqliteLog]
WRITER = """
import sys
from pathlib import Path
from knapcache.features.semantic.sqlite_log import SqliteLog
from knapcache.store.sqlite.rows import Sealer
from tests.features.semantic.serving.test_log import key, label, question

first, count = int(sys.argv[2]), int(sys.argv[3])
log = SqliteLog(Path(sys.argv[1]), Sealer(b"secret"), 400)
for number in range(first, first + count):
    log.append([question(number), question(number + 1)], [label(number)])
    if number % 5 == 0:
        log.drop([key(number)])
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "semantic.sqlite"


@pytest.fixture
def open_log(path: Path) -> Iterator[OpenLog]:
    """Open logs of one file, by a secret and encryption keys. They are closed after the test."""
    with ExitStack() as stack:

        def open_one(*keys: bytes, secret: bytes = b"secret", at: Path = path) -> SqliteLog:
            log = SqliteLog(at, Sealer(secret, Encryption(keys) if keys else None), 400)
            stack.callback(log.close)
            return log

        yield open_one


@pytest.fixture
def log(open_log: OpenLog) -> SqliteLog:
    return open_log()


def write_in_process(path: Path, first: int, count: int) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def test_two_processes_append_while_one_is_killed(path: Path, log: SqliteLog) -> None:
    killed, other = write_in_process(path, 0, 100_000), write_in_process(path, 1_000_000, 60)
    assert killed.stdout is not None
    printed = [int(killed.stdout.readline()) for _ in range(30)]
    killed.send_signal(signal.SIGKILL)
    last = max(printed + [int(line) for line in killed.stdout.read().split()])
    killed.communicate(timeout=60)
    other_output, _ = other.communicate(timeout=60)
    assert len(other_output.split()) == 60
    log.check()
    labels = [int(record.match_id.split()[1]) for record in log.read_labels(limit=10_000)[0]]
    # What a process was told is written; what it was killed in is there or is not, as a whole.
    mine, others = [n for n in labels if n < 1_000_000], [n for n in labels if n >= 1_000_000]
    assert others == list(range(1_000_000, 1_000_060))
    assert mine in (list(range(last + 1)), list(range(last + 2)))
    found, _ = questions(log)
    assert {record.key for record in found} >= {key(1_000_059), key(last)} - {key(last // 5 * 5)}
    log.append([question(5)])
    log.check()


def test_a_damaged_file_is_set_aside_and_a_new_log_is_begun(
    path: Path, log: SqliteLog, open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.append([question(number) for number in range(300)], [label(1)])
    old = log.read_questions()[1]
    log.close()
    content = bytearray(path.read_bytes())
    content[4096:-4096] = Random(1).randbytes(len(content) - 8192)
    path.write_bytes(content)
    first, second = open_log(), open_log()
    for each in (first, second):
        assert each.read_questions(old)[0] == []
        assert not same_log(each.read_questions(old)[1], old)
    second.append([question(7)])
    assert questions(first)[0] == [question(7)]
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "is damaged" in warnings[0]
    assert "begins again in shadow" in warnings[0]
    assert Path(f"{path}.damaged").read_bytes()[4096:8192] == content[4096:8192]
    first.check()


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_log_is_set_aside(path: Path, log: SqliteLog, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    log.append([question(1)])
    assert questions(log)[0] == [question(1)]
    assert Path(f"{path}.damaged").read_bytes() == content


def test_a_database_of_another_program_is_set_aside_unchanged(path: Path, log: SqliteLog) -> None:
    path.parent.mkdir()
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (42)")
    connection.close()
    log.append([question(1)])
    connection = apsw.Connection(f"{path}.damaged")
    assert connection.execute("SELECT x FROM theirs").fetchall() == [(42,)]
    connection.close()


def test_a_log_of_a_newer_version_is_not_changed(path: Path, log: SqliteLog, open_log: OpenLog) -> None:
    log.append([question(1)])
    log.close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", KIND.format + 1)
    connection.close()
    with pytest.raises(StoreError, match="newer version"):
        open_log().read_questions()
    assert not Path(f"{path}.damaged").exists()


def test_a_log_that_is_deleted_or_replaced_while_it_is_open_is_begun_again(path: Path, log: SqliteLog) -> None:
    log.append([question(1)])
    position = log.read_questions()[1]
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    assert log.read_questions(position)[0] == []
    log.append([question(2)])
    assert questions(log, position)[0] == [question(2)]


@pytest.mark.parametrize(("secret", "keys"), [(b"another secret", ()), (b"secret", (bytes(32),))])
def test_a_log_of_another_secret_or_without_encryption_is_emptied(
    log: SqliteLog, open_log: OpenLog, secret: bytes, keys: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    log.append([question(200)], [label(1)])
    position = log.read_questions()[1]
    other = open_log(*keys, secret=secret)
    assert other.read_questions(position)[0] == []
    assert other.read_labels()[0] == []
    other.append([question(201)])
    assert questions(other)[0] == [question(201)]
    other.check()
    assert "another secret or key; it is emptied" in caplog.text


def test_an_encrypted_log_contains_no_key_and_no_vector(path: Path, open_log: OpenLog) -> None:
    log = open_log(bytes(32))
    log.append([question(200)], [label(200)])
    content = b"".join(Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal"))
    for secret in (key(200), key(200).hex().encode(), question(200).vector[:16], b"match 200", b"tenant"):
        assert secret not in content


def test_a_new_key_encrypts_all_records_again_and_an_unknown_one_empties_the_log(open_log: OpenLog) -> None:
    old, new = bytes(32), bytes(range(32))
    log = open_log(old)
    log.append([question(1), question(2)], [label(1)])
    log.drop([key(2)])
    _, position = questions(log)
    log.close()
    assert questions(open_log(new, old))[0] == [question(1)]
    only_new = open_log(new)
    assert questions(only_new) == ([question(1)], position)
    assert only_new.read_labels()[0] == [label(1)]
    assert only_new.read_drops()[0] == [key(2)]
    only_new.drop([key(1)])
    assert questions(only_new)[0] == []
    only_new.check()
    only_new.close()
    assert open_log(old).read_labels()[0] == []


def test_dropped_vectors_are_overwritten_in_the_file(path: Path, log: SqliteLog) -> None:
    log.append([question(200), question(201)])
    log.drop([key(200)])
    log.close()  # writes the write-ahead log into the file
    content = path.read_bytes()
    assert question(201).vector in content
    assert question(200).vector not in content
    assert not Path(f"{path}-wal").exists()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_a_store_error(tmp_path: Path, log: SqliteLog) -> None:
    (tmp_path / "data").write_bytes(b"a file where the directory should be")
    with pytest.raises(StoreError, match=r"semantic\.sqlite failed"):
        log.append([question(1)])
    log.close()
    with pytest.raises(StoreError, match="closed"):
        log.read_questions()


def test_threads_share_a_log(log: SqliteLog) -> None:
    def append(first: int) -> None:
        for number in range(first, first + 20):
            log.append([question(number)], [label(number)])
            log.read_questions(START, 10)

    threads = [threading.Thread(target=append, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(questions(log)[0]) == len(log.read_labels()[0]) == 60
    log.check()


@pytest.mark.long
def test_no_damage_makes_the_log_return_a_record_that_was_not_written(
    path: Path, tmp_path: Path, log: SqliteLog, open_log: OpenLog
) -> None:
    log.append([question(number) for number in range(200)], [label(number) for number in range(100)])
    log.drop([key(number) for number in range(50)])
    while_open = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")}
    log.close()
    closed = {"": path.read_bytes()}
    written = {*(question(number) for number in range(200)), question(999)}, {label(number) for number in range(100)}
    errors: list[str] = []
    for seed in range(300):
        random = Random(seed)
        damaged = tmp_path / str(seed) / "semantic.sqlite"
        damaged.parent.mkdir()
        for suffix, content in random.choice((while_open, closed)).items():
            Path(f"{damaged}{suffix}").write_bytes(mutate(content, random))
        log = open_log(at=damaged)
        try:
            assert {*log.read_questions()[0]} <= written[0], f"seed {seed}"
            assert {*log.read_labels()[0]} <= written[1], f"seed {seed}"
            for _ in range(2):  # the first time may find the damage, and begin a new log
                log.append([question(999)])
                log.drop([key(60)])
                log.check()
                found = log.read_questions()[0]
            assert question(999) in found, f"seed {seed}"
        except StoreError as error:
            errors.append(str(error))
        log.close()
    assert all("newer version" in error for error in errors)  # a bit of the version was flipped


def mutate(content: bytes, random: Random) -> bytes:
    """Return content with flipped bits, foreign bytes, zeros, or without its end."""
    changed = bytearray(content)
    for _ in range(random.choice((0, 1, 1, 3, 20, 200))):
        at = random.randrange(len(changed) if random.random() < 0.6 else min(200, len(changed)))
        length = random.randrange(1, 600)
        match random.randrange(10):
            case 0:
                del changed[max(1, at) :]
            case 1:
                changed[at : at + length] = bytes(length)
            case 2 | 3:
                changed[at : at + length] = random.randbytes(length)
            case _:
                changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def test_a_log_of_the_first_format_is_converted(path: Path, log: SqliteLog, open_log: OpenLog) -> None:
    log.append([question(1), question(2)], [label(1), label(2)])
    log.drop([key(2)])
    log.close()
    connection = apsw.Connection(str(path))
    for statement in ("DROP INDEX questions_by_scope", "DROP INDEX labels_by_scope", "DROP TABLE counts"):
        connection.execute(statement)
    for table in ("questions", "labels"):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN scope")
    connection.execute("INSERT INTO meta VALUES ('questions', 1)")
    connection.pragma("user_version", 1)
    found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")}
    assert found == set(FIRST_SCHEMA)
    connection.close()
    converted = open_log()
    assert questions(converted)[0] == [question(1)]
    assert converted.read_labels()[0] == [label(1), label(2)]
    assert converted.read_drops()[0] == [key(2)]
    converted.append([question(3)], [label(3)])
    converted.check()
    converted.close()
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT count(DISTINCT scope), count(*) FROM labels").fetchall() == [(1, 3)]
    assert connection.execute("SELECT count(*) FROM labels WHERE scope = x''").fetchall() == [(0,)]
    connection.close()
