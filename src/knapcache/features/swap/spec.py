"""Swap in the list of features."""

from __future__ import annotations

from typing import Any

from knapcache.proxy.feature_list import Command, FeatureSpec


def is_on(settings: Any) -> bool:
    """Return whether a route may swap models, or learns whether it may."""
    return any(route.swap != "off" for route in settings.route)


SPEC = FeatureSpec(
    name="swap",
    title="Cheaper models",
    feature="knapcache.features.swap.feature:SwapFeature",
    is_on=is_on,
    files=(("swap.sqlite", "knapcache.features.swap.log:KIND"),),
    turn_on='route = [{ name = "cheaper", swap = "shadow", swap_model = "gpt-4o-mini" }]',
    about="A cheaper model where labels of your own traffic prove that it loses little. The shadow swaps nothing.",
    route_settings="knapcache.features.swap.settings:SwapRouteSettings",
    commands=(
        Command(
            "swap",
            "show what a cheaper model would have saved on a log of labelled requests, and what it would have lost",
            "knapcache.features.swap.cli",
        ),
    ),
)
