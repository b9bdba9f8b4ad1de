"""The SQLite file of the content log: lines, and the index of their texts.

    calls   one row for each request; request and answer are JSON, compressed with zlib
    texts   FTS5: the system prompt and the last user text, and the text of the answer; rowid is the id of the call

Every process of a proxy writes its own requests, in transactions that wait for each other, and commands may read and
purge meanwhile (write-ahead log). What is deleted is overwritten, in the table and in the index.

    Invariant, after each `append`: the pages in use take at most `capacity` bytes, and no row is older than `max_age`.
    The write-ahead log takes some megabytes more. Free pages are returned to the file system.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from knapcache.errors import InvalidInput, StoreError
from knapcache.features.content_log.record import ContentRecord, expanded
from knapcache.store.sqlite.database import DAMAGE
from knapcache.store.sqlite.side_files import FileKind, connect, only_process, schema_of, set_aside, use_log, writing

log = logging.getLogger("knapcache.serve")

FILE_NAME = "content.sqlite"
MAX_VALUE = 1 << 22
EVICTED = 10
"""Rows that are deleted at a time while the file is too large."""
DELETED = 100
"""Rows that one transaction deletes, so that another process does not wait for long. One row takes 1 to 30 ms, because
its words are removed from the index at once. Otherwise they would stay in it until a later merge."""
EXPORT_PAGE = 200
JOINED = "FROM texts JOIN calls ON calls.id = texts.rowid"
FIELDS = (
    "time", "tenant", "model", "endpoint", "route", "outcome", "status", "stream", "key", "upstream", "usd", "cost",
    "tokens", "size", "seconds", "upstream_seconds", "cut",
)  # fmt: skip
KIND = FileKind(0x4B6E636C, 1, (  # "Kncl"
    "CREATE TABLE calls (id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, tenant TEXT NOT NULL, "
    "model TEXT NOT NULL, endpoint TEXT NOT NULL, route TEXT NOT NULL, outcome TEXT NOT NULL, status INTEGER NOT NULL, "
    "stream INTEGER NOT NULL, key TEXT NOT NULL, upstream TEXT NOT NULL, usd REAL, cost REAL NOT NULL, "
    "tokens INTEGER NOT NULL, size INTEGER NOT NULL, seconds REAL NOT NULL, upstream_seconds REAL NOT NULL, "
    "cut INTEGER NOT NULL, request BLOB NOT NULL, response BLOB NOT NULL)",
    "CREATE INDEX calls_by_time ON calls (time)",
    'CREATE VIRTUAL TABLE texts USING fts5(prompt, answer, tokenize = "unicode61 remove_diacritics 2")',
    "INSERT INTO texts (texts, rank) VALUES ('secure-delete', 1)",
))  # fmt: skip
MAX_WORDS = 20
"""Words of a search. Each one takes time."""
WORDS_BEFORE, WORDS_AFTER = 8, 16
MAX_EXCERPT = 600
"""Characters of an excerpt before and after its first match, at most."""
MAX_BYTES = 4 * MAX_EXCERPT
MARKS = "\x02", "\x03"
"""Start and end of a found word in an excerpt. `_plain` removes both from texts."""


@dataclass(frozen=True, kw_only=True)
class LogFilter:
    """Conditions on lines. A line must meet all of them; those that are empty or None are met by every line."""

    text: str = ""
    """Words that must all occur; "several words" in quotes as one phrase; a word* by its beginning."""
    model: str = ""
    tenant: str | None = None
    outcome: str = ""
    since: float | None = None
    """Unix time."""
    until: float | None = None
    """Unix time; lines of this moment and later are left out."""

    @property
    def empty(self) -> bool:
        """Whether every line meets it."""
        return self == LogFilter()


class ContentFile:
    """The file, through one connection. Methods of one object must not run at the same time.

    create   False: raise InvalidInput if there is no file
    """

    def __init__(
        self, path: Path, capacity: int | None = None, max_age: float | None = None, *, create: bool = True
    ) -> None:
        self.path, self._capacity, self._max_age = path, capacity, max_age
        if not create and not path.is_file():
            raise InvalidInput(f"{path} does not exist: the setting content_log was never on, or --path is another one")
        try:
            with only_process(path):
                try:
                    self._connection = connect(path, MAX_VALUE, self._prepare)
                except DAMAGE as error:
                    if not create:
                        raise
                    warning = "The content log %s is damaged (%s); it is now %s, and a new one begins."
                    log.warning(warning, path, error, set_aside(path))
                    self._connection = connect(path, MAX_VALUE, self._prepare)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"cannot open the content log {path}: {error}") from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def append(self, records: Sequence[ContentRecord]) -> None:
        """Add lines, and delete the oldest ones beyond the limits. Raises StoreError."""
        with self._writing():
            for record in records:
                self._insert(record)
        self.expire()
        while self._capacity is not None and self.used() > self._capacity:
            if not self._delete_some("SELECT id FROM calls ORDER BY id LIMIT ?", EVICTED):
                break
        self._vacuum()

    def expire(self) -> None:
        """Delete the lines that are too old. Raises StoreError."""
        if self._max_age is not None:
            oldest = time.time() - self._max_age
            while self._delete_some("SELECT id FROM calls WHERE time < ? LIMIT ?", oldest, DELETED):
                pass
            self._vacuum()

    def search(self, wanted: LogFilter, limit: int, before: int | None = None) -> list[dict[str, Any]]:
        """Return the newest lines, with an excerpt. before: only lines with a smaller id."""
        where, values = _where(wanted, ("calls.id < ?", before))
        excerpt = "excerpt_of(texts)" if wanted.text.strip() else "substr(texts.prompt, 1, 200)"
        names = ", ".join(f"calls.{name}" for name in ("id", *FIELDS))
        select = f"SELECT {names}, {excerpt} {JOINED} {where} ORDER BY texts.rowid DESC LIMIT ?"
        with self._failures():
            rows = self._connection.execute(select, (*values, limit)).fetchall()
        return [dict(zip(("id", *FIELDS, "excerpt"), row, strict=True)) for row in rows]

    def line(self, number: int) -> dict[str, Any] | None:
        """Return one line with its request and its answer, or None."""
        return next(self._lines("WHERE calls.id = ?", (number,), 1), None)

    def lines(self, wanted: LogFilter) -> Iterator[dict[str, Any]]:
        """Yield lines with request and answer, oldest first."""
        last = 0
        while True:
            page = list(self._lines(*_where(wanted, ("calls.id > ?", last)), EXPORT_PAGE))
            yield from page
            if len(page) < EXPORT_PAGE:
                return
            last = page[-1]["id"]

    def count(self, wanted: LogFilter) -> int:
        """Return how many lines meet the conditions."""
        where, values = _where(wanted)
        with self._failures():
            return int(str(self._connection.execute(f"SELECT count(*) {JOINED} {where}", values).fetchall()[0][0]))

    def purge(self, wanted: LogFilter) -> int:
        """Delete the lines that meet the conditions, and return how many. Raises StoreError."""
        where, values = _where(wanted)
        select, purged = f"SELECT calls.id {JOINED} {where} LIMIT ?", 0
        while deleted := self._delete_some(select, *values, DELETED):
            purged += deleted
        self._vacuum()
        with self._failures():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the log has the deleted pages
        return purged

    def used(self) -> int:
        """Return the bytes of the pages in use."""
        with self._failures():
            pages, free = (int(self._connection.pragma(name)) for name in ("page_count", "freelist_count"))
            return (pages - free) * int(self._connection.pragma("page_size"))

    def check(self) -> None:
        """Raise StoreError unless every line has its texts, and the index agrees with them."""
        with self._failures():
            ((alone,),) = self._connection.execute(
                "SELECT (SELECT count(*) FROM calls WHERE id NOT IN (SELECT rowid FROM texts)) + "
                "(SELECT count(*) FROM texts WHERE rowid NOT IN (SELECT id FROM calls))"
            )
            if alone:
                raise StoreError(f"{alone} lines of {self.path} have no texts, or no request")
            with self._writing():
                self._connection.execute("INSERT INTO texts (texts) VALUES ('integrity-check')")

    def _lines(self, where: str, values: Sequence[Any], limit: int) -> Iterator[dict[str, Any]]:
        columns = ("id", *FIELDS, "request", "response", "prompt", "answer")
        names = ", ".join(f"{'texts' if name in ('prompt', 'answer') else 'calls'}.{name}" for name in columns)
        select = f"SELECT {names} {JOINED} {where} ORDER BY texts.rowid LIMIT ?"
        with self._failures():
            for row in self._connection.execute(select, (*values, limit)).fetchall():
                found: dict[str, Any] = dict(zip(columns, row, strict=True))
                yield found | {"request": expanded(found["request"]), "response": expanded(found["response"])}

    def _insert(self, record: ContentRecord) -> None:
        event = record.event
        values = {
            **{name: getattr(event, name) for name in FIELDS if name not in ("model", "cut")},
            "model": record.model,
            "cut": record.cut,
            "request": record.request,
            "response": record.response,
        }
        marks = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO calls ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
        self._connection.execute(
            "INSERT INTO texts (rowid, prompt, answer) VALUES (?, ?, ?)",
            (self._connection.last_insert_rowid(), _plain(record.prompt), _plain(record.answer)),
        )

    def _delete_some(self, select: str, *values: Any) -> int:
        """Delete the lines whose ids a query returns, in one transaction. Return how many."""
        with self._failures():
            if not self._connection.execute(select, values).fetchall():
                return 0
        with self._writing():
            numbers = self._connection.execute(select, values).fetchall()
            self._connection.executemany("DELETE FROM texts WHERE rowid = ?", numbers)
            self._connection.executemany("DELETE FROM calls WHERE id = ?", numbers)
        return len(numbers)

    def _vacuum(self) -> None:
        """Return free pages to the file system."""
        with self._failures():
            if int(self._connection.pragma("freelist_count")):
                self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.pragma("auto_vacuum", "incremental")  # takes effect before the first table
        use_log(connection)
        connection.pragma("secure_delete", True)
        with writing(connection):
            if connection.pragma("application_id") != KIND.application_id and schema_of(connection):
                raise StoreError(f"{self.path} is a SQLite database of another program; it was not changed")
            if not KIND.check(connection, self.path):
                KIND.create(connection)
        connection.register_fts5_function("excerpt_of", excerpt_of)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Run statements in one transaction, which waits for those of other processes."""
        with self._failures(), writing(self._connection):
            yield

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise StoreError(f"the content log {self.path} failed: {error}") from error


def _where(wanted: LogFilter, *more: tuple[str, Any]) -> tuple[str, list[Any]]:
    """Return the clause of a filter in SQL, and its values. more: further conditions; those with None do not count."""
    conditions = [
        ("texts MATCH ?", match_expression(wanted.text) if wanted.text.strip() else None),
        ("calls.model GLOB ?", wanted.model or None),
        ("calls.tenant = ?", wanted.tenant),
        ("calls.outcome = ?", wanted.outcome or None),
        ("calls.time >= ?", wanted.since),
        ("calls.time < ?", wanted.until),
        *more,
    ]
    found = [(condition, value) for condition, value in conditions if value is not None]
    clause = f"WHERE {' AND '.join(condition for condition, _ in found)}" if found else ""
    return clause, [value for _, value in found]


def match_expression(text: str) -> str:
    """Return the words of a search as an expression of FTS5. Nothing in them is an operator."""
    found = []
    for phrase, word in re.findall(r'"([^"]*)"|(\S+)', text):
        plain = (phrase or word).replace('"', " ").replace("\0", " ")
        prefix = bool(word) and plain.endswith("*")
        plain = plain.rstrip("*") if prefix else plain
        if any(char.isalnum() for char in plain):  # only punctuation: the index has no word for it
            found.append(f'"{plain}"{"*" if prefix else ""}')
    found = list(dict.fromkeys(found))
    if not found:
        raise InvalidInput(f"a search needs a letter or a digit, not {text[:80]!r}")
    if len(found) > MAX_WORDS:
        raise InvalidInput(f"a search may have {MAX_WORDS} different words, not {len(found)}")
    return " ".join(found)


def excerpt_of(match: apsw.FTS5ExtensionApi, /, *_: object) -> str:
    """Return some words around the first match of the prompt or else of the answer, with its matches marked.

    Not snippet() or highlight(): their time is quadratic in the matches of a line, and callers write the lines.
    """
    column = 0 if any(0 in match.phrase_columns(k) for k in range(match.phrase_count)) else 1
    text = match.column_text(column)
    words = match.tokenize(text, None, include_colocated=False)
    matches = sorted(
        (words[first][0], words[first + len(phrase) - 1][1])
        for k, phrase in enumerate(match.phrases)
        for first in match.phrase_column_offsets(k, column)
    )
    place = done = matches[0][0]
    marked = bytearray()
    for start, end in matches:
        if start - place > MAX_BYTES:
            break
        if start >= done:  # else two phrases have a word in common
            marked += b"%b%b%b%b" % (text[done:start], MARKS[0].encode(), text[start:end], MARKS[1].encode())
            done = end
    marked += text[done : done + MAX_BYTES]
    before = re.findall(r"\s*\S+\s*", _decode(text[max(0, place - MAX_BYTES) : place])[-MAX_EXCERPT:])[-WORDS_BEFORE:]
    shown = "".join(re.findall(r"\s*\S+", _decode(marked)[:MAX_EXCERPT])[:WORDS_AFTER])
    first = place - len("".join(before).encode())
    rest = _decode(marked)[len(shown) :] + _decode(text[done + MAX_BYTES :])
    shown += MARKS[1] * (shown.count(MARKS[0]) - shown.count(MARKS[1]))
    return f"{'…' if text[:first].strip() else ''}{''.join(before)}{shown}{'…' if rest.strip(MARKS[1]).strip() else ''}"


def _decode(part: bytes | bytearray) -> str:
    """Return a part of a text, without the halves of characters at its ends."""
    return part.decode(errors="ignore")


def _plain(text: str) -> str:
    return text.translate({0: " ", 2: " ", 3: " "})
