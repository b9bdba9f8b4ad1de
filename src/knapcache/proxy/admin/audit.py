"""The audit log: who did what through the admin API, and when.

    audit.jsonl             admin actions: every change, login and logout, every reading of content
    audit-refused.jsonl     refused requests: wrong tokens, and tokens whose role does not allow the action
    NAME.1                  the older part of each

Each line is a JSON object (`admin_request.AuditRecord`). It has the parameters of the action, and neither content nor
secrets. A change is written twice, with one id: before it is carried out, with the status null, and with its result.
The first line is on disk (fsync) before the change begins. If it cannot be written, the change is refused.

    Invariant: Σ sizes of the four files ≤ capacity. A file that would exceed capacity/4 replaces its older part.

Anybody can cause refused requests. So they have files of their own, where they cannot displace records of actions, and
at most MAX_REFUSED of them are written in a minute, MAX_PER_ADDRESS from one address. The next record counts the rest.

Processes append whole lines under a lock on the file, so the file may be shared: by the owner process, its successor
and `knapcache serve --rotate-token`. Every write opens the file again and follows no symbolic link.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from knapcache.proxy.settings.secrets import append_all, open_private

log = logging.getLogger("knapcache.audit")

ACTIONS, REFUSED = "audit.jsonl", "audit-refused.jsonl"
FILES = 4
WINDOW = 60.0
MAX_REFUSED = 60
MAX_PER_ADDRESS = 10
MAX_IN_MEMORY = 1000
"""Records without a data directory."""
MAX_LINE = 4096
"""Bytes of a line: a model and a tenant of 200 characters each take less."""

Record = dict[str, Any]


class AuditLog:
    """Appends records. folder: the data directory; None: the newest records are in memory only."""

    def __init__(self, folder: Path | None, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._file_size, self._clock = folder, capacity // FILES, clock
        self._lock = threading.Lock()
        self._memory: dict[str, deque[Record]] = {name: deque(maxlen=MAX_IN_MEMORY) for name in (ACTIONS, REFUSED)}
        self._window_start = 0.0
        self._refused: dict[str, int] = {}
        """Refused requests of this window by address, at most MAX_REFUSED in total."""
        self._skipped = 0

    def append(self, record: Record) -> None:
        """Write the record of an action. Raises OSError."""
        self._write(ACTIONS, record)

    def allow_refused(self, address: str) -> bool:
        """Count a refused request, and return whether its record is to be written."""
        with self._lock:
            now = self._clock()
            if now - self._window_start >= WINDOW:
                self._window_start, self._refused = now, {}
            number = self._refused.get(address, 0)
            if number >= MAX_PER_ADDRESS or sum(self._refused.values()) >= MAX_REFUSED:
                self._skipped += 1
                return False
            self._refused[address] = number + 1
            return True

    def append_refused(self, record: Record) -> None:
        """Write the record of a refused request that `allow_refused` has allowed. Raises OSError."""
        with self._lock:
            skipped, self._skipped = self._skipped, 0
        self._write(REFUSED, {**record, "skipped": skipped})

    def newest(self, limit: int) -> list[Record]:
        """Return the newest records, newest first. The two lines of a change are one record. Raises OSError."""
        found: dict[str, Record] = {}
        for name in (ACTIONS, REFUSED):
            for record in self._tail(name, 2 * limit):
                found[record["id"]] = record
        return sorted(found.values(), key=lambda record: str(record["time"]), reverse=True)[:limit]

    def _write(self, name: str, record: Record) -> None:
        line = orjson.dumps(record) + b"\n"
        log.info("admin action: %s", line[:-1].decode())
        if self._folder is None:
            self._memory[name].append(record)
            return
        with self._lock:
            while not self._append(self._folder / name, line):
                pass

    def _append(self, path: Path, line: bytes) -> bool:
        """Append a line and sync it. False: the file was just replaced, so try again. Raises OSError."""
        descriptor = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                    if size and size + len(line) + 1 > self._file_size:
                        os.replace(path, path.with_name(path.name + ".1"))
                        return False
                    if size and os.pread(descriptor, 1, size - 1) != b"\n":
                        line = b"\n" + line  # a process was killed while it wrote the last line
                    append_all(descriptor, line, size)
                    os.fsync(descriptor)
                    return True
            return False
        finally:
            os.close(descriptor)

    def _tail(self, name: str, limit: int) -> list[Record]:
        """Return the last records of one kind, oldest first."""
        if self._folder is None:
            return list(self._memory[name])[-limit:]
        lines: list[bytes] = []
        for path in (self._folder / name, self._folder / f"{name}.1"):
            if len(lines) < limit:
                lines = _last_lines(path, limit * MAX_LINE) + lines
        found = []
        for line in lines[-limit:]:
            with suppress(orjson.JSONDecodeError, TypeError):
                record = orjson.loads(line)
                if "id" in record and "time" in record:
                    found.append(record)
        return found


def _last_lines(path: Path, size: int) -> list[bytes]:
    """Return the complete lines within the last `size` bytes of a file; none if it is missing."""
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        start = max(0, os.fstat(descriptor).st_size - size)
        file.seek(start)
        lines = file.read().split(b"\n")
    return lines[1 if start else 0 : -1]


def new_record(action: str, **fields: Any) -> Record:
    """Return a record of an action that begins now."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"id": secrets.token_hex(8), "time": now, "action": action, **fields}
