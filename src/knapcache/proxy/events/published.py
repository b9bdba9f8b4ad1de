"""Reads the valid documents that the other proxies of a shared store have published (publisher.py).

`refresh` reads what has changed since the last time, at most once in REFRESH seconds, and only for requests to the
admin API. The index of a kind gives the time at which each document ends, which changes whenever it is published again.

A document of another version, or one that is damaged, is ignored and counted. While the engine does not answer there
are no other proxies: this one shows its own numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from knapcache.errors import InvalidInput, StoreError
from knapcache.proxy.events.feature_sums import TotalsClasses
from knapcache.proxy.events.history_file import NO_TOTALS, HistoryTable
from knapcache.proxy.events.history_parts import CLOSED, Boundary, decode_part
from knapcache.proxy.events.proxy_status import PublishedStatus, decode_status
from knapcache.proxy.events.publisher import MAX_PROXIES
from knapcache.proxy.events.usage import UsageRow
from knapcache.store.redis.documents import Documents

REFRESH = 1.0
CLOCKS_DIFFER = 300.0
"""Seconds by which the clocks of machines may differ."""
D = TypeVar("D")
Part = tuple[Boundary, HistoryTable]


class PublishedProxies:
    """The other proxies.

    own      id of this one, which is left out
    totals   classes for the sums of features
    """

    def __init__(
        self,
        documents: Documents,
        own: str,
        totals: TotalsClasses = NO_TOTALS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._documents, self._own, self._clock = documents, own, clock
        self._decode_part = partial(decode_part, totals=totals)
        self._lock = threading.Lock()
        self._next = 0.0
        self._read: dict[tuple[str, str], tuple[float, Any]] = {}
        """By kind and id: when the document ends, and its content; None: it is invalid."""
        self._sums: dict[bool, tuple[Any, HistoryTable]] = {}
        """By whether the proxies run: what was summed, and the sum."""
        self.ignored = 0
        """Documents that were not valid."""
        self.statuses: list[PublishedStatus] = []
        """The other proxies that run, by host and id."""
        self.tables: list[HistoryTable] = []
        """Their histories, and those of proxies that have ended: added up, they are all requests."""
        self.ended = 0
        """Proxies that have ended, but are part of the sums."""

    def refresh(self) -> None:
        """Read what has changed. May wait for the engine."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                return
            try:
                self._refresh()
            except StoreError:
                self.statuses, self.tables, self.ended = [], [], 0
            self._next = self._clock() + REFRESH

    def _refresh(self) -> None:
        statuses = self._load("status", decode_status)
        running = {name for name, status in statuses.items() if status.id == name}
        parts: dict[str, dict[str, Part]] = {}
        for kind in ("open", *CLOSED):  # in this order: what is closed is published first
            parts[kind] = self._load(kind, self._decode_part)
        self.statuses = sorted((statuses[name] for name in running), key=lambda status: (status.host, status.id))
        open_parts = parts["open"]
        self.ended = len(open_parts.keys() - running)
        closed = [self._sum_closed(parts, is_running, running) for is_running in (True, False)]
        self.tables = [*closed, *(table for _, table in open_parts.values())]

    def _load(self, kind: str, decode: Callable[[bytes], D]) -> dict[str, D]:
        """Return the valid documents of a kind by proxy, and read those that have changed."""
        listed = self._documents.ends(kind, MAX_PROXIES)
        listed.pop(self._own, None)
        found: dict[str, D] = {}
        for name, end in listed.items():
            if kind == "status" and end < time.time() - CLOCKS_DIFFER:
                continue  # that of a proxy that was killed
            known = self._read.get((kind, name))
            if known is None or known[0] != end or kind == "status":  # a status ends soon
                known = end, self._get(kind, name, decode, known)
                self._read[kind, name] = known
            if known[1] is not None:
                found[name] = known[1]
        for key in [key for key in self._read if key[0] == kind and key[1] not in listed]:
            del self._read[key]
        return found

    def _get(self, kind: str, name: str, decode: Callable[[bytes], D], known: tuple[float, Any] | None) -> D | None:
        document = self._documents.get(kind, name)
        if document is None:  # it has ended, or is damaged
            return None
        try:
            return decode(document)
        except InvalidInput:
            if known is None or known[1] is not None:  # counted once
                self.ignored += 1
            return None

    def _sum_closed(self, parts: dict[str, dict[str, Part]], is_running: bool, running: set[str]) -> HistoryTable:
        """Return the sum of all closed rows of the proxies that run, or of those that have ended.

        Those that have ended do not change, so they are summed once.
        """
        open_parts = parts["open"]
        names = sorted(name for name in open_parts if (name in running) == is_running)
        stamp = [
            (kind, name, self._read[kind, name][0], open_parts[name][0])
            for kind in CLOSED
            for name in names
            if name in parts[kind]
        ]
        known = self._sums.get(is_running)
        if known is None or known[0] != stamp:
            found = HistoryTable(since=0.0)
            for kind, name, _, boundary in stamp:
                rows: dict[int, UsageRow] = getattr(found, kind)
                end: int = getattr(boundary, kind)
                for k, row in getattr(parts[kind][name][1], kind).items():
                    if k < end:  # a part of a later boundary has rows that are in this `open`, too
                        rows.setdefault(k, UsageRow()).add(row)
            known = self._sums[is_running] = stamp, found
        return known[1]
