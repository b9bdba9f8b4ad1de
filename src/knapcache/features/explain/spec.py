"""Explanations of requests in the list of features."""

from __future__ import annotations

from knapcache.proxy.feature_list import Command, FeatureSpec

SPEC = FeatureSpec(
    name="explain",
    title="Why",
    feature="knapcache.features.explain.feature:ExplainFeature",
    is_on=lambda _settings: True,
    commands=(Command("why", "say why a request is not in a cache", "knapcache.features.explain.cli"),),
)
