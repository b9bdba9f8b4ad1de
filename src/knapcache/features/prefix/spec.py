"""Prompt caches of providers in the list of features."""

from __future__ import annotations

from typing import Any

from knapcache.proxy.feature_list import Command, FeatureSpec, Flag


def is_on(settings: Any) -> bool:
    """Return whether requests of any route are marked, or observed."""
    return settings.prefix != "off" or any(route.prefix not in (None, "off") for route in settings.route)


SPEC = FeatureSpec(
    name="prefix",
    title="Prompt caches",
    feature="knapcache.features.prefix.feature:PrefixFeature",
    is_on=is_on,
    turn_on='prefix = "on"',
    about="What providers read from their prompt caches, and marks that make them read more.",
    settings="knapcache.features.prefix.settings:PrefixSettings",
    route_settings="knapcache.features.prefix.settings:PrefixRouteSettings",
    upstream_settings="knapcache.features.prefix.settings:PrefixUpstreamSettings",
    flags=(
        Flag("prefix", "MODE", "marks for the provider's prompt cache: off, observe, on or manage (default: observe)"),
    ),
    commands=(
        Command(
            "prefix",
            "compare rules that mark prefixes for a provider's prompt cache",
            "knapcache.features.prefix.cli",
        ),
    ),
)
