"""The semantic tier as a feature of the proxy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from knapcache.features.semantic.feature import SemanticFeature


def test_a_tier_that_may_no_longer_serve_is_reported_once() -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    certified: list[set[str]] = [{"", "team"}, {"", "team"}, {""}, {""}, {"", "team"}]
    feature: Any = object.__new__(SemanticFeature)
    feature._serving = set()
    settings = SimpleNamespace(tenants=[SimpleNamespace(name="team")])
    feature.context = SimpleNamespace(settings=settings, notify=lambda event, **fields: sent.append((event, fields)))
    for serving in certified:
        feature.calls = SimpleNamespace(tier=SimpleNamespace(may_serve=serving.__contains__))
        feature.report_lost_certificates()
    assert sent == [("semantic_shadow", {"tenant": "team"})]
