"""The log of the semantic tier as a SQLite file, which several processes append to and read.

    questions (id, name, record)   name: the key, or with encryption another digest of it
    labels (id, record)
    drops (id, record)
    meta (name, value)             epoch: identity of the log · mark: of secret and encryption · key: id of the key that
                                   encrypts · questions: their number

Ids only increase. Records are sealed and perhaps encrypted (log_records.py); one that is damaged is skipped.

A file that SQLite cannot read is renamed to `….damaged`, in place of an earlier one, and an empty log is begun. The
same happens to a file of another program. A log that was written with another secret or key, or before encryption was
switched on or off, is emptied. If another one of the given keys has become the first, all records are encrypted again.
Processes that had an old file open notice that another one has its name, and open that.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from knapcache.errors import CorruptState, StoreError
from knapcache.serve.semantic.log import (
    MAX_DROPS,
    MAX_LABELS,
    START,
    LabelRecord,
    QuestionRecord,
    next_position,
    place_in,
)
from knapcache.serve.semantic.log_records import RecordCodec
from knapcache.store.sqlite.database import DAMAGE
from knapcache.store.sqlite.files import restrict
from knapcache.store.sqlite.rows import Sealer

log = logging.getLogger("knapcache.semantic")

FORMAT = 1
APPLICATION_ID = 0x4B6E7365  # "Knse"
BUSY_SECONDS = 5.0
"""How long a transaction waits for that of another process."""
MAX_RECORD = 1 << 20
"""Bytes of a record. A longer one is not ours."""
SCHEMA = (
    "CREATE TABLE questions (id INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL, record BLOB NOT NULL)",
    "CREATE INDEX questions_by_name ON questions (name)",
    "CREATE TABLE labels (id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)",
    "CREATE TABLE drops (id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
)
TABLES = ("questions", "labels", "drops")
DAMAGE_AT_OPENING = (*DAMAGE, apsw.SQLError, apsw.ReadOnlyError, apsw.TooBigError, UnicodeDecodeError)
T = TypeVar("T")


class SqliteLog:
    """The log in the file `path`. Threads share one connection."""

    def __init__(self, path: Path, sealer: Sealer, max_questions: int) -> None:
        self.path, self._max_questions = path, max_questions
        self._codec = RecordCodec(sealer)
        self._mark = sealer.secret_mark + (b"plain" if sealer.encryption is None else b"encrypted")
        self._keys = () if sealer.encryption is None else sealer.encryption.key_ids
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._closed = False

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        """Add records."""
        if not questions and not labels:
            return
        new = [(self._codec.names(record.key), self._codec.question(record)) for record in questions]
        sealed_labels = [(self._codec.label(record),) for record in labels]

        def write(connection: apsw.Connection) -> None:
            with _writing(connection):
                for names, record in new:
                    _delete_questions(connection, names)
                    connection.execute("INSERT INTO questions (name, record) VALUES (?, ?)", (names[0], record))
                if new:
                    self._count(connection, len(new))
                if sealed_labels:
                    _append_bounded(connection, "labels", sealed_labels, MAX_LABELS)

        self._run(write)

    def read_questions(self, after: bytes = START, limit: int = 1000) -> tuple[list[QuestionRecord], bytes]:
        """Return the questions after a position."""
        return self._read("questions", self._codec.read_question, after, limit)

    def read_labels(self, after: bytes = START, limit: int = 1000) -> tuple[list[LabelRecord], bytes]:
        """Return the labels after a position."""
        return self._read("labels", self._codec.read_label, after, limit)

    def read_drops(self, after: bytes = START, limit: int = 1000) -> tuple[list[bytes], bytes]:
        """Return the dropped keys after a position."""
        return self._read("drops", self._codec.read_drop, after, limit)

    def drop(self, keys: Collection[bytes]) -> None:
        """Remove the questions with these keys."""
        if not keys:
            return
        names = [self._codec.names(key) for key in keys]
        drops = [(self._codec.drop(key),) for key in keys]

        def write(connection: apsw.Connection) -> None:
            with _writing(connection):
                for each in names:
                    _delete_questions(connection, each)
                _append_bounded(connection, "drops", drops, MAX_DROPS)

        self._run(write)

    def close(self) -> None:
        """Close the connection. Later calls raise StoreError."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def check(self) -> None:
        """Raise CorruptState unless the number of questions is the stored one, and nothing exceeds its limit."""

        def count(connection: apsw.Connection) -> None:
            limits = dict(zip(TABLES, (self._max_questions, MAX_LABELS, MAX_DROPS), strict=True))
            for table, limit in limits.items():
                ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}")
                if rows > limit:
                    raise CorruptState(f"{rows} {table}, but the limit is {limit}")
                if table == "questions" and rows != _meta(connection, "questions"):
                    raise CorruptState(f"{rows} questions, but {_meta(connection, 'questions')} are counted")

        self._run(count)

    def _read(self, table: str, decode: Callable[[Any], T | None], after: bytes, limit: int) -> tuple[list[T], bytes]:
        def read(connection: apsw.Connection) -> tuple[list[T], bytes]:
            with connection:  # one snapshot
                epoch = str(_meta(connection, "epoch"))
                place = place_in(epoch, after)
                select = f"SELECT id, record FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
                rows = connection.execute(select, (int(place) if place.isdigit() else 0, limit)).fetchall()
            found = [record for _, content in rows if (record := decode(content)) is not None]
            return found, next_position(epoch, after, int(str(rows[-1][0])) if rows else None)

        return self._run(read)

    def _count(self, connection: apsw.Connection, new: int) -> None:
        """Count new questions, and remove the oldest ones beyond the limit."""
        count = int(_meta(connection, "questions")) + new
        if (excess := count - self._max_questions) > 0:
            oldest = "SELECT id FROM questions ORDER BY id LIMIT ?"
            connection.execute(f"DELETE FROM questions WHERE id IN ({oldest})", (excess,))
            count -= connection.changes()
        _put_meta(connection, "questions", count)

    def _run(self, operation: Callable[[apsw.Connection], T]) -> T:
        """Run an operation. A damaged file is replaced, and the operation repeated with the new one."""
        with self._lock:
            try:
                try:
                    return operation(self._connected())
                except (*DAMAGE, TypeError, ValueError) as error:
                    self._disconnect()
                    return operation(self._connected(str(error)))
            except (apsw.Error, OSError, TypeError, ValueError) as error:
                self._disconnect()
                raise StoreError(f"the semantic log {self.path} failed: {error}") from error

    def _connected(self, damage: str = "") -> apsw.Connection:
        """Return the connection. damage: what was found; the file is replaced unless another process has done that."""
        if self._closed:
            raise StoreError("the semantic log is closed")
        if self._connection is None or self._inode != _inode(self.path):
            self._disconnect()
            with _only_process(Path(f"{self.path}.lock")):
                self._connection = self._open(damage)
                self._inode = _inode(self.path)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close(True)

    def _open(self, damage: str) -> apsw.Connection:
        connection = None
        try:
            connection = self._connect()
            if damage and connection.pragma("quick_check") != "ok":
                raise apsw.CorruptError(damage)
            self._prepare(connection)
            return connection
        except DAMAGE_AT_OPENING as error:
            if connection is not None:
                connection.close(True)
            self._set_aside(damage or str(error))
        except BaseException:
            if connection is not None:
                connection.close(True)
            raise
        connection = self._connect()
        self._prepare(connection)
        return connection

    def _connect(self) -> apsw.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        restrict(connection, MAX_RECORD)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        """Create the tables in an empty file, and empty a log that these keys cannot read."""
        version, identity = connection.pragma("user_version"), connection.pragma("application_id")
        if identity == APPLICATION_ID and version > FORMAT:
            raise StoreError(f"{self.path} was written by a newer version of knapcache; it was not changed")
        existing = connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
        if existing and (identity != APPLICATION_ID or {sql for (sql,) in existing} != set(SCHEMA)):
            raise apsw.CorruptError("its tables are not those of a log")
        if connection.pragma("journal_mode", "wal") != "wal":
            raise StoreError("the file system does not support shared memory, which SQLite's write-ahead log needs")
        connection.pragma("synchronous", "normal")
        connection.pragma("secure_delete", True)  # what was dropped is overwritten
        connection.pragma("journal_size_limit", 8 << 20)
        with _writing(connection):
            if not existing:
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", FORMAT)
            key = _meta(connection, "key")
            if _meta(connection, "mark") != self._mark or key not in (self._keys or (b"",)):
                if existing:
                    log.warning("the semantic log %s was written with another secret or key; it is emptied", self.path)
                for table in TABLES:
                    connection.execute(f"DELETE FROM {table}")
                _put_meta(connection, "mark", self._mark)
                _put_meta(connection, "epoch", os.urandom(8).hex())
            elif self._keys and key != self._keys[0]:
                self._encrypt_again(connection)
            _put_meta(connection, "key", self._keys[0] if self._keys else b"")
            ((count,),) = connection.execute("SELECT count(*) FROM questions")
            _put_meta(connection, "questions", count)

    def _encrypt_again(self, connection: apsw.Connection) -> None:
        codec = self._codec
        for number, content in connection.execute("SELECT id, record FROM questions").fetchall():
            if (question := codec.read_question(content)) is not None:
                values = codec.names(question.key)[0], codec.question(question), number
                connection.execute("UPDATE questions SET name = ?, record = ? WHERE id = ?", values)
        for number, content in connection.execute("SELECT id, record FROM labels").fetchall():
            if (label := codec.read_label(content)) is not None:
                connection.execute("UPDATE labels SET record = ? WHERE id = ?", (codec.label(label), number))
        for number, content in connection.execute("SELECT id, record FROM drops").fetchall():
            if (key := codec.read_drop(content)) is not None:
                connection.execute("UPDATE drops SET record = ? WHERE id = ?", (codec.drop(key), number))

    def _set_aside(self, reason: str) -> None:
        target = f"{self.path}.damaged"
        for suffix in ("-shm", "-wal", ""):
            Path(f"{target}{suffix}").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self.path}{suffix}", f"{target}{suffix}")
        log.warning(
            "the semantic log %s is damaged (%s); it is now %s, and the semantic tier begins again in shadow",
            self.path, reason, target,
        )  # fmt: skip


def _meta(connection: apsw.Connection, name: str) -> Any:
    rows = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
    return rows[0][0] if rows else None


def _put_meta(connection: apsw.Connection, name: str, value: Any) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))


def _delete_questions(connection: apsw.Connection, names: Sequence[bytes]) -> None:
    for name in names:
        connection.execute("DELETE FROM questions WHERE name = ?", (name,))
        if removed := connection.changes():
            connection.execute("UPDATE meta SET value = value - ? WHERE name = 'questions'", (removed,))


def _append_bounded(connection: apsw.Connection, table: str, records: list[tuple[bytes]], limit: int) -> None:
    """Append records to a table from which only the oldest ones are removed: its ids have no gaps."""
    connection.executemany(f"INSERT INTO {table} (record) VALUES (?)", records)
    connection.execute(f"DELETE FROM {table} WHERE id <= ?", (connection.last_insert_rowid() - limit,))


@contextlib.contextmanager
def _writing(connection: apsw.Connection) -> Iterator[None]:
    """Run statements in one transaction, which waits for those of other processes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _only_process(path: Path) -> Iterator[None]:
    """Keep other processes from opening or replacing the file meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
