"""The semantic tier in the list of features."""

from __future__ import annotations

from typing import Any

from knapcache.proxy.feature_list import Command, FeatureSpec, Flag


def is_on(settings: Any) -> bool:
    """Return whether the tier is on for any caller."""
    callers = [tenant.semantic or settings.semantic for tenant in settings.tenants] or [settings.semantic]
    return any(mode not in (None, "off") for mode in (*callers, *(route.semantic for route in settings.route)))


SPEC = FeatureSpec(
    name="semantic",
    title="Similar questions",
    feature="knapcache.features.semantic.feature:SemanticFeature",
    is_on=is_on,
    files=(("semantic.sqlite", "knapcache.features.semantic.sqlite_log:KIND"),),
    check="knapcache.features.semantic.feature:check_embedder",
    compare="knapcache.features.semantic.reasons:may_serve_text",
    turn_on='semantic = "shadow"',
    about="Stored answers to questions in other words, up to a certified error rate. The shadow serves none.",
    settings="knapcache.features.semantic.settings:SemanticSettings",
    tenant_settings="knapcache.features.semantic.settings:SemanticTenantSettings",
    route_settings="knapcache.features.semantic.settings:SemanticRouteSettings",
    flags=(Flag("semantic", "MODE", "answers to questions in another wording: off, shadow or on (default: off)"),),
    commands=(
        Command(
            "semantic",
            "show what the semantic tier would serve from a question log, and how much of it is wrong",
            "knapcache.features.semantic.cli",
        ),
    ),
)
