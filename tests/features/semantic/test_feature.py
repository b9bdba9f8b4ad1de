"""The semantic tier as a feature of the proxy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from knapcache.features.semantic import feature as subject
from knapcache.features.semantic.feature import SemanticFeature
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.features.semantic.test_semantic_totals import similar
from tests.support.events import event
from tests.support.metric_docs import PAGE


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


@pytest.fixture
def feature(monkeypatch: pytest.MonkeyPatch) -> SemanticFeature:
    async def report() -> list[dict[str, Any]]:
        return [{"scope": "team-a", "mode": "on", "bound": 0.0083, "alarms": 1}]

    monkeypatch.setattr(subject, "open_semantic", lambda _: SimpleNamespace(tier=SimpleNamespace(report=report)))
    context: Any = SimpleNamespace()
    return SemanticFeature(context)


async def test_requests_and_verdicts_are_counted_and_known_as_matches(feature: SemanticFeature) -> None:
    feature.consume([event("hit"), similar(match_id="m-1"), similar(kind="audit", match_id="m-2")])
    feature.consume_verdicts([verdict_event(match_id="m-2", kind="audit", verdict="different")])
    newest = [(one.match.match_id, one.match.verdict) for one in feature.matches.newest(5)]
    assert newest == [("m-2", "different"), ("m-1", "")]
    await feature.before_metrics()
    samples = [sample for family in feature.metrics() for sample in family.samples]
    found = {
        (sample.name.removeprefix("knapcache_semantic_"), *sample.labels.values()): sample.value for sample in samples
    }
    assert (found["requests_total", "team-a", "served"], found["requests_total", "team-a", "audit"]) == (1, 1)
    assert found["labels_total", "team-a", "audit", "different"] == 1
    assert found["bound", "team-a"] == 0.0083


def test_spans_of_answers_by_similarity_name_the_match(feature: SemanticFeature) -> None:
    found = feature.span_attributes(semantic_event())
    page = PAGE.read_text(encoding="utf-8").split("## Traces")[1]
    assert all(f"| `{name}` |" in page for name in found)
    assert list(found.values()) == ["m-1", "cd" * 32, 0.93]
    assert feature.span_attributes(semantic_event(kind="shadow")) == {}
