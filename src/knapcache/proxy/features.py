"""The base class of features, and the features that the settings turn on.

The proxy knows no feature by name. It builds those that are on (feature_list.py) and calls their methods, in the order
of the list. A feature knows the proxy by its `ProxyContext`, and no other feature.

    start, close, configure          the life of the process
    begin                            a request: its hooks (hooks.py)
    part, note, totals               the classes of what it says about requests, and of its sums in the history
    become_owner, metrics            in the process that has the event pipeline; it adds consumers of events there
    span_attributes                  what the span of a request says about it
    notice, paid, after_purge        what other parts of the proxy report
    admin_routes, summary_fields     the admin API (admin_routes.py)
    explain                          why a request was a hit or a miss
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from knapcache.cache.internal import InternalCache
from knapcache.model import Endpoint
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.admin_routes import AdminServices, FeatureExplanation, Route, SummaryField
from knapcache.proxy.events.events import Event, EventBuffer, payment_of
from knapcache.proxy.events.feature_sums import FeatureTotals, TotalsClasses
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.proxy.settings import Settings
from knapcache.proxy.upstream.upstreams import Upstreams
from knapcache.store.redis.store import RedisStore
from knapcache.threads import DeadlinePool


@dataclass(frozen=True, kw_only=True)
class ProxyContext:
    """The objects of the proxy that features use."""

    settings: Settings
    folder: Path | None
    """The data directory; None: nothing is written to files."""
    secret: bytes
    encryption_keys: tuple[bytes, ...]
    cache: InternalCache
    shared_store: RedisStore | None
    """The store that proxies on several machines share; None: there is none."""
    upstreams: Upstreams
    meter: Meter
    events: EventBuffer
    body_pool: DeadlinePool
    """Parses long bodies."""
    features: Features

    def notify(self, event: str, **fields: Any) -> None:
        """Report a change of state to all features."""
        for feature in self.features.active:
            feature.notice(event, fields)

    def count_payment(self, endpoint: Endpoint, model: str, tenant: str, bill: Bill) -> None:
        """Count a call in the background."""
        for feature in self.features.active:
            feature.paid(tenant, bill)
        self.events.append_payment(payment_of(endpoint.value, model, tenant, bill))


class Feature:
    """A part of the proxy that can be left out: one object for each process. Every method may be left out."""

    name = ""
    part: type[Any] | None = None
    """The class of its parts of events, a NamedTuple; None: it has none.

    A part takes at most some kilobytes, and details that take more. A method `shortened` returns it without these: they
    are dropped when many events wait. `from_fields` makes one of its fields as JSON has them, if they are not plain.
    """
    note: type[Any] | None = None
    """The class of what it passes to `EventBuffer.append_note`, a NamedTuple; None: nothing."""
    totals: type[FeatureTotals] | None = None
    """The class of its sums in the history; None: it has none. One that `starts_on_reload` has none until a restart."""
    sees_hits = False
    """Whether it needs the text of every request. Then hits have no fast path."""
    explains = ""
    """If GET /requests/{serial} has a field with its name and the text of `explain`: description of the field."""
    starts_on_reload = False
    """Whether it may start when settings are read again. Otherwise it starts with the proxy only."""

    def __init__(self, context: ProxyContext) -> None:
        self.context = context
        self.tasks: list[asyncio.Task[None]] = []
        """Tasks that are cancelled before `close`."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the feature is closed."""
        self.tasks.append(asyncio.create_task(coroutine))

    @property
    def needs_model(self) -> bool:
        """Whether it needs the model of requests that are not parsed."""
        return False

    def start(self) -> None:
        """Start on the running event loop."""

    def become_owner(self, pipeline: EventPipeline) -> None:
        """Start what only the process with the event pipeline and the admin API does, and add consumers of events."""

    async def before_metrics(self) -> None:
        """Prepare for `metrics` what needs the event loop. Called in the owner process only."""

    def metrics(self) -> Iterable[Metric]:
        """Yield its metrics. Called in a thread of the owner process."""
        return ()

    def span_attributes(self, part: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return attributes for the span of a request with this part. Called in a thread of the owner process."""
        return {}

    def configure(self, settings: Settings) -> None:
        """Apply settings that were read again."""

    async def close(self) -> None:
        """Release files and connections. Called before the pipeline is closed."""

    def not_ready(self) -> str:
        """Return why this process should get no requests yet; empty: it should."""
        return ""

    def begin(self, call: CallContext) -> CallHooks | None:  # noqa: ARG002
        """Return what it does for a request; None: nothing."""
        return None

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:  # noqa: ARG002
        """Return its routes of the admin API."""
        return ()

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        """Return its fields of GET /summary."""
        return ()

    def explain(self, event: Event, *, content: bool) -> FeatureExplanation:  # noqa: ARG002
        """Return what it did with a request. content: with parts of prompts. May wait for the disk."""
        return FeatureExplanation()

    async def after_purge(self) -> None:
        """Take note that entries were purged."""

    def notice(self, event: str, fields: dict[str, Any]) -> None:
        """Take a change of state that another part of the proxy reports."""

    def paid(self, tenant: str, bill: Bill) -> None:
        """Take the cost of a call in the background, which was not made for a waiting request."""


class Features:
    """The features that are on, in the order of the list."""

    def __init__(self) -> None:
        self.active: tuple[Feature, ...] = ()
        self.of_requests: tuple[Feature, ...] = ()
        """Active features that define `begin`."""
        self._context: ProxyContext | None = None
        self._pipeline: EventPipeline | None = None
        """That of the proxy, if this process has it."""

    @property
    def context(self) -> ProxyContext:
        """The objects of the proxy, after `open`."""
        assert self._context is not None
        return self._context

    def get(self, name: str) -> Any:
        """Return a feature by its name; None: it is off."""
        return next((feature for feature in self.active if feature.name == name), None)

    def open(self, context: ProxyContext) -> None:
        """Build the features that the settings turn on."""
        self._context = context
        self._activate([spec.load()(context) for spec in feature_specs() if spec.is_on(context.settings)])

    def _activate(self, features: Sequence[Feature]) -> None:
        self.active = tuple(features)
        self.of_requests = tuple(each for each in features if type(each).begin is not Feature.begin)

    def start(self) -> None:
        """Start all on the running event loop."""
        for feature in self.active:
            feature.start()

    def configure(self, settings: Settings) -> None:
        """Apply settings that were read again, and start features that they turn on, where that is possible."""
        self._context = replace(self.context, settings=settings)
        for feature in self.active:
            feature.context = self._context
            feature.configure(settings)
        known = {feature.name: feature for feature in self.active}
        for spec in feature_specs():
            if spec.name not in known and spec.is_on(settings) and (found := spec.load()).starts_on_reload:
                known[spec.name] = feature = found(self._context)
                feature.start()
                if self._pipeline is not None:
                    feature.become_owner(self._pipeline)
        self._activate([known[spec.name] for spec in feature_specs() if spec.name in known])

    def become_owner(self, pipeline: EventPipeline) -> None:
        """Tell all that this process has the event pipeline."""
        self._pipeline = pipeline
        for feature in self.active:
            feature.become_owner(pipeline)

    def classes(self, kind: str) -> dict[str, Any]:
        """Return the class of each feature that has one, by its name. kind: part, note or totals."""
        return {feature.name: found for feature in self.active if (found := getattr(feature, kind)) is not None}

    @property
    def totals(self) -> TotalsClasses:
        """The classes of their sums in the history."""
        return self.classes("totals")

    async def before_metrics(self) -> None:
        """Prepare all for `metrics`."""
        for feature in self.active:
            await feature.before_metrics()

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of all."""
        for feature in self.active:
            yield from feature.metrics()

    def span_attributes(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of all for the parts of an event."""
        found: dict[str, Any] = {}
        for feature in self.active:
            if (part := parts.get(feature.name)) is not None:
                found |= feature.span_attributes(part)
        return found

    def begin(self, call: CallContext) -> tuple[CallHooks, ...]:
        """Return the hooks of a request."""
        return tuple([hooks for feature in self.of_requests if (hooks := feature.begin(call)) is not None])

    def not_ready(self) -> str:
        """Return why this process should get no requests yet; empty: it should."""
        return next((reason for feature in self.active if (reason := feature.not_ready())), "")

    @property
    def sees_hits(self) -> bool:
        """Whether one of them needs the text of every request."""
        return any(feature.sees_hits for feature in self.active)

    @property
    def needs_model(self) -> bool:
        """Whether one of them needs the model of requests that are not parsed."""
        return any(feature.needs_model for feature in self.active)

    async def after_purge(self) -> None:
        """Tell all that entries were purged."""
        for feature in self.active:
            await feature.after_purge()

    async def close(self) -> None:
        """Close all."""
        for feature in self.active:
            for task in feature.tasks:
                task.cancel()
            await asyncio.gather(*feature.tasks, return_exceptions=True)
            await feature.close()
