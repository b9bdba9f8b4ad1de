"""Money over time: minutes for a day, hours for a month, days for ever; models and tenants in all.

    A request is filed when its line is delivered, a quarter of a second after it is over, under the present minute,
    hour and day. So old rows never change, and for every span the sum of its points is what was filed within it.

    Invariant: the sum of the days, of the models and of the tenants is each the total, whatever was forgotten since.

A day is a day of the machine's time zone, from midnight to midnight: 23 or 25 hours when clocks change. Minutes and
hours are counted in Unix time, which knows no such thing.

`consume` adds a batch to a few rows under a lock, and that is all the event loop waits for. What other policies would
have saved is asked for by a thread once a second while there is traffic, for the cache may have to look at its disk to
answer; the same thread saves, SAVE seconds after something has changed. When nothing happens there is no thread.

The file is written whole beside the old one and renamed: it is the old or the new one, never half of either. What
cannot be read is set aside, said in the log, and history begins anew. Several processes of one proxy have one history,
that of the process that owns the store: others send it their events (team.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, tzinfo
from datetime import time as clock_time
from pathlib import Path
from typing import Any, NamedTuple

from knapcache.errors import InvalidInput, KnapcacheError
from knapcache.serve.observe.events import Event
from knapcache.serve.observe.history_file import DAYS, HistoryTable, label, pack, unpack
from knapcache.serve.observe.usage import UsageRow, total

log = logging.getLogger("knapcache.serve")

MINUTE, HOUR, DAY = 60, 3600, 86_400
PAUSE = 1.0
"""Seconds between two looks at the shadows."""
SAVE = 10.0


class Span(NamedTuple):
    """What a chart shows: so many steps of so many seconds, the present one included."""

    step: int
    steps: int


SPANS = {"hour": Span(MINUTE, 60), "day": Span(5 * MINUTE, 288), "month": Span(6 * HOUR, 124)}
"""And "all": a point a day, from the first."""


class History:
    """Rows over time, kept in a folder; None: nowhere. `stats` is the cache's. `zone`: None for the machine's."""

    def __init__(
        self,
        folder: Path | None,
        stats: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:
        self._path = folder / "history.json" if folder is not None else None
        self._stats, self._clock, self._zone = stats, clock, zone
        self._lock = threading.Lock()  # around the rows; nothing that waits happens under it
        self._looking = threading.Lock()  # around a look at the shadows, which must come in their order
        self._saving = threading.Lock()
        self._books = self._load() or HistoryTable(since=clock())
        self._changes = self._looked = self._saved = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._faulty = False
        self._seen = self._spent() or {}

    # What happens.

    def consume(self, events: Sequence[Event]) -> None:
        """These requests are over."""
        batch: dict[tuple[str, str], UsageRow] = {}
        for event in events:
            pair = event.model, event.tenant
            row = batch.get(pair)
            if row is None:
                row = batch[pair] = UsageRow()
            row.count(event)
        with self._lock:
            for (model, tenant), row in batch.items():
                label(self._books.models, model).add(row)
                label(self._books.tenants, tenant).add(row)
            if batch:
                self._add(total(batch.values()))

    def _add(self, row: UsageRow) -> None:
        """To the total and to the present minute, hour and day. Under the lock."""
        now = self._clock()
        self._books.add(row, int(now // MINUTE), int(now // HOUR), self._day(now).toordinal())
        self._changes += 1
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._keep, name="knapcache-history", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Ask now what other policies have paid, and file what they would have saved since the last time."""
        with self._looking:
            spent = self._spent()
            with self._lock:
                self._looked = self._changes
                if spent is None:  # nobody decides here: whoever begins to will begin at 0
                    self._seen = {}
                    return
                began_anew = any(spent[name] < seen for name, seen in self._seen.items() if name in spent)
                before = {} if began_anew else self._seen
                paid = {name: spent[name] - before.get(name, 0.0) for name in spent}
                without = paid.pop("none", 0.0)
                # Sums of the same costs, in another order: a difference of nothing may come out below it.
                saved = {name: max(0.0, without - cost) for name, cost in paid.items()}
                self._seen = spent
                if any(saved.values()):
                    self._add(UsageRow(shadows=saved))
                    self._looked = self._changes

    def _spent(self) -> dict[str, float] | None:
        try:
            found = self._stats().get("shadows")
        except KnapcacheError as error:
            log.warning("what other policies would have saved is not known now: %s", error)
            return None
        return dict(found) if found else None

    def _keep(self) -> None:
        """Until nothing is left to be asked or saved."""
        due = time.monotonic() + SAVE
        while not self._closed.wait(PAUSE):
            self.look()
            if time.monotonic() >= due:
                self.save()
                due = time.monotonic() + SAVE
            with self._lock:
                if self._looked == self._changes and (self._path is None or self._saved == self._changes):
                    self._thread = None
                    return

    # What is known.

    def today(self) -> UsageRow:
        """Since midnight."""
        with self._lock:
            return total([self._books.days.get(self._day(self._clock()).toordinal(), UsageRow())])

    def all(self) -> UsageRow:
        """Since history began."""
        with self._lock:
            return total([self._books.total])

    @property
    def since(self) -> float:
        """When that was."""
        return self._books.since

    def models(self) -> dict[str, UsageRow]:
        """By model, in all."""
        with self._lock:
            return {name: total([row]) for name, row in self._books.models.items()}

    def tenants(self) -> dict[str, UsageRow]:
        """By the caller's name, in all."""
        with self._lock:
            return {name: total([row]) for name, row in self._books.tenants.items()}

    def points(self, span: str) -> tuple[int, list[tuple[float, UsageRow]]]:
        """The length of a step in seconds, and a row for each, with the time it begins; quiet ones are zero."""
        if span == "all":
            return DAY, self._all_days()
        if span not in SPANS:
            raise InvalidInput(f"span must be one of {', '.join([*SPANS, 'all'])}, not {span[:40]!r}")
        step, steps = SPANS[span]
        last = int(self._clock() // step)
        rows = {k: UsageRow() for k in range(last - steps + 1, last + 1)}
        with self._lock:
            unit = MINUTE if step < HOUR else HOUR
            for k, row in (self._books.minutes if step < HOUR else self._books.hours).items():
                found = rows.get(k * unit // step)
                if found is not None:
                    found.add(row)
        return step, [(float(k * step), row) for k, row in rows.items()]

    def _all_days(self) -> list[tuple[float, UsageRow]]:
        today = self._day(self._clock()).toordinal()
        with self._lock:
            days = {day: total([row]) for day, row in self._books.days.items()}  # copies
        last = max([today, *days])
        first = max(last - DAYS + 1, min([today, *days]))  # a clock that stood at 1970 for a while makes no long chart
        rows = {day: UsageRow() for day in range(first, last + 1)}
        for day, row in days.items():
            rows[max(first, day)].add(row)
        return [(self._midnight(date.fromordinal(day)), row) for day, row in rows.items()]

    def _day(self, now: float) -> date:
        return datetime.fromtimestamp(now, self._zone).date()

    def _midnight(self, day: date) -> float:
        return datetime.combine(day, clock_time(), self._zone).timestamp()

    # The file.

    def save(self) -> bool:
        """Write it, if anything has changed; False where that cannot be done now, which is said once."""
        if self._path is None:
            return True
        with self._saving:
            with self._lock:
                if self._saved == self._changes:
                    return True
                changes, text = self._changes, pack(self._books)
            try:
                _replace(self._path, text)
            except OSError as error:
                if not self._faulty:
                    log.warning("history cannot be saved: %s", error)
                self._faulty = True
                return False
            self._saved, self._faulty = changes, False
            return True

    def close(self) -> None:
        """Look and save for the last time."""
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join(SAVE)
            if thread.is_alive():
                log.warning("history is not saved: the disk, or the cache, has not answered for %.0f s", SAVE)
                return
        self.look()
        self.save()

    def _load(self) -> HistoryTable | None:
        if self._path is None:
            return None
        try:
            return unpack(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, InvalidInput) as error:
            aside = self._path.with_name("history.json.damaged")
            log.warning("%s cannot be read and is set aside as %s: %s", self._path, aside.name, error)
            try:
                self._path.replace(aside)
            except OSError as trouble:
                log.warning("%s cannot be set aside: %s", self._path, trouble)
            return None

    def check(self) -> None:
        """Days, models and tenants sum to the total."""
        with self._lock:
            self._books.check()


def _replace(path: Path, text: bytes) -> None:
    """The whole file or the old one, also after a power cut; for nobody else to read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
