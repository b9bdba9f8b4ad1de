"""What there is now, and what is to go: the cache's numbers and history's, in the words of the admin API.

Everything here may wait for a disk, so it runs in a thread. The cache knows tenants by namespace; people know them by
name, and this is where one becomes the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from knapcache.errors import NotOwner
from knapcache.serve.admin.context import AdminContext
from knapcache.serve.admin.models import ENTRY_FIELDS
from knapcache.serve.observe.history import DAY
from knapcache.serve.observe.usage import UsageRow

REST = 50.0
"""All entries are looked at again after so many times as long as it took: at most a fiftieth of the time goes there."""
STORE = {"closed": "ok"}


class Overview:
    """Looks, and removes."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._room: dict[str, Any] = {}
        self._room_until = 0.0

    def summary(self) -> dict[str, Any]:
        """Everything that fits on one page."""
        context, now = self._context, time.time()
        context.history.poll_shadows()
        stats, everything = context.cache.stats(), context.history.total()
        policy = str(stats.get("policy", context.settings.policy))
        return {
            "now": now,
            "started": context.started,
            "since": context.history.since,
            "version": version("knapcache"),
            "unit": context.settings.cost,
            "policy": {
                "name": policy,
                "oracle_calls": stats.get("oracle_calls", 0),
                "oracle_seconds": stats.get("oracle_seconds", 0.0),
                "ids": stats.get("ids", 0),
            },
            "storage": {
                "capacity": stats["capacity"],
                "bytes": stats["bytes"],
                "entries": stats["entries"],
                "disk_bytes": stats.get("disk_bytes"),
                "size_limit": stats.get("size_limit"),
            },
            "today": context.history.today().report(),
            "all": everything.report(),
            "models": [{"name": name, **row.report()} for name, row in context.history.models().items()],
            "tenants": self._tenants(),
            "price_per_mb": self._look_around()["price_per_mb"],
            "doubling": doubling(everything, f"{policy}@2x", now - context.history.since),
            "health": self._health(stats),
        }

    def _tenants(self) -> list[dict[str, Any]]:
        quotas, sizes = self._context.authenticator.quotas(), self._look_around()["tenants"]
        found = []
        for name, row in self._context.history.tenants().items():
            namespace = self._namespace(name, sizes)
            about = {"name": name, "namespace": namespace, "bytes": sizes.get(namespace, 0)}
            found.append({**about, "quota": quotas.get(namespace or ""), **row.report()})
        return found

    def _namespace(self, name: str, known: Iterable[str]) -> str | None:
        """Of a caller's name, or of itself; None: nothing of anybody of that name is kept."""
        callers = self._context.authenticator
        return callers.namespace_of(name) or next((one for one in known if name in (one, callers.name_of(one))), None)

    def _look_around(self, *, anew: bool = False) -> dict[str, Any]:
        """The price of room, and the room of every tenant: of a while ago, where that takes long to find out."""
        began = time.monotonic()
        if anew or began >= self._room_until:
            self._room = self._context.cache.entries(limit=0)
            ended = time.monotonic()
            self._room_until = ended + REST * (ended - began)
        return self._room

    def _health(self, stats: dict[str, Any]) -> dict[str, Any]:
        breaker = stats.get("breaker", {})
        state = breaker.get("state", "closed")
        return {
            "store": "memory" if self._context.memory_fallback else STORE.get(state, state),
            "owner": stats["owner"],
            "workers": self._context.settings.workers,
            "upstreams": self._context.upstream_health.report(),
            "breaker": breaker,
        }

    def history(self, span: str) -> dict[str, Any]:
        """Money over time."""
        self._context.history.poll_shadows()
        step, points = self._context.history.points(span)
        return {"step": step, "points": [{"time": when, **row.report()} for when, row in points]}

    def entries(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Kept answers, with the names of their tenants."""
        tenant = asked["tenant"] or None
        if tenant is not None:
            tenant = self._namespace(tenant, self._look_around(anew=True)["tenants"]) or tenant
        found = self._context.cache.entries(**{**asked, "model": asked["model"] or None, "tenant": tenant})
        rows = [self._row(row) for row in found["rows"]]
        return {"total": found["total"], "rows": rows, "price_per_mb": found["price_per_mb"]}

    def entry(self, key: str) -> dict[str, Any] | None:
        """One of them, with its content where settings allow."""
        found = self._context.cache.entry(key)
        if found is None:
            return None
        row = self._row(found)
        if self._context.settings.show_content:
            row["request"] = found["request"].decode("utf-8", "replace")
            row["answer"] = found["payload"].decode("utf-8", "replace")
        return row

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in ENTRY_FIELDS} | {
            "tenant": self._context.authenticator.name_of(row["tenant"])
        }

    def purge(self, what: dict[str, Any]) -> int:
        """Remove what meets every condition; how many."""
        cache = self._context.cache
        tenant = what.get("tenant")
        if tenant is not None:
            tenant = self._namespace(tenant, self._look_around(anew=True)["tenants"]) or tenant
        return cache.purge(
            key=what.get("key"), model=what.get("model"), tenant=tenant, older_than=what.get("older_than")
        )

    def save(self) -> bool:
        """The policy's state, and history."""
        if not self._context.cache.stats()["owner"]:
            raise NotOwner("another process owns the file, and has to do it")
        self._context.cache.maintain()
        self._context.history.poll_shadows()
        return self._context.history.save()


def doubling(row: UsageRow, name: str, seconds: float) -> dict[str, float] | None:
    """What a cache with twice the room would have saved more, in all and by day; None: nobody has watched one."""
    if name not in row.shadows:
        return None
    saves = max(0.0, row.cost_spent - row.would()[name])
    return {"saves": saves, "per_day": saves * DAY / max(seconds, 60.0)}
