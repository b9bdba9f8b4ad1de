"""Remove entries whose requests have the form of an older version: no request has their keys, so none is ever hit.

A stored request begins with its version (`keys/canonical.py`), and the key is a digest of the whole. A file has a row
with the version of all its requests. Where it differs or is missing, the file is converted once, when its owner opens
it: what is outdated is removed, and so is the policy's state if nothing is left for it. Bytes that name no version
are not touched. An encrypted file names none: encryption is younger than the last change of the version.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import apsw

from knapcache.model import REQUEST_VERSION
from knapcache.store.sqlite.layout import DiskLayout, operation_frames
from knapcache.store.sqlite.rows import GET_STATE, PUT_STATE, Sealer

log = logging.getLogger("knapcache.store")

SNAPSHOT_ROW, VERSION_ROW = 2, 5
"""Ids in the table `state`."""
START = 48
"""Bytes of a request that hold its version. Several items under one key have a length before it."""
_VERSION = re.compile(rb"(?:\d{1,12}:)?\d{2}:(knapcache request \d{1,4}),")


def is_outdated(request: bytes) -> bool:
    """Return whether a stored request has the form of another version."""
    found = _VERSION.match(request)
    return found is not None and found[1] != REQUEST_VERSION


def remove_outdated(connection: apsw.Connection, layout: DiskLayout, path: Path) -> None:
    """Remove outdated entries, if the file was not converted yet."""
    mark = Sealer().seal(b"requests", REQUEST_VERSION), REQUEST_VERSION
    if connection.execute(GET_STATE, (VERSION_ROW,)).fetchall() == [mark]:
        return
    rows = connection.execute("SELECT id, substr(request, 1, ?) FROM entries WHERE typeof(request) = 'blob'", (START,))
    found = [number for number, start in rows if start and is_outdated(start)]  # SQLite returns null for no bytes
    batch = max(1, layout.frames_per_transaction // operation_frames())  # the log has a fixed size
    for first in range(0, len(found), batch):
        with connection:
            connection.executemany("DELETE FROM entries WHERE id = ?", [(k,) for k in found[first : first + batch]])
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    if found:
        if not connection.execute("SELECT 1 FROM entries LIMIT 1").fetchall():
            connection.execute("DELETE FROM state WHERE id = ?", (SNAPSHOT_ROW,))
        log.warning(
            "%s: %d entries of an older version of knapcache were removed. The form of stored requests has changed, "
            "so none of them could be hit.", path, len(found)
        )  # fmt: skip
    connection.execute(PUT_STATE, (VERSION_ROW, *mark))
