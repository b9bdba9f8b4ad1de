"""The log of the semantic tier as a SQLite file, which several processes append to and read, or in memory.

    questions (id, name, record, scope)   name: the key, or with encryption another digest of it
    labels (id, record, scope)            scope: a digest of its name (`RecordCodec.scope_tag`)
    drops (id, record)
    counts (part, scope, number)          questions and labels of each scope
    meta (name, value)                    epoch: identity of the log · mark: of secret and encryption · key: id of the
                                          key that encrypts

Ids only increase. Records are sealed and perhaps encrypted (`RecordCodec`); one that is damaged is skipped.

A damaged file is replaced (store/sqlite/shared_file.py). A log that was written with another secret or key, or before
encryption was switched on or off, is emptied. If another one of the given keys has become the first, all records are
encrypted again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import apsw

from knapcache.errors import CorruptState
from knapcache.features.semantic.log import MAX_DROPS, MAX_LABELS, LabelRecord, QuestionRecord, SemanticLog, place_in
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.sqlite.shared_file import SharedFile
from knapcache.store.sqlite.side_files import FileKind, schema_after, use_log, writing

log = logging.getLogger("knapcache.features.semantic")

MAX_RECORD = 1 << 20
"""Bytes of a record. A longer one is not ours."""
FIRST_SCHEMA = (
    "CREATE TABLE questions (id INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL, record BLOB NOT NULL)",
    "CREATE INDEX questions_by_name ON questions (name)",
    "CREATE TABLE labels (id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)",
    "CREATE TABLE drops (id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
)
"""Of format 1, which had no scopes. It is converted: its questions are of no scope, and the first to be removed."""
SCOPED = ("questions", "labels")
"""Tables in which each scope has a share."""
SCOPE_COLUMN = "scope BLOB NOT NULL DEFAULT x''"
ADDED = (
    "CREATE INDEX questions_by_scope ON questions (scope, id)",
    "CREATE INDEX labels_by_scope ON labels (scope, id)",
    "CREATE TABLE counts (part TEXT NOT NULL, scope BLOB NOT NULL, number INTEGER NOT NULL,"
    " PRIMARY KEY (part, scope)) WITHOUT ROWID",
)
SCHEMA = (
    *(
        f"{each[:-1]}, {SCOPE_COLUMN})" if each.startswith(tuple(f"CREATE TABLE {name}" for name in SCOPED)) else each
        for each in FIRST_SCHEMA
    ),
    *ADDED,
)
KIND = FileKind(0x4B6E7365, 2, SCHEMA)  # "Knse"
TABLES = (*SCOPED, "drops")


class SqliteLog(SemanticLog):
    """The log in the file `path`; None: in memory."""

    def __init__(self, path: Path | None, sealer: Sealer, max_questions: int) -> None:
        super().__init__(sealer, max_questions)
        self.path = path
        self._mark = sealer.secret_mark + (b"plain" if sealer.encryption is None else b"encrypted")
        self._keys = () if sealer.encryption is None else sealer.encryption.key_ids
        lost = "the semantic tier begins again in shadow"
        self._file = SharedFile(path, "the semantic log", MAX_RECORD, self._prepare, lost)

    def append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        if not questions and not labels:
            return
        codec = self._codec
        new = [(codec.names(each.key), codec.question(each), codec.scope_tag(each.scope)) for each in questions]
        new_labels = [(codec.label(each), codec.scope_tag(each.scope)) for each in labels]

        def write(connection: apsw.Connection) -> None:
            with writing(connection):
                for names, record, scope in new:
                    _delete_questions(connection, names)
                    insert = "INSERT INTO questions (name, record, scope) VALUES (?, ?, ?)"
                    connection.execute(insert, (names[0], record, scope))
                    _count(connection, "questions", scope, 1)
                for record, scope in new_labels:
                    connection.execute("INSERT INTO labels (record, scope) VALUES (?, ?)", (record, scope))
                    _count(connection, "labels", scope, 1)
                _bound(connection, "questions", self._max_questions)
                _bound(connection, "labels", MAX_LABELS)

        self._file.run(write)

    def drop(self, keys: Collection[bytes]) -> None:
        if not keys:
            return
        names = [self._codec.names(key) for key in keys]
        drops = [(self._codec.drop(key),) for key in keys]

        def write(connection: apsw.Connection) -> None:
            with writing(connection):
                for each in names:
                    _delete_questions(connection, each)
                connection.executemany("INSERT INTO drops (record) VALUES (?)", drops)
                connection.execute("DELETE FROM drops WHERE id <= ?", (connection.last_insert_rowid() - MAX_DROPS,))

        self._file.run(write)

    def close(self) -> None:
        """Close the connection. Later calls raise StoreError."""
        self._file.close()

    def check(self) -> None:
        """Raise CorruptState unless the numbers of the scopes are the stored ones, and nothing exceeds its limit."""

        def count(connection: apsw.Connection) -> None:
            limits = dict(zip(TABLES, (self._max_questions, MAX_LABELS, MAX_DROPS), strict=True))
            for table, limit in limits.items():
                ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}")
                if rows > limit:
                    raise CorruptState(f"{rows} {table}, but the limit is {limit}")
            found, counted = (sorted(connection.execute(select).fetchall()) for select in (COUNT_ROWS, COUNTED))
            if found != counted:
                raise CorruptState(f"the scopes have {found}, but {counted} are counted")

        self._file.run(count)

    def _rows(self, part: str, after: bytes, limit: int) -> tuple[str, Sequence[tuple[int | str, Any]]]:
        def read(connection: apsw.Connection) -> tuple[str, Sequence[Any]]:
            with connection:  # one snapshot
                epoch = str(_meta(connection, "epoch"))
                place = place_in(epoch, after)
                # A record that is too long is not ours, and reading it would fail.
                select = f"SELECT id, record FROM {part} WHERE id > ? AND length(record) < ? ORDER BY id LIMIT ?"
                values = int(place) if place.isdigit() else 0, MAX_RECORD, limit
                rows = connection.execute(select, values).fetchall()
            return epoch, rows

        return self._file.run(read)

    def _prepare(self, connection: apsw.Connection) -> None:
        """Create the tables in an empty file, and empty a log that these keys cannot read."""
        existing = KIND.check(connection, self.path, FIRST_SCHEMA)
        if self.path is not None:
            use_log(connection)
            connection.pragma("secure_delete", True)  # what was dropped is overwritten
        with writing(connection):
            if not existing:
                KIND.create(connection)
            elif existing == schema_after(FIRST_SCHEMA):
                self._add_scopes(connection)
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
            connection.execute("DELETE FROM counts")
            connection.execute(f"INSERT INTO counts {COUNT_ROWS}")

    def _add_scopes(self, connection: apsw.Connection) -> None:
        """Convert a file of format 1. Labels name their scope; questions are of none."""
        for table in SCOPED:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {SCOPE_COLUMN}")
        for statement in ADDED:
            connection.execute(statement)
        connection.execute("DELETE FROM meta WHERE name = 'questions'")
        connection.pragma("user_version", KIND.format)
        for number, content in connection.execute("SELECT id, record FROM labels").fetchall():
            if (label := self._codec.read_label(content)) is not None:
                values = self._codec.scope_tag(label.scope), number
                connection.execute("UPDATE labels SET scope = ? WHERE id = ?", values)

    def _encrypt_again(self, connection: apsw.Connection) -> None:
        codec = self._codec
        for number, content in connection.execute("SELECT id, record FROM questions").fetchall():
            if (question := codec.read_question(content)) is not None:
                tag = codec.scope_tag(question.scope)
                values = codec.names(question.key)[0], codec.question(question), tag, number
                connection.execute("UPDATE questions SET name = ?, record = ?, scope = ? WHERE id = ?", values)
        for number, content in connection.execute("SELECT id, record FROM labels").fetchall():
            if (label := codec.read_label(content)) is not None:
                changed = codec.label(label), codec.scope_tag(label.scope), number
                connection.execute("UPDATE labels SET record = ?, scope = ? WHERE id = ?", changed)
        for number, content in connection.execute("SELECT id, record FROM drops").fetchall():
            if (key := codec.read_drop(content)) is not None:
                connection.execute("UPDATE drops SET record = ? WHERE id = ?", (codec.drop(key), number))


def _meta(connection: apsw.Connection, name: str) -> Any:
    rows = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
    return rows[0][0] if rows else None


def _put_meta(connection: apsw.Connection, name: str, value: Any) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))


def _delete_questions(connection: apsw.Connection, names: Sequence[bytes]) -> None:
    for name in names:
        for (scope,) in connection.execute("DELETE FROM questions WHERE name = ? RETURNING scope", (name,)).fetchall():
            _count(connection, "questions", scope, -1)


COUNTED = "SELECT part, scope, number FROM counts WHERE number > 0"
COUNT_ROWS = " UNION ALL ".join(f"SELECT '{part}', scope, count(*) FROM {part} GROUP BY scope" for part in SCOPED)


def _count(connection: apsw.Connection, part: str, scope: Any, change: int) -> None:
    connection.execute(
        "INSERT INTO counts (part, scope, number) VALUES (?, ?, ?) "
        "ON CONFLICT (part, scope) DO UPDATE SET number = number + excluded.number",
        (part, scope, change),
    )


def _bound(connection: apsw.Connection, part: str, limit: int) -> None:
    """Remove the oldest records of the scope that has the most, until `limit` are left."""
    while True:
        select = "SELECT scope, number FROM counts WHERE part = ? ORDER BY number DESC, scope"
        counts: list[Any] = connection.execute(select, (part,)).fetchall()
        excess = sum(number for _, number in counts) - limit
        if excess <= 0:
            return
        (scope, most), (_, next_most) = counts[0], counts[1] if len(counts) > 1 else (b"", 0)
        some = min(excess, max(1, most - next_most))
        oldest = f"SELECT id FROM {part} WHERE scope = ? ORDER BY id LIMIT ?"
        connection.execute(f"DELETE FROM {part} WHERE id IN ({oldest})", (scope, some))
        if connection.changes() != some:
            raise apsw.CorruptError(f"the {part} of a scope are not as many as are counted")
        _count(connection, part, scope, -some)
