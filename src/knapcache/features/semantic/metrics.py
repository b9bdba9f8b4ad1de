"""Prometheus metrics of the semantic tier: from its sums (semantic_totals.py), and from its live state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from knapcache.features.semantic.event import MATCH_KINDS
from knapcache.features.semantic.reasons import FAILURES
from knapcache.features.semantic.totals import SOURCES, VERDICTS, SemanticTotals
from knapcache.proxy.events.labels import MAX_LABELS

ScopeReports = Sequence[Mapping[str, Any]]
"""The state of each scope, of `SemanticControl.report` (admin/semantic_control.py)."""


def collect_semantic(totals: SemanticTotals, reports: ScopeReports) -> Iterator[Metric]:
    """Yield all families, in an order that does not depend on the traffic."""
    scopes = list(totals.scopes.items())
    requests = CounterMetricFamily(
        "knapcache_semantic_requests",
        "Requests that reached the semantic tier, by what it did with them.",
        labels=["scope", "result"],
    )
    labels = CounterMetricFamily(
        "knapcache_semantic_labels",
        "Matches that were judged, by source (shadow, audit, feedback) and verdict. All but `same` count as wrong.",
        labels=["scope", "source", "verdict"],
    )
    failures = CounterMetricFamily(
        "knapcache_semantic_failures",
        "Requests that the semantic tier could not look up, by reason.",
        labels=["scope", "reason"],
    )
    for name, one in scopes:
        for reason in FAILURES:
            failures.add_metric([name, reason], one.reasons.get(reason, 0))
        for kind in MATCH_KINDS:
            requests.add_metric([name, kind], one.kinds.get(kind, 0))
        for source in SOURCES:
            for verdict in VERDICTS:
                labels.add_metric([name, source, verdict], one.labels.get(f"{source} {verdict}", 0))
    yield requests
    yield failures
    yield labels
    for field, metric, text in (
        ("seconds", "knapcache_semantic_seconds", "Time that the tier took before its requests went on."),
        (
            "usd_saved",
            "knapcache_semantic_usd_saved",
            "US dollars that answers served by similarity had cost. Only answers of known price.",
        ),
        ("judge_usd", "knapcache_semantic_judge_usd", "US dollars paid to the model that judges matches."),
    ):
        family = CounterMetricFamily(metric, text, labels=["scope"])
        for name, one in scopes:
            family.add_metric([name], getattr(one, field))
        yield family
    serving = GaugeMetricFamily(
        "knapcache_semantic_serving",
        "1 while a level is certified and the mode is on, so that the tier serves.",
        labels=["scope"],
    )
    bound = GaugeMetricFamily(
        "knapcache_semantic_bound",
        "Certified bound on the share of wrong answers; 1 while nothing is certified.",
        labels=["scope"],
    )
    alarms = CounterMetricFamily(
        "knapcache_semantic_alarms",
        "How often wrong labels have ended the certificate of a level that served.",
        labels=["scope"],
    )
    for report in reports[:MAX_LABELS]:
        where, certified = [str(report["scope"])], report.get("bound")
        serving.add_metric(where, certified is not None and report["mode"] == "on")
        bound.add_metric(where, 1.0 if certified is None else certified)
        alarms.add_metric(where, report.get("alarms", 0))
    yield serving
    yield bound
    yield alarms
