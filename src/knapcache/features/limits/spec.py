"""Limits in the list of features."""

from __future__ import annotations

from typing import Any

from knapcache.proxy.feature_list import FeatureSpec


def is_on(settings: Any) -> bool:
    return settings.limits is not None or any(tenant.limits is not None for tenant in settings.tenants)


SPEC = FeatureSpec(
    name="limits",
    title="Limits",
    feature="knapcache.features.limits.feature:LimitsFeature",
    is_on=is_on,
    files=(("limits.sqlite", "knapcache.features.limits.sqlite_counts:KIND"),),
    turn_on="limits = { usd_per_day = 10.0 }",
    about="Limits on dollars, requests and tokens: of each tenant, or of all callers together.",
    settings="knapcache.features.limits.settings:LimitsSettings",
    tenant_settings="knapcache.features.limits.settings:LimitsTenantSettings",
    reloaded=("limits",),
)
