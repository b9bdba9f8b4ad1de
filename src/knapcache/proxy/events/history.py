"""Usage over time: minutes for a day, hours for a month, days for ever; models and tenants in total.

    A request is added to the current minute, hour and day when its event is consumed, a quarter of a second after it
    finished. So old rows never change, and the points of every span add up to what was consumed within it.

    Invariant: days, models and tenants each add up to the total, whatever was dropped since.

A day is a calendar day in the machine's time zone, 23 or 25 hours long when clocks change. Minutes and hours are
counted in Unix time, which has no clock changes.

`consume` adds a batch to one row under a lock; the event loop waits for nothing else. Before rows are read, that row is
moved into them (`_merge`). What other policies would have saved comes from the cache's statistics, which may need
the disk. So a thread polls them once a second while there is traffic. The same thread saves the file SAVE_INTERVAL
seconds after a change, and ends when there is nothing left to do.

The file is written as a whole beside the old one and renamed, so it is never half written. A file that cannot be read
is renamed to history.json.damaged and logged, and history starts again. Several workers have one history, the owner's:
the others send it their events (workers/owner_link.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from knapcache.errors import InvalidInput, KnapcacheError
from knapcache.proxy.events.events import PAYMENT, Event, Note
from knapcache.proxy.events.feature_sums import FeatureSums, FeatureTotals, TotalsClasses
from knapcache.proxy.events.history_file import NO_TOTALS, HistoryTable, pack, unpack
from knapcache.proxy.events.history_reader import HOUR, MINUTE, HistoryReader
from knapcache.proxy.events.labels import LabelLimiter
from knapcache.proxy.events.shared_documents import BOUNDARY_STEP, MAX_ROWS, Boundary, closed_part, open_part
from knapcache.proxy.events.usage import NO_CACHE, UsageRow, sum_rows
from knapcache.proxy.settings.secrets import open_private

log = logging.getLogger("knapcache.serve")

POLL_INTERVAL = 1.0
"""Seconds between two polls of the shadows."""
SAVE_INTERVAL = 10.0
"""Seconds between two saves, and the most that `close` waits for the thread."""
MAX_FILE = 64 << 20
"""Bytes of a file that is read. A year with a hundred models and tenants takes about one megabyte."""


class History(HistoryReader):
    """Rows over time.

    folder   the data directory; None: nothing is saved
    stats    the cache's statistics
    zone     time zone of the days; None: the machine's
    totals   classes for the sums of features that are on
    """

    def __init__(
        self,
        folder: Path | None,
        stats: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
        totals: TotalsClasses = NO_TOTALS,
    ) -> None:
        self._path = folder / "history.json" if folder is not None else None
        self._stats, self.now, self.zone, self.totals = stats, clock, zone, totals
        self._lock = threading.Lock()  # guards the rows; nothing blocks under it
        self._poll_lock = threading.Lock()  # polls must be applied in their order
        self._save_lock = threading.Lock()
        self._table = self._load() or HistoryTable(since=clock())
        for name, kind in totals.items():
            self._table.sums.setdefault(name, FeatureSums.new(kind))
        self._models, self._tenants = LabelLimiter(self._table.models), LabelLimiter(self._table.tenants)
        self._pending: dict[tuple[str, str], UsageRow] = {}
        """By model and tenant: what was consumed in the current minute and is not in the table yet."""
        self._pending_sums: dict[str, FeatureTotals] = {}
        """The same of features, by name."""
        self._pending_time = clock()
        self._changes = self._polled = self._saved = 0  # change counters: now, at the last poll, at the last save
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._save_failed = False
        found = self._read_stats() or {}
        self._shadow_savings: dict[str, float] = {}
        """Savings of each shadow that the rows include."""
        self._uncached, self._evictions = 0.0, evictions(found)
        self._new_savings(found)

    # Input.

    def consume(self, events: Sequence[Event]) -> None:
        if not events:
            return
        with self._lock:
            self._begin_minute()
            pending = self._pending
            for event in events:
                row = pending.get((event.model, event.tenant))
                if row is None:
                    row = pending[event.model, event.tenant] = UsageRow()
                row.count(event)
                if event.parts:
                    for name in event.parts:
                        if name in self.totals:
                            self._sums_of(name).count(event)
            self._changed()

    def consume_notes(self, notes: Sequence[Note]) -> None:
        with self._lock:
            self._begin_minute()
            for name, note in notes:
                if name == PAYMENT:
                    self._pending.setdefault((note.model, note.tenant), UsageRow()).count_payment(note)
                elif name in self.totals:
                    self._sums_of(name).count_note(note)
            self._changed()

    def _sums_of(self, name: str) -> FeatureTotals:
        """Return the sums of a feature that are not in the table yet. Called under the lock."""
        found = self._pending_sums.get(name)
        if found is None:
            found = self._pending_sums[name] = self.totals[name]()
        return found

    def _begin_minute(self) -> None:
        """Move what was consumed in an earlier minute into the table. Called under the lock."""
        now = self.now()
        if now // MINUTE != self._pending_time // MINUTE:
            self._merge()
        self._pending_time = now

    def _merge(self) -> None:
        """Move what was consumed since the last call into the table. Called under the lock, before the table is read.

        Not called for every batch: batches are small, and this adds to seven rows.
        """
        for name, sums in self._pending_sums.items():
            self._table.sums[name].add(sums, self._ordinal(self._pending_time))
        self._pending_sums = {}
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        for (model, tenant), row in pending.items():
            self._table.models.setdefault(self._models.label(model), UsageRow()).add(row)
            self._table.tenants.setdefault(self._tenants.label(tenant), UsageRow()).add(row)
        self._add(sum_rows(pending.values()), self._pending_time)

    def _add(self, row: UsageRow, now: float) -> None:
        """Add to the total and to the minute, hour and day of a time. Called under the lock."""
        self._table.add(row, int(now // MINUTE), int(now // HOUR), self._ordinal(now))

    def _changed(self) -> None:
        """Count a change, and start the thread that saves it. Called under the lock."""
        self._changes += 1
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._poll_and_save, name="knapcache-history", daemon=True)
            self._thread.start()

    def poll_shadows(self) -> None:
        with self._poll_lock:
            stats = self._read_stats()
            with self._lock:
                self._polled = self._changes
                if stats is None:
                    return
                count, before_count = evictions(stats), self._evictions
                self._evictions = count
                row = UsageRow(evictions=count - before_count if count >= before_count else count)
                row.shadows = self._new_savings(stats)
                if row.evictions or any(row.shadows.values()):
                    self._add(row, self.now())
                    self._changed()
                    self._polled = self._changes

    def _new_savings(self, stats: dict[str, Any]) -> dict[str, float]:
        """Return what each shadow has saved since the last call. Called under the lock."""
        costs = dict(stats.get("shadows") or {})  # none if this process is not the owner; a new owner's start at 0
        uncached = costs.pop(NO_CACHE, 0.0)
        before = self._shadow_savings if uncached >= self._uncached else {}
        # The highest so far: an estimate (cache/shadow.py) may fall, and sums in another order have rounding errors.
        savings = {name: max(uncached - cost, before.get(name, 0.0)) for name, cost in costs.items()}
        self._uncached, self._shadow_savings = uncached, savings
        return {name: saved - before.get(name, 0.0) for name, saved in savings.items()}

    def _read_stats(self) -> dict[str, Any] | None:
        """Return the cache's statistics, or None if they cannot be read."""
        try:
            return self._stats()
        except KnapcacheError as error:
            log.warning("Shadow policies not read: %s", error)
            return None

    def _poll_and_save(self) -> None:
        """Run in the thread until there is nothing left to poll or save."""
        due = time.monotonic() + SAVE_INTERVAL
        while not self._closed.wait(POLL_INTERVAL):
            self.poll_shadows()
            if time.monotonic() >= due:
                self.save()
                due = time.monotonic() + SAVE_INTERVAL
            with self._lock:
                if self._polled == self._changes and (self._path is None or self._saved == self._changes):
                    self._thread = None
                    return

    def tables(self) -> Iterator[HistoryTable]:
        """Yield the table under the lock, until the next one is asked for."""
        with self._lock:
            self._merge()
            yield self._table

    # Parts for other proxies (shared_documents.py).

    @property
    def changes(self) -> int:
        """A number that grows with every change."""
        return self._changes

    def boundary(self) -> Boundary:
        """Return where the rows that may still change begin."""
        now = self.now()
        return Boundary(int(now // BOUNDARY_STEP) * (BOUNDARY_STEP // MINUTE), int(now // HOUR), self._ordinal(now))

    def part(self, boundary: Boundary, kind: str | None = None, limit: int = MAX_ROWS) -> HistoryTable:
        """Return a copy of the rows of one kind before the boundary; None: of all rows after it, and the totals."""
        with self._lock:
            self._merge()
            if kind is None:
                return open_part(self._table, boundary)
            return closed_part(self._table, boundary, kind, limit)

    def _ordinal(self, now: float) -> int:
        return datetime.fromtimestamp(now, self.zone).date().toordinal()

    # The file.

    def save(self) -> bool:
        if self._path is None:
            return True
        with self._save_lock:
            with self._lock:
                if self._saved == self._changes:
                    return True
                self._merge()
                changes, document = self._changes, pack(self._table)
            try:
                _replace(self._path, document)
            except OSError as error:
                if not self._save_failed:
                    log.warning("History not saved: %s", error)
                self._save_failed = True
                return False
            self._saved, self._save_failed = changes, False
            return True

    def close(self) -> None:
        """Poll and save for the last time."""
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join(SAVE_INTERVAL)
            if thread.is_alive():
                log.warning("History not saved: disk or cache did not answer for %.0f seconds", SAVE_INTERVAL)
                return
        self.poll_shadows()
        self.save()

    def _load(self) -> HistoryTable | None:
        if self._path is None:
            return None
        try:
            with os.fdopen(open_private(self._path, os.O_RDONLY), "rb") as file:
                document = file.read(MAX_FILE + 1)
            if len(document) > MAX_FILE:
                raise InvalidInput(f"it is longer than {MAX_FILE} bytes")
            return unpack(document, self.totals)
        except FileNotFoundError:
            return None
        except (OSError, InvalidInput) as error:
            damaged = self._path.with_name("history.json.damaged")
            log.warning("History not read, %s renamed to %s: %s", self._path, damaged.name, error)
            try:
                self._path.replace(damaged)
            except OSError as failure:
                log.warning("History not renamed: %s: %s", self._path, failure)
            return None

    def check(self) -> None:
        """Raise CorruptState unless days, models and tenants each add up to the total."""
        with self._lock:
            self._merge()
            self._table.check()


def evictions(stats: dict[str, Any]) -> int:
    """Return how many entries were evicted, and answers not admitted, for lack of space, since the process started."""
    return sum(stats.get(name, 0) for name in ("evictions", "rejected_by_policy", "rejected_too_large"))


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically, also across a power cut. Only its owner may read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
