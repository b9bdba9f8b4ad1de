"""Features: what the proxy calls, and the features that the settings turn on.

The proxy knows no feature by name. It builds those that are on (feature_list.py) and calls their methods, in the order
of the list. A feature knows the proxy by its `ProxyContext`, and no other feature.

    start, close, configure          the life of the process
    begin                            a request: its hooks (hooks.py)
    become_owner, consume, metrics   in the process that has the event pipeline
    notice, paid                     what other parts of the proxy report
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knapcache.cache.internal import InternalCache
from knapcache.model import Endpoint
from knapcache.price.meter import Bill, Meter
from knapcache.proxy.events.events import EventBuffer, payment_of
from knapcache.proxy.feature_list import feature_specs
from knapcache.proxy.hooks import CallContext, CallHooks
from knapcache.proxy.settings import Settings
from knapcache.proxy.upstream.upstreams import Upstreams
from knapcache.store.redis.store import RedisStore
from knapcache.threads import DeadlinePool

if TYPE_CHECKING:
    from knapcache.proxy.events.pipeline import EventPipeline


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
    sees_hits = False
    """Whether it needs the text of every request. Then hits have no fast path."""
    starts_on_reload = False
    """Whether it may start when settings are read again. Otherwise it starts with the proxy only."""

    def __init__(self, context: ProxyContext) -> None:
        self.context = context

    @property
    def needs_model(self) -> bool:
        """Whether it needs the model of requests that are not parsed."""
        return False

    def start(self) -> None:
        """Start on the running event loop."""

    def become_owner(self, pipeline: EventPipeline) -> None:
        """Start what only the process with the event pipeline and the admin API does."""

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

    def notice(self, event: str, fields: dict[str, Any]) -> None:
        """Take a change of state that another part of the proxy reports."""

    def paid(self, tenant: str, bill: Bill) -> None:
        """Take the cost of a call in the background, which was not made for a waiting request."""


class Features:
    """The features that are on, in the order of the list."""

    def __init__(self) -> None:
        self.active: tuple[Feature, ...] = ()
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
        self.active = tuple(spec.load()(context) for spec in feature_specs() if spec.is_on(context.settings))

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
        self.active = tuple(known[spec.name] for spec in feature_specs() if spec.name in known)

    def become_owner(self, pipeline: EventPipeline) -> None:
        """Tell all that this process has the event pipeline."""
        self._pipeline = pipeline
        for feature in self.active:
            feature.become_owner(pipeline)

    def begin(self, call: CallContext) -> tuple[CallHooks, ...]:
        """Return the hooks of a request."""
        return tuple([hooks for feature in self.active if (hooks := feature.begin(call)) is not None])

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

    async def close(self) -> None:
        """Close all."""
        for feature in self.active:
            await feature.close()
