"""The numbers of all proxies of a shared store: those of this one as they are now, those of others as published.

`PublishedProxies` reads the valid documents that the others have published (publisher.py). The classes after it have
the methods of the ones that they add to, so the admin API does not ask which it uses.

`refresh` reads what has changed since the last time, at most once in REFRESH seconds, and only for requests to the
admin API. The index of a kind gives the time at which each document ends, which changes whenever it is published again.

A document of another version, or one that is damaged, is ignored and counted. While the server does not answer there
are no other proxies: this one shows its own numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from knapcache.errors import InvalidInput, StoreError
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.feature_sums import TotalsClasses
from knapcache.proxy.events.history import History
from knapcache.proxy.events.history_file import NO_TOTALS, HistoryTable
from knapcache.proxy.events.history_reader import HistoryReader
from knapcache.proxy.events.publisher import MAX_PROXIES, ProxyPublisher
from knapcache.proxy.events.recent import RecentReader, RecentRequests, serial_at
from knapcache.proxy.events.shared_documents import CLOSED, Boundary, PublishedStatus, decode_part, decode_status
from knapcache.proxy.events.upstream_health import UpstreamHealth, fails_now
from knapcache.proxy.events.usage import UsageRow
from knapcache.store.redis.documents import Documents
from knapcache.store.redis.server_state import ServerState

REFRESH = 1.0
CLOCKS_DIFFER = 300.0
"""Seconds by which the clocks of machines may differ."""
LATE = 60_000_000
"""Microseconds. A serial that is so much later than now is not a time, so all recent requests are returned."""
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
        """Read what has changed. May wait for the server."""
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


class MergedHistory(HistoryReader):
    """The history of all proxies: rows of the same time, model or tenant are added."""

    def __init__(self, own: History, others: PublishedProxies) -> None:
        self._own, self._others, self.zone, self.totals, self.now = own, others, own.zone, own.totals, own.now

    def poll_shadows(self) -> None:
        self._own.poll_shadows()

    def save(self) -> bool:
        return self._own.save()

    def tables(self) -> Iterator[HistoryTable]:
        yield from self._own.tables()
        yield from self._others.tables


class MergedRecent(RecentReader):
    """The recent requests of all proxies. host: that of this one."""

    def __init__(self, own: RecentRequests, host: str, others: PublishedProxies) -> None:
        self._own, self._host, self._others = own, host, others

    def listed(self, limit: int) -> list[tuple[int, Event, str]]:
        found = [(serial, event, self._host) for serial, event in self._own.newest(limit)]
        found += [(serial, event, status.host) for status in self._others.statuses for serial, event in status.events]
        return sorted(found, key=lambda each: each[0])

    def after(self, serial: int, limit: int) -> dict[str, Any]:
        """As `RecentReader.after`. The serial for the next call is a time until which all requests are known.

        Later ones may be in the next result again: the page must not show a serial twice.
        """
        now = serial_at(time.time())
        known = min([now, *(serial_at(status.time) for status in self._others.statuses)])
        return self.page(known, serial if serial <= now + LATE else 0, limit)


class MergedHealth:
    """Health of the upstreams, as all proxies see it: one that fails at any proxy is failing."""

    def __init__(self, own: UpstreamHealth, others: PublishedProxies) -> None:
        self._own, self._others = own, others

    def report(self) -> list[dict[str, Any]]:
        """Return one row for each upstream of this proxy, in the order of the settings."""
        rows = {row["name"]: row for row in self._own.report()}
        for status in self._others.statuses:
            for upstream in status.upstreams:
                if (row := rows.get(upstream.name)) is not None:
                    rows[upstream.name] = _add_health(row, upstream.model_dump(), status.host)
        return list(rows.values())


def _add_health(row: dict[str, Any], other: dict[str, Any], host: str) -> dict[str, Any]:
    found = row | {name: row[name] + other[name] for name in ("calls", "errors", "failed")}
    if other["state"] == "failing":
        since, last = ([one[name] for one in (row, other) if one[name]] for name in ("failing_since", "last_failure"))
        found |= {
            "state": "failing",
            "failing_since": min(since, default=None),
            "last_failure": max(last, default=None),
        }
        found["reason"] = row["reason"] or f"{other['reason']} (seen by {host})"
    if (other["open_until"] or 0.0) > (row["open_until"] or 0.0):
        found |= {"health": other["health"], "open_until": other["open_until"]}
    return found | {"failing_now": fails_now(found)}


class SharedProxies:
    """All proxies of a shared store, and the state of its server. Publishes for this one.

    identity       id, host, release, started and workers of this proxy
    place          where the server is, without a password
    """

    def __init__(
        self,
        documents: Documents,
        place: str,
        server_state: Callable[[], ServerState],
        identity: dict[str, Any],
        history: History,
        recent: RecentRequests,
        health: UpstreamHealth,
        owner: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._server_state, self._own = place, server_state, history
        self.publisher = ProxyPublisher(documents, identity, history, recent, health, owner)
        self.others = PublishedProxies(documents, identity["id"], history.totals, clock)
        self.refresh = self.others.refresh
        self.history = MergedHistory(history, self.others)
        self.recent = MergedRecent(recent, identity["host"], self.others)
        self.health = MergedHealth(health, self.others)

    def server(self) -> dict[str, Any]:
        """Return where the server is, its state, since when, and why."""
        return {"place": self._place, **self._server_state()._asdict()}

    def report(self) -> dict[str, Any]:
        """Return the proxies that run, this one first, and what is known of others."""
        own = self.publisher.identity | {"owner": self.publisher.is_owner(), "requests": self._own.total().requests}
        rows = [own | {"this": True}]
        rows += [{name: getattr(status, name) for name in own} | {"this": False} for status in self.others.statuses]
        for row in rows:
            row["version"] = row.pop("release")
        return {"engine": self.server(), "rows": rows, "ended": self.others.ended, "ignored": self.others.ignored}
