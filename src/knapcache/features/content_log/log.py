"""The content log: requests and answers with their text, for search and export. Off unless the setting is on.

    request ─ append ─▶ queue ─▶ thread: read the answer, redact, cut ─▶ content.sqlite

Every process writes what it has served, because a text may be long: the owner would have to read and redact the texts
of all processes. The event loop only appends to the queue, which holds at most MAX_WAITING requests with at most
MAX_WAITING_BYTES bytes. When it is full, new requests are dropped and counted. No response waits for the log.

Hits have no short path while the log is on (http/handler.py), because that path does not parse requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from knapcache.errors import KnapcacheError, StoreError
from knapcache.features.content_log.file import ContentFile
from knapcache.features.content_log.record import ContentRecord, LoggedContent, make_record
from knapcache.features.content_log.redaction import TextRedactor
from knapcache.threads import BatchWorker

log = logging.getLogger("knapcache.serve")

MAX_WAITING = 10_000
"""Requests that wait for the thread."""
MAX_WAITING_BYTES = 64 << 20
"""Bytes of their bodies and answers."""
BATCH = 50
"""Requests in one transaction. Another process waits for its end."""
LINGER = 0.1
"""Seconds that a request waits for others, which are written together."""
WARN_INTERVAL = 60.0
"""Seconds between two warnings that requests are dropped."""
EXPIRE_INTERVAL = 600.0
"""Seconds between two searches for lines that are too old, if no requests come."""


class ContentLog:
    """The log of one process. `append` runs on the event loop's thread and never waits."""

    def __init__(self, path: Path, capacity: int, days: float, redact: Sequence[str]) -> None:
        self.path, self._max_age = path, days * 86400.0
        self._redactor = TextRedactor(redact)
        self._file = ContentFile(path, capacity, self._max_age)
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = self._refused = 0
        self._failing, self._unreadable, self._warned = False, False, -math.inf
        # Its own limit is never reached: it counts a batch as waiting until the whole batch is written.
        self._worker: BatchWorker[tuple[LoggedContent, int]] = BatchWorker(
            "content-log", self._write, 2 * MAX_WAITING, LINGER
        )

    @property
    def dropped(self) -> int:
        """Requests of this process that were not written: the disk or the thread was too slow, or failed."""
        return self._worker.lost + self._refused

    def append(self, content: LoggedContent, body_bytes: int) -> None:
        """Queue a request. body_bytes: length of its body."""
        size = content.size + body_bytes
        with self._lock:
            if self._waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                self._refused += 1
                self._warn()
                return
            self._waiting += 1
            self._waiting_bytes += size
        self._worker.offer(((content, size),))

    def _warn(self) -> None:
        """Log that requests are dropped, at most once in WARN_INTERVAL."""
        now = time.monotonic()
        if now - self._warned >= WARN_INTERVAL:
            self._warned = now
            log.warning("Requests are missing in the content log, %d so far: they come too fast.", self._refused)

    async def expire_periodically(self) -> None:
        """Delete lines that are too old, also while no requests come. Runs until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL)
            try:
                await asyncio.to_thread(self._expire)
            except KnapcacheError as error:
                log.error("Old lines of the content log not deleted: %s", error)

    def close(self) -> None:
        if self._worker.close():
            self._file.close()

    def _expire(self) -> None:
        with contextlib.closing(ContentFile(self.path, None, self._max_age)) as file:
            file.expire()

    # In the thread.

    def _write(self, batch: Sequence[tuple[LoggedContent, int]]) -> None:
        written = 0
        try:
            for start in range(0, len(batch), BATCH):
                self._write_part(batch[start : start + BATCH])
                self._release(batch[start : start + BATCH])
                written = start + BATCH
        finally:  # else requests of a batch that failed would count as waiting for ever
            self._release(batch[written:])

    def _release(self, part: Sequence[tuple[LoggedContent, int]]) -> None:
        with self._lock:
            self._waiting -= len(part)
            self._waiting_bytes -= sum(size for _, size in part)

    def _write_part(self, part: Sequence[tuple[LoggedContent, int]]) -> None:
        try:
            self._file.append(self._records(part))
            self._failing = False
        except StoreError as error:  # full, gone or read-only: every batch tries again
            self._worker.count_lost(len(part))
            if not self._failing:
                self._failing = True
                log.error("Requests are missing in the content log: %s", error)

    def _records(self, part: Sequence[tuple[LoggedContent, int]]) -> list[ContentRecord]:
        """Return the lines of requests. One that cannot be read must not remove the lines of the others."""
        found = []
        for content, _ in part:
            try:
                found.append(make_record(content, self._redactor))
            except Exception:  # an edge of the proxy: requests and answers come from others
                self._worker.count_lost(1)
                if not self._unreadable:
                    self._unreadable = True
                    log.exception("A request is missing in the content log")
        return found
