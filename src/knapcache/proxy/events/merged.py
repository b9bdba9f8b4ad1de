"""The numbers of all proxies of a shared store: those of this one as they are now, those of others as published.

Each class has the methods of the one that it adds to, so the admin API does not ask which it uses. Before they are
called, `SharedProxies.refresh` reads what others have published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from knapcache.proxy.events.events import Event
from knapcache.proxy.events.history import History
from knapcache.proxy.events.history_file import HistoryTable
from knapcache.proxy.events.history_reader import HistoryReader
from knapcache.proxy.events.published import PublishedProxies
from knapcache.proxy.events.publisher import ProxyPublisher
from knapcache.proxy.events.recent import RecentRequests, by_arrival, earlier, row_of, serial_at
from knapcache.proxy.events.upstream_health import UpstreamHealth, fails_now
from knapcache.store.redis.engine_state import EngineState

LATE = 60_000_000
"""Microseconds. A serial that is so much later than now is no time, so all recent requests are returned."""


class MergedHistory(HistoryReader):
    """The history of all proxies: rows of the same time, model or tenant are added."""

    def __init__(self, own: History, others: PublishedProxies) -> None:
        self._own, self._others, self.zone, self.totals = own, others, own.zone, own.totals
        self.now, self.poll_shadows, self.save = own.now, own.poll_shadows, own.save

    def tables(self) -> Iterator[HistoryTable]:
        yield from self._own.tables()
        yield from self._others.tables


class MergedRecent:
    """The recent requests of all proxies. host: that of this one."""

    def __init__(self, own: RecentRequests, host: str, others: PublishedProxies) -> None:
        self._own, self._host, self._others = own, host, others

    def _all(self, limit: int) -> list[tuple[int, Event, str]]:
        found = [(serial, event, self._host) for serial, event in self._own.newest(limit)]
        found += [(serial, event, status.host) for status in self._others.statuses for serial, event in status.events]
        return sorted(found, key=lambda each: each[0])

    def newest(self, limit: int) -> list[tuple[int, Event]]:
        """Return serial and event of the newest requests, oldest first."""
        return [(serial, event) for serial, event, _ in self._all(limit)[-limit:]]

    def after(self, serial: int, limit: int) -> dict[str, Any]:
        """Return the newest `limit` requests whose serial is larger, in the order in which they arrived.

        The serial in the result is a time until which the requests of every proxy are known. Later ones may be in the
        next result again: the page must not show a serial twice.
        """
        now = serial_at(time.time())
        first = serial if serial <= now + LATE else 0
        rows = [row_of(number, event, host) for number, event, host in self._all(limit)[-limit:] if number > first]
        return {
            "serial": min([now, *(serial_at(status.time) for status in self._others.statuses)]),
            "rows": by_arrival(rows),
        }

    def find(self, serial: int) -> tuple[Event, str] | None:
        """Return the request of a serial, and the host of the proxy that served it."""
        own = self._own.find(serial)
        if own is not None:
            return own[0], self._host
        return next(((event, host) for number, event, host in self._all(0) if number == serial), None)

    def earlier(self, event: Event) -> list[Event]:
        """Return the requests for the same key that arrived before this one, oldest first."""
        others = [one for status in self._others.statuses for _, one in status.events]
        return sorted([*self._own.earlier(event), *earlier(event, others)], key=lambda one: one.time)


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
    """All proxies of a shared store, and the state of its engine. place: where the engine is, without a password."""

    def __init__(
        self,
        publisher: ProxyPublisher,
        others: PublishedProxies,
        own: History,
        place: str,
        engine_state: Callable[[], EngineState],
    ) -> None:
        self._publisher, self._others, self._own, self._place = publisher, others, own, place
        self._engine_state = engine_state

    def refresh(self) -> None:
        """Read what other proxies have published. May wait for the engine."""
        self._others.refresh()

    def engine(self) -> dict[str, Any]:
        """Return where the engine is, its state, since when, and why."""
        return {"place": self._place, **self._engine_state()._asdict()}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each proxy that runs, this one first."""
        own = self._publisher.identity | {"owner": self._publisher.is_owner(), "requests": self._own.total().requests}
        names = ("id", "host", "release", "started", "workers", "owner", "requests")
        others = [{name: getattr(status, name) for name in names} for status in self._others.statuses]
        found = [own | {"this": True}, *(row | {"this": False} for row in others)]
        return [{"version" if name == "release" else name: value for name, value in row.items()} for row in found]

    @property
    def ended(self) -> int:
        """Proxies that have ended, and whose requests are part of the sums."""
        return self._others.ended

    @property
    def ignored(self) -> int:
        """Documents that could not be read: of another version, or damaged."""
        return self._others.ignored
