"""The log of labels: what all processes of a cache share.

Any process appends, and every process reads all labels in the same order. The state of all frames follows from them, so
all processes decide alike, also after a restart. `SqliteLabels` has them in a file or in memory, `RedisLabels` in a
shared store.

    Invariant: at most MAX_LABELS are kept. Beyond that the oldest are removed; in a shared store, the oldest of the
    tenant that has the most.

A position names the log as well as the place in it. After a log was lost and begun again, `read` starts at its begin
and returns the new epoch: the caller forgets what it has read before.

Records are sealed with the deployment's secret, and encrypted if the store is. So a label that was damaged, or written
without the secret, is not read.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import orjson

from knapcache.store.redis.record_logs import LogChange, RecordLogs
from knapcache.store.sqlite.rows import Sealer
from knapcache.store.sqlite.shared_file import SharedFile
from knapcache.store.sqlite.side_files import FileKind, use_log, writing

log = logging.getLogger("knapcache.serve")

MAX_LABELS = 100_000
MAX_READ = 1000
MAX_RECORD = 1 << 16
KIND = FileKind(
    0x6B6E7377,  # "knsw"
    1,
    (
        "CREATE TABLE labels (id INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)",
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    ),
)
_CONTEXT = b"swap label"
_SEAL_BYTES = 16


class SwapLabel(NamedTuple):
    """A label. Built with keywords."""

    id: str
    """Random."""
    frame: str
    """Digest of the frame, in hex."""
    tenant: str
    route: str
    model: str
    """The model that was asked for."""
    swap_model: str
    judge: str
    """The judge model; empty: none."""
    checks: tuple[str, ...]
    """`swap_escalate`."""
    z: float
    cost: float
    """Of the second answer and the judge, in the policy's unit, as all costs here."""
    asked_cost: float
    """What the asked model has cost, or would have, for the tenant on the route since the process' last label there."""
    asked_answer: float
    """Cost of the answer of the asked model."""
    cheaper_answer: float
    """Cost of the answer of the cheaper model to the same request."""
    rung: str
    source: str
    """`label` or `audit`."""
    time: float
    again: float | None = None
    """The label of a second answer of the asked model, against its first one; None: it was asked once."""
    namespace: str = ""
    """Of the entries of the tenant."""


class LabelPosition(NamedTuple):
    """A place in a log. epoch: the identity of the log."""

    epoch: str = ""
    place: str = ""


class Labels(Protocol):
    """The shared log. Every method may block, may be called by any thread, and may raise StoreError."""

    def append(self, record: SwapLabel) -> None:
        """Add a label."""

    def read(self, after: LabelPosition) -> tuple[list[SwapLabel], LabelPosition]:
        """Return the labels after a position, the oldest first and at most MAX_READ, and the position after them."""

    def close(self) -> None:
        """Release files and connections."""


class LabelCodec:
    """Bytes of the records."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def encode(self, record: SwapLabel) -> bytes:
        return b"".join(self._sealer.protect(_CONTEXT, orjson.dumps(record._asdict())))

    def decode(self, content: Any) -> SwapLabel | None:
        """Return the record; None if it cannot be read."""
        if not isinstance(content, bytes):
            return None
        found = self._sealer.reveal(_CONTEXT, content[:_SEAL_BYTES], content[_SEAL_BYTES:])
        if found is None:
            return None
        try:
            fields = orjson.loads(found)
            record = SwapLabel(**{**fields, "checks": tuple(fields["checks"])})
            return record if all(-1.0 <= z <= 1.0 for z in (record.z, record.again or 0.0)) else None
        except (TypeError, ValueError, KeyError):
            return None

    def decode_all(self, contents: Sequence[Any]) -> list[SwapLabel]:
        return [record for content in contents if (record := self.decode(content)) is not None]


class RedisLabels:
    """Labels in a store on Valkey or Redis (store/redis/record_logs.py)."""

    kind = "wl"

    def __init__(self, logs: RecordLogs) -> None:
        self._logs, self._codec = logs, LabelCodec(logs.sealer)

    def append(self, record: SwapLabel) -> None:
        scope = hashlib.sha256(record.tenant.encode()).hexdigest()[:16].encode()
        self._logs.append(self.kind, [LogChange(b"", self._codec.encode(record), scope)], MAX_LABELS)

    def read(self, after: LabelPosition) -> tuple[list[SwapLabel], LabelPosition]:
        epoch = self._logs.epoch()
        place = after.place if after.epoch == epoch else ""
        rows = self._logs.read(self.kind, place, MAX_READ)
        return self._codec.decode_all([content for _, content in rows]), LabelPosition(
            epoch, rows[-1][0] if rows else place
        )

    def close(self) -> None:
        """Do nothing: the store has the connections."""


class SqliteLabels:
    """Labels in a file that the processes of one machine share. path: None: in memory, for this process."""

    def __init__(self, path: Path | None, sealer: Sealer) -> None:
        self._codec, self._mark = LabelCodec(sealer), sealer.seal(_CONTEXT, b"mark")
        self._file = SharedFile(path, "the log of labels", MAX_RECORD, self._prepare, "all frames learn again")

    def append(self, record: SwapLabel) -> None:
        def append(connection: apsw.Connection) -> None:
            with writing(connection):
                connection.execute("INSERT INTO labels (record) VALUES (?)", (self._codec.encode(record),))
                number = connection.last_insert_rowid()
                connection.execute("DELETE FROM labels WHERE id <= ?", (number - MAX_LABELS,))

        self._file.run(append)

    def read(self, after: LabelPosition) -> tuple[list[SwapLabel], LabelPosition]:
        def read(connection: apsw.Connection) -> tuple[str, list[Any]]:
            ((epoch,),) = connection.execute("SELECT value FROM meta WHERE name = 'epoch'")
            place = int(after.place or 0) if after.epoch == epoch else 0
            select = "SELECT id, record FROM labels WHERE id > ? ORDER BY id LIMIT ?"
            return epoch, connection.execute(select, (place, MAX_READ)).fetchall()

        epoch, rows = self._file.run(read)
        place = str(rows[-1][0]) if rows else after.place if after.epoch == epoch else ""
        return self._codec.decode_all([content for _, content in rows]), LabelPosition(epoch, place)

    def close(self) -> None:
        self._file.close()

    def _prepare(self, connection: apsw.Connection) -> None:
        """Create the tables in an empty file, and empty a log of another secret."""
        existing = KIND.check(connection, self._file.path)
        if self._file.path is not None:
            use_log(connection)
        with writing(connection):
            if not existing:
                KIND.create(connection)
            marks = connection.execute("SELECT value FROM meta WHERE name = 'mark'").fetchall()
            if marks != [(self._mark,)]:
                if existing:
                    log.warning("the log of labels %s was written with another secret; it is emptied", self._file.path)
                connection.execute("DELETE FROM labels")
                put = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
                connection.execute(put, ("mark", self._mark))
                connection.execute(put, ("epoch", os.urandom(8).hex()))
