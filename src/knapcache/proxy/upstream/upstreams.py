"""All upstreams of the proxy, the groups that routes make of them, and the embedded model."""

from __future__ import annotations

import logging

from knapcache.keys.scan import MAX_MODEL_LENGTH, find_model
from knapcache.proxy.settings import Settings
from knapcache.proxy.upstream.embedded_model import EmbeddedModel
from knapcache.proxy.upstream.group import route_groups
from knapcache.proxy.upstream.upstream import MAX_KNOWN_MODELS, Upstream

log = logging.getLogger("knapcache.serve")


class Upstreams:
    """All upstreams of the settings, in their order."""

    def __init__(self, settings: Settings) -> None:
        self.embedded_model = embedded_model(settings)
        """None: no upstream is local."""
        self.all = [
            Upstream(each, self.embedded_model if each.local else None, settings.max_answer)
            for each in settings.upstreams
        ]
        self.groups = route_groups(self.all, settings.route)
        """By name of the route, of routes that name upstreams."""
        self._settings = settings
        self._known: dict[str, Upstream | None] = {}

    async def open(self) -> None:
        """Start the embedded model."""
        if self.embedded_model is not None:
            await self.embedded_model.start()

    def for_model(self, model: str) -> Upstream | None:
        """The first upstream with a pattern that matches the model, or None."""
        try:
            return self._known[model]
        except KeyError:
            settings = self._settings.upstream_for(model)
            found = next((upstream for upstream in self.all if upstream.settings is settings), None)
            if len(self._known) < MAX_KNOWN_MODELS and len(model) <= MAX_MODEL_LENGTH:
                self._known[model] = found
            return found

    def find_model(self, body: bytes) -> str:
        """Return the model of a body that is not parsed, or "". Raises Uncacheable if that takes too long.

        With one upstream it is not looked for, because it selects nothing.
        """
        return find_model(body) if len(self.all) > 1 else ""

    async def close(self) -> None:
        """Close all connections, and stop the embedded model. Requests in progress fail."""
        for upstream in self.all:
            upstream.client.close()
        if self.embedded_model is not None:
            await self.embedded_model.stop()


def embedded_model(settings: Settings) -> EmbeddedModel | None:
    """Return the embedded model, if an upstream is local."""
    if not any(upstream.local for upstream in settings.upstreams):
        return None
    found = EmbeddedModel(
        settings.local_model, settings.local_threads, settings.local_context, settings.local_prompt_cache
    )
    if found.name in settings.prices:
        log.warning("Dollars of the embedded model are simulated: it is free, and its price is made up in `prices`.")
    return found
