"""Metrics: Prometheus' own parser reads them, sums are right, and their number is bounded."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from knapcache import Cache, Reply
from knapcache.errors import StoreError
from knapcache.proxy.events import metrics as observe_metrics
from knapcache.proxy.events.events import OUTCOMES, PAYMENT, Event, PaymentEvent, UpstreamTry
from knapcache.proxy.events.labels import MAX_LABELS, OTHER
from knapcache.proxy.events.loop_watchdog import LoopWatchdog
from knapcache.proxy.events.metrics import BUCKETS, DROPPED, Metrics
from knapcache.proxy.feature_list import feature_specs
from tests.support.events import SampleNote, event, traffic
from tests.support.metric_docs import PAGE, documented, labels_of
from tests.support.timing import check_seconds, cpu_seconds

Labels = frozenset[tuple[str, str]]
STATS: dict[str, Any] = {
    "bytes": 5000,
    "capacity": 10**6,
    "size_limit": 11 * 10**5,
    "disk_bytes": 8192,
    "entries": 3,
    "ids": 9,
    "oracle_calls": 4,
    "oracle_seconds": 0.25,
    "evictions": 2,
    "breaker": {"state": "open", "opened": 1, "skipped": 5},
    "owner": True,
}


def metrics(*events: Event, stats: dict[str, Any] | None = None) -> Metrics:
    dropped = {name: lambda: 7 for name in DROPPED}
    found = Metrics(
        lambda: STATS if stats is None else stats,
        dropped,
        lambda: 12,
        LoopWatchdog(),
        lambda: [{"name": "a", "state": "ok", "health": "half-open"}],
    )
    found.consume(events)
    return found


def samples(of: Metrics) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(of.render().decode()):
        for sample in family.samples:
            where = found.setdefault(sample.name, {})
            labels = frozenset(sample.labels.items())
            assert labels not in where, "a series twice"
            where[labels] = sample.value
    return found


def total(of: Metrics, name: str, **labels: str) -> float:
    return sum(v for where, v in samples(of).get(name, {}).items() if set(labels.items()) <= where)


def test_requests_and_money() -> None:
    of = metrics(
        event("miss", usd=0.5),
        event("hit", usd=0.5, upstream_seconds=2.0),
        event("hit", usd=0.5, upstream_seconds=2.0),
        event("coalesced", usd=0.5, upstream_seconds=2.0, model="gpt-5"),
        event("stale", usd=None, upstream_seconds=1.0),
        event("similar", usd=0.25, upstream_seconds=1.0),
        event("bypass", usd=0.25, tenant="team-b"),
        event("passthrough", usd=None, endpoint="", model=""),
        event("failed", usd=None, status=502, attempts=(0, 429, 502)),
        event("rejected", usd=None, status=401, upstream=""),
    )
    found = samples(of)
    assert (
        found["knapcache_requests_total"][
            frozenset({"endpoint": "chat/completions", "model": "gpt-4o", "tenant": "team-a", "outcome": "hit"}.items())
        ]
        == 2
    )
    assert [total(of, "knapcache_requests_total", outcome=outcome) for outcome in OUTCOMES] == [
        2, 1, 1, 1, 1, 1, 1, 1, 1,
    ]  # fmt: skip
    assert total(of, "knapcache_usd_saved_total") == 1.75
    assert total(of, "knapcache_usd_saved_total", model="gpt-5") == 0.5
    assert total(of, "knapcache_usd_spent_total") == 0.75
    assert total(of, "knapcache_usd_spent_total", tenant="team-b") == 0.25
    assert total(of, "knapcache_seconds_saved_total") == 8.0
    of.consume_notes([(PAYMENT, PaymentEvent("e", "m", "t", 0.25, 1.0, 0.25, 9)), ("sample", SampleNote(1))])
    assert total(of, "knapcache_usd_spent_total", model="m") == 0.25, "in the background"
    assert total(of, "knapcache_requests_total", model="m") == 0
    for code in ("2xx", "4xx", "5xx", "none"):
        assert total(of, "knapcache_calls_total", upstream="openai", code=code) == 1


def test_calls_of_upstreams_that_failed_a_request() -> None:
    tried = (UpstreamTry("a", (0, 503), "", 0.0), UpstreamTry("b", (429,), "", 0.0))
    of = metrics(event("miss", upstream="c", attempts=(200,), tried=tried), event("miss", upstream="c"))
    for name, code in (("a", "none"), ("a", "5xx"), ("b", "4xx")):
        assert total(of, "knapcache_calls_total", upstream=name, code=code) == 1
    assert total(of, "knapcache_fallbacks_total", upstream="a", fallback="c") == 1
    assert total(of, "knapcache_fallbacks_total", upstream="b", fallback="c") == 1
    assert total(of, "knapcache_fallbacks_total") == 2


def test_the_health_of_upstreams() -> None:
    of = metrics()
    states = ("healthy", "open", "half-open")
    assert [total(of, "knapcache_upstream_health", upstream="a", state=state) for state in states] == [0, 0, 1]


def test_histograms() -> None:
    of = metrics(*(event("hit", seconds=s, ttfb=s / 2) for s in (0.0001, 0.0005, 0.3, 1000.0)), event("miss"))
    name = "knapcache_request_seconds"
    assert total(of, f"{name}_count", outcome="hit") == 4
    assert total(of, f"{name}_sum", outcome="hit") == pytest.approx(1000.3006)
    counts = [total(of, f"{name}_bucket", outcome="hit", le=str(bound)) for bound in (*BUCKETS, "+Inf")]
    assert counts == sorted(counts)
    assert (counts[0], counts[BUCKETS.index(0.25)], counts[BUCKETS.index(0.5)], counts[-1]) == (2, 2, 3, 4)
    assert total(of, "knapcache_first_byte_seconds_bucket", outcome="hit", le="0.25") == 3
    assert total(of, f"{name}_count", outcome="miss") == 1


def test_metrics_of_the_cache_are_missing_while_its_store_fails() -> None:
    of = metrics()
    for name, value in (("bytes", 5000), ("capacity_bytes", 1.1e6), ("entries", 3), ("breaker_open", 1), ("owner", 1)):
        assert total(of, f"knapcache_{name}") == value
    for name in ("oracle_calls", "oracle_seconds", "evictions"):
        assert total(of, f"knapcache_{name}_total") == STATS[name]
    for name in DROPPED:
        assert total(of, f"knapcache_{name}_dropped_total") == 7
    assert total(of, "knapcache_tasks") == 12

    def broken() -> dict[str, Any]:
        raise StoreError("gone")

    without = Metrics(broken)
    without.consume([event()])
    assert total(without, "knapcache_requests_total") == 1
    assert "knapcache_bytes" not in samples(without)


def test_metrics_of_a_real_cache() -> None:
    with Cache(capacity="1MB", cost="seconds") as cache:
        cache.fetch("completions", {"prompt": "a question"}, lambda: Reply(b"an answer", cost=1.0))
        of = Metrics(cache._internal.stats)
        assert total(of, "knapcache_entries") == 1
        assert 0 < total(of, "knapcache_bytes") < total(of, "knapcache_capacity_bytes") == 10**6
        assert total(of, "knapcache_breaker_open") == 0


def test_names_and_units_follow_prometheus_conventions() -> None:
    """The rules of `promtool check metrics`."""
    families = list(text_string_to_metric_families(metrics(*map(event, OUTCOMES)).render().decode()))
    assert len(families) > 20
    abbreviated = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "min", "h", "d", "pct"}
    not_base = {"milliseconds", "microseconds", "minutes", "hours", "days", "kilobytes", "megabytes", "percent"}
    for family in families:
        words = family.name.split("_")
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert not {*words} & (abbreviated | not_base | {"counter", "gauge", "histogram", "summary"}), family.name
        for sample in family.samples:
            assert (sample.name.endswith("_total")) == (family.type == "counter"), sample.name
            if family.type != "histogram":
                assert not sample.name.endswith(("_count", "_sum", "_bucket"))
                assert "le" not in sample.labels
            for label in sample.labels:
                assert re.fullmatch(r"[a-z]+", label)
                assert label not in family.name.split("_") or family.name.startswith("knapcache_upstream_")
    assert {f.name for f in families} >= {"process_resident_memory_bytes", "process_cpu_seconds"}


@pytest.mark.parametrize(
    "name", ['a"b', "a\nb", "a\\nb", "\ud800", "\x00", "\u202e", "x" * 10_000, "} 1\nfake_total 5", "\r", ""]
)
def test_hostile_names_make_one_series(name: str) -> None:
    of = metrics(event(model=name, tenant=name, endpoint=name, upstream=name))
    found = samples(of)
    assert list(found["knapcache_requests_total"].values()) == [1]
    assert "fake_total" not in found
    assert max(len(value) for labels in found["knapcache_requests_total"] for _, value in labels) <= 100


def test_the_number_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe_metrics, "MAX_SERIES", 1000)
    of = metrics()
    of.consume([event("rejected", model=f"junk-{k}", status=404) for k in range(500)])
    of.consume([event(model="gpt-4o"), event("failed", model="gpt-4o", status=500)])
    assert total(of, "knapcache_requests_total", model=OTHER) == 500, "names that were only rejected get no label"
    assert total(of, "knapcache_requests_total", model="gpt-4o") == 2
    of.consume(
        [
            event(model=f"m-{k}", upstream=f"u-{k}", outcome=f"h-{k}", status=200 + k, attempts=(200 + k,))
            for k in range(500)
        ]
    )
    assert len({dict(labels)["model"] for labels in samples(of)["knapcache_requests_total"]}) <= MAX_LABELS + 1
    assert len(samples(of)["knapcache_calls_total"]) <= 6 * (MAX_LABELS + 1)
    assert total(of, "knapcache_requests_total", outcome=OTHER) == 500
    of.consume([event(model=f"m-{a}", tenant=f"t-{b}") for a in range(40) for b in range(40)])
    assert total(of, "knapcache_requests_total") == 500 + 2 + 500 + 40 * 40, "every request is counted"
    assert len(samples(of)["knapcache_requests_total"]) <= 1000 + len(OUTCOMES) + 1


def test_the_cost_of_counting_does_not_grow_with_the_number_of_names() -> None:
    """Invented names of models must not make counting slow. About 2 µs an event on one core of a server."""
    of = metrics()
    normal = [e._replace(model=f"m-{k % 50}", tenant=f"t-{k % 20}") for k, e in enumerate(traffic(5000))]
    hostile = [e._replace(model=f"x-{k}") for k, e in enumerate(normal)]
    best = []
    for batch in (normal, hostile):
        of.consume(batch)
        best.append(min(cpu_seconds(partial(of.consume, batch)) for _ in range(5)))
    check_seconds(max(best), 3 * min(best), "the slower kind of names")
    check_seconds(max(best) / len(normal), 3e-5, "an event")


@pytest.mark.features
def test_every_metric_is_documented() -> None:
    tried = (UpstreamTry("a", (0,), "", 0.0),)
    of = metrics(*map(event, OUTCOMES), event("miss", tried=tried))
    there, listed = labels_of(text_string_to_metric_families(of.render().decode())), documented()
    assert there == {name: labels for name, labels in listed.items() if name in there}
    features = tuple(f"knapcache_{spec.name.removesuffix('s')}" for spec in feature_specs())
    assert all(name.startswith(features) for name in listed.keys() - there.keys())
    page = PAGE.read_text(encoding="utf-8")
    assert str(MAX_LABELS) in page.split("## Metrics")[1].split("\n## ")[0]
    for name in re.findall(r"\bknapcache_\w+", page):
        assert re.sub("_(bucket|sum|count)$", "", name) in listed, f"{PAGE.name} speaks of {name}"


def test_features_add_their_own_families() -> None:
    family = CounterMetricFamily("knapcache_sample", "Samples.", value=3)
    assert total(Metrics(dict, features=lambda: [family]), "knapcache_sample_total") == 3
