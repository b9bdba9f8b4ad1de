"""The admin API's totals, charts and entries, and its purges.

Everything here may wait for the disk, so it runs in a thread. The cache knows tenants by namespace, people know them by
name; this module translates.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from knapcache.cache.purging import purge_conditions
from knapcache.errors import Incomplete, NotOwner, StoreError
from knapcache.keys.outline import outline_of
from knapcache.proxy.admin import models
from knapcache.proxy.admin import summary_models as totals
from knapcache.proxy.admin.amounts import MB, amounts, doubling, first_request, price_of_model, prices_of
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin_routes import SummaryField
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.recent import MAX_RECENT
from knapcache.proxy.routing import RoutedRequest, conditions
from knapcache.proxy.settings import RouteSettings
from knapcache.wire.base import expanded

RESCAN_FACTOR = 50.0
"""The entries are scanned again after this many times the duration of the last scan, so at most 2 % of the time."""

CONDITIONS = frozenset(("name", "model", "endpoint", "tenant", "header", "field"))
NO_REQUEST = RoutedRequest("", "", "", {}, None)


def answer_text(payload: bytes, form: str) -> str:
    """Return a stored answer as text, a stream as it was sent."""
    try:
        return expanded(payload, form).decode("utf-8", "replace")
    except Incomplete as error:
        return f"({error})"


class Overview:
    """Reads cache and history."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._scan: dict[str, Any] = {}
        self._scan_expiry = 0.0

    def summary(
        self, model: type[totals.Summary] = totals.Summary, fields: Sequence[SummaryField] = ()
    ) -> totals.Summary:
        """Return the summary. fields: those of features, which the model has."""
        context, settings, now = self._context, self._context.settings, time.time()
        context.refresh()
        context.history.poll_shadows()
        stats, total = context.cache.stats(), context.history.total()
        policy = str(stats.get("policy", settings.policy))
        capacity = stats.get("size_limit") or stats["capacity"]
        twice = f"{policy}@2x"
        more = doubling(context.history, twice, now) if twice in settings.shadows else None
        return model(
            now=now,
            started=context.started,
            since=context.history.since,
            version=version("knapcache"),
            unit=settings.cost,
            prices=prices_of(total, settings),
            amounts=amounts(total, settings),
            policy=totals.PolicyStatus(
                name=policy,
                oracle_calls=stats.get("oracle_calls", 0),
                oracle_seconds=stats.get("oracle_seconds", 0.0),
                ids=stats.get("ids", 0),
                shadow_rate=stats.get("shadow_rate", 1),
            ),
            storage=totals.StorageStatus(
                capacity=capacity,
                usable=stats["capacity"],
                bytes=stats["bytes"],
                entries=stats["entries"],
                disk_bytes=stats.get("disk_bytes"),
            ),
            today=totals.Usage(**context.history.today().report()),
            all=totals.Usage(**total.report()),
            models=[
                totals.ModelUsage(name=name, price=price_of_model(name, row, settings), **row.report())
                for name, row in context.history.models().items()
            ],
            tenants=self._tenants(),
            price_per_mb=None if more is None else more.saves / (capacity / MB),
            least_value_per_mb=self._scanned()["least_value_per_mb"],
            doubling=more,
            health=self._health(stats, fields),
            first_request=first_request(settings),
            routes=route_statuses(settings.route, (event for _, event in context.recent.newest(MAX_RECENT))),
            **{field.name: field.value() for field in fields if not field.of_health},
        )

    def _tenants(self) -> list[totals.TenantUsage]:
        quotas, sizes = self._context.authenticator.quotas(), self._scanned()["tenants"]
        found = []
        for name, row in self._context.history.tenants().items():
            namespace = self._namespace(name, sizes)
            found.append(
                totals.TenantUsage(
                    name=name,
                    namespace=namespace,
                    bytes=sizes.get(namespace, 0),
                    quota=quotas.get(namespace or ""),
                    **row.report(),
                )
            )
        return found

    def _namespace(self, name: str, known: Iterable[str]) -> str | None:
        """Return the namespace of a tenant's name, or the name itself if it is a namespace. None: no entries."""
        auth = self._context.authenticator
        return auth.namespace_of(name) or next((one for one in known if name in (one, auth.name_of(one))), None)

    def _scanned(self, *, fresh: bool = False) -> dict[str, Any]:
        """Return the least value per megabyte and the bytes of each tenant, from a recent scan unless `fresh`.

        The numbers of a proxy are served while the server of a shared store is away: then the last scan, or none.
        """
        began = time.monotonic()
        if fresh or began >= self._scan_expiry:
            try:
                self._scan = self._context.cache.entries(limit=0)
            except StoreError:
                if self._context.shared is None or fresh:
                    raise
                self._scan = self._scan or {"least_value_per_mb": 0.0, "tenants": {}}
            ended = time.monotonic()
            self._scan_expiry = ended + RESCAN_FACTOR * (ended - began)
        return self._scan

    def _health(self, stats: dict[str, Any], fields: Sequence[SummaryField]) -> Any:
        """Return the values of `HealthStatus`, which the model of the summary validates with the fields of features."""
        breaker = stats.get("breaker", {})
        state = breaker.get("state", "closed")
        return dict(
            store="memory" if self._context.memory_fallback else "ok" if state == "closed" else state,
            owner=stats["owner"],
            workers=self._context.settings.workers,
            upstreams=self._context.upstream_health.report(),
            breaker=breaker,
            engine=None if self._context.shared is None else self._context.shared.server(),
            **{field.name: field.value() for field in fields if field.of_health},
        )

    def proxies(self) -> totals.ProxyPage:
        """Return the proxies that run; without a shared store, this one."""
        context = self._context
        context.refresh()
        shared = context.shared
        if shared is None:
            own = totals.ProxyRow(
                id="",
                host=socket.gethostname(),
                version=version("knapcache"),
                started=context.started,
                workers=context.settings.workers,
                owner=context.cache.owner,
                requests=context.history.total().requests,
                this=True,
            )
            return totals.ProxyPage(engine=None, rows=[own], ended=0, ignored=0)
        return totals.ProxyPage.model_validate(shared.report())

    def history(self, span: str) -> totals.UsageHistory:
        self._context.refresh()
        self._context.history.poll_shadows()
        step, points = self._context.history.points(span)
        # Every point has every policy, so that the points add up: a shadow is silent in times without hits.
        policies = sorted({name for _, row in points for name in row.shadows})
        found = [totals.UsagePoint(time=at, **row.report(policies)) for at, row in points]
        return totals.UsageHistory(step=step, points=found)

    def entries(self, query: models.EntriesQuery, *, content: bool) -> models.EntryPage:
        """Return a page of entries. content: with the first words of prompts, which are then also searched."""
        tenant = query.tenant or None
        if tenant is not None:
            tenant = self._namespace(tenant, self._scanned(fresh=True)["tenants"]) or tenant
        conditions = query.model_dump() | {"model": query.model or None, "tenant": tenant, "tag": query.tag or None}
        found = self._context.cache.browser.page(words=content, **conditions)
        del found["tenants"]
        found["rows"] = [self._named(row, content=content) for row in found["rows"]]
        found["searched"] = found["searched"] if content else 0
        return models.EntryPage(content=content, **found)

    def entry(self, key: str, *, content: bool) -> models.EntryWithContent | None:
        """Return one entry, or None. content: with request and answer."""
        found = self._context.cache.browser.entry(key)
        if found is None:
            return None
        texts = {}
        if content:
            texts = {
                "request": found["request"].decode("utf-8", "replace"),
                "answer": answer_text(found["payload"], found["meta"].get("form", "")),
            }
        outline = outline_of(found["request"])
        named = self._named(found | {"endpoint": outline.kind, "words": outline.words}, content=content)
        return models.EntryWithContent(**named, **texts)

    def _named(self, row: dict[str, Any], *, content: bool) -> dict[str, Any]:
        """Return the columns of an entry with the tenant's name in place of its namespace."""
        tenant = self._context.authenticator.name_of(row["tenant"])
        columns = {name: row[name] for name in models.EntryRow.model_fields if content or name != "words"}
        return columns | {"tenant": tenant}

    def purge(self, conditions: models.Purge, *, content: bool = False) -> models.Purged:
        """Remove the entries that meet every condition, or return a preview of that. content: with first words."""
        tenant = conditions.tenant
        if tenant is not None:
            tenant = self._namespace(tenant, self._scanned(fresh=True)["tenants"]) or tenant
        given = conditions.model_dump(include=set(models.PURGE_CONDITIONS)) | {"tenant": tenant}
        chosen = purge_conditions(**given)
        if not conditions.dry_run:
            return models.Purged(purged=self._context.cache.purge(chosen))
        found = self._context.cache.browser.purge_preview(chosen)
        rows = [self._named(row, content=content) for row in found["rows"]]
        return models.Purged(purged=0, preview=models.PurgePreview(**found | {"rows": rows}))

    def save(self) -> bool:
        """Write the policy's state and the history to disk. Raises NotOwner in a reader of a file.

        The owner of a shared store writes the policy's state by itself, so other proxies save their history.
        """
        if self._context.shared is None and not self._context.cache.owner:
            raise NotOwner("another process owns the file; only the owner can save")
        self._context.cache.maintain()
        self._context.history.poll_shadows()
        return self._context.history.save()


def route_statuses(routes: Iterable[RouteSettings], recent: Iterable[Event]) -> list[totals.RouteStatus]:
    """Return the routes with the outcomes of recent requests."""
    outcomes: dict[str, Counter[str]] = {}
    for event in recent:
        if event.route:
            outcomes.setdefault(event.route, Counter())[event.outcome] += 1
    return [
        totals.RouteStatus(
            name=route.name,
            conditions=[condition.text for condition in conditions(route, NO_REQUEST)],
            rules={
                name: value
                for name, value in route.model_dump(mode="json", exclude_defaults=True).items()
                if name not in CONDITIONS
            },
            recent=dict(outcomes.get(route.name, {})),
        )
        for route in routes
    ]
