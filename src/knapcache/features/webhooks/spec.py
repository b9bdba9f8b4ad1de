"""Webhooks in the list of features."""

from __future__ import annotations

from knapcache.proxy.feature_list import Command, FeatureSpec

SPEC = FeatureSpec(
    name="webhooks",
    title="Webhooks",
    feature="knapcache.features.webhooks.feature:WebhooksFeature",
    is_on=lambda settings: bool(settings.webhook),
    turn_on='webhook = [{ name = "chat", url = "https://example.com/hook" }]',
    about="A request to your URL when a state changes: a limit is reached, an upstream fails or recovers.",
    settings="knapcache.features.webhooks.settings:WebhooksSettings",
    commands=(
        Command(
            "webhook",
            "send a test event to the webhooks of the settings",
            "knapcache.features.webhooks.cli",
        ),
    ),
)
