"""Prompt caches of providers as a feature of the proxy."""

from __future__ import annotations

from knapcache.features.prefix.hooks import PrefixHooks
from knapcache.features.prefix.settings import PrefixSettings
from knapcache.features.prefix.tier import PrefixTier
from knapcache.proxy.features import Feature, ProxyContext
from knapcache.proxy.hooks import CallContext, CallHooks


class PrefixFeature(Feature):
    """Marks requests for the prompt caches of providers, or observes what marks would save."""

    name = "prefix"

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        settings = context.settings
        assert isinstance(settings, PrefixSettings)
        self.tiers = {
            each.name: PrefixTier(
                each.name,
                each.prompt_cache,
                settings.prefix,
                context.secret,
                input_price=context.meter.input_price,
            )
            for each in settings.upstreams
            if each.prompt_cache != "off" and not each.local
        }
        """By name of the upstream, of those with a prompt cache."""

    def begin(self, call: CallContext) -> CallHooks | None:
        return None if call.exchange is None else PrefixHooks(call, self.tiers, self.context.body_pool)
