"""The Grafana dashboard and the alert rules use metrics and labels that a running proxy has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from knapcache.features.limits.feature import collect_limits
from knapcache.features.prefix.totals import PrefixTotals, collect_prefix
from knapcache.features.semantic.totals import SemanticTotals, collect_semantic
from knapcache.proxy.events.events import UpstreamTry
from knapcache.proxy.events.metrics import Metrics
from knapcache.testing import FakeUpstream
from tests.features.limits.test_limit_metrics import USE
from tests.features.prefix.prefix_events import prefix_event
from tests.features.semantic.semantic_events import semantic_event
from tests.support.events import event
from tests.support.programs import find_program, run_program
from tests.support.running_proxy import RunningProxy

pytestmark = pytest.mark.tools

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "knapcache.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))[
    "groups"
][0]["rules"]
PROMETHEUS_LABELS = {"instance", "job", "le"}
METRIC = re.compile(r"\b(?:knapcache|process)_\w+")
PROMTOOL = "Debian's package prometheus"

Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """Names of the samples of a running proxy after a miss, a hit and a failed call, with their labels."""
    question = {"model": "gpt-4o", "messages": [{"role": "user", "content": "What is a knapsack?"}]}
    with FakeUpstream() as upstream:
        upstream.fail("500", "500")
        folder = tmp_path_factory.mktemp("proxy") / "data"
        settings = {"policy": "lru", "otlp_endpoint": upstream.url}  # with traces: one metric counts lost spans
        with RunningProxy(folder, upstream.openai_url, **settings) as proxy, httpx.Client(trust_env=False) as client:
            for _ in range(3):
                client.post(
                    f"{proxy.openai_url}/chat/completions", json=question, headers={"authorization": "Bearer k"}
                )
            text = client.get(f"{proxy.url}/metrics").text
    found: Labels = {}
    prefix, semantic = PrefixTotals(), SemanticTotals()
    prefix.count(event("miss", prefix=prefix_event()))
    semantic.count(event("miss", semantic=semantic_event()))
    families = [
        *collect_prefix(prefix),
        *collect_semantic(semantic, [{"scope": "", "mode": "on", "bound": 0.01, "alarms": 0}]),
        *collect_limits({("team", "usd_per_day"): 1}, [USE]),
    ]
    tiers = Metrics(dict, features=lambda: families)
    tiers.consume([event("miss", upstream="b", tried=(UpstreamTry("a", (500,), "", 0.0),))])
    for family in [*text_string_to_metric_families(text), *text_string_to_metric_families(tiers.render().decode())]:
        name = family.name + "_total" if family.type == "counter" else family.name
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every query of the dashboard and the rules, with its panel or alert."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def test_every_metric_and_label_in_the_dashboard_and_the_alerts_exists(metrics: Labels) -> None:
    seen = set()
    for where, expression in expressions():
        names = set(METRIC.findall(expression))
        assert names or 'up{job="knapcache"}' in expression, f"{where}: no metric in {expression}"
        assert names <= metrics.keys(), f"{where}: no such metric: {sorted(names - metrics.keys())}"
        allowed = PROMETHEUS_LABELS.union(*(metrics[name] for name in names))
        labels = {
            label
            for matchers in re.findall(r"\{([^}]*)\}", expression)
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        } | {label for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in listed.split(", ")}
        assert labels <= allowed, f"{where}: no such label: {sorted(labels - allowed)}"
        seen |= names
    assert len(seen) > 15


def test_outcomes_and_codes_in_the_queries_exist() -> None:
    from knapcache.proxy.events.events import OUTCOMES
    from knapcache.proxy.events.metrics import CODES, NO_RESPONSE

    for where, expression in expressions():
        for label, values in re.findall(r'\b(outcome|code)[=!]~?"([^"]*)"', expression):
            known = set(OUTCOMES) if label == "outcome" else {*CODES.values(), NO_RESPONSE}
            assert set(values.split("|")) <= known, f"{where}: {label} is never one of {values}"


def test_every_metric_of_the_proxy_is_on_the_dashboard_or_left_out_on_purpose(metrics: Labels) -> None:
    shown = {name for _, expression in expressions() for name in METRIC.findall(expression)}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in shown} | {"knapcache_build_info"}
    left_out = {"knapcache_oracle_calls_total", "knapcache_oracle_seconds_total"}
    left_out |= {"knapcache_loop_stall_max_seconds", "knapcache_usd_estimated_total"}
    families = {re.sub("_(bucket|sum|count|created)$", "", name) for name in metrics if name.startswith("knapcache_")}
    assert families - shown == left_out


def test_panels_have_titles_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        area = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & area, f"{panel['title']} overlaps another panel"
        cells |= area
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


def test_alerts_say_what_is_wrong_and_how_bad_it_is() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_deployment_guide_lists_the_alerts() -> None:
    page = (DEPLOY.parent / "docs" / "guides" / "deployment.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(Knapcache\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert listed == {rule["alert"]: rule["labels"]["severity"] for rule in RULES}


def test_prometheus_accepts_rules_queries_and_configuration(tmp_path: Path) -> None:
    promtool = find_program("promtool", PROMTOOL)
    run_program(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    recorded = [
        {"record": f"panel:{k}", "expr": re.sub(r"\$__\w+", "5m", expression).replace("$instance", ".*")}
        for k, (_, expression) in enumerate(expressions())
    ]
    queries = tmp_path / "queries.yml"
    queries.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}), encoding="utf-8")
    run_program(promtool, "check", "rules", queries)


FAULTS: dict[str, dict[str, str]] = {
    "KnapcacheDown": {'up{job="knapcache", %s}': "1x490 0x10"},
    "KnapcacheRestarts": {'process_start_time_seconds{job="knapcache", %s}': "100x485 200x5 300x5 400x100"},
    "KnapcacheUpstreamFails": {
        'knapcache_calls_total{%s, upstream="u", code="2xx"}': "0+1x500",
        'knapcache_calls_total{%s, upstream="u", code="none"}': "0+3x500",
    },
    "KnapcacheRequestsFail": {
        'knapcache_requests_total{%s, outcome="hit"}': "0+10x500",
        'knapcache_requests_total{%s, outcome="failed"}': "0+1x500",
    },
    "KnapcacheStoreNotUsed": {"knapcache_breaker_open{%s}": "1x500"},
    "KnapcacheEngineAway": {"knapcache_engine_nodes_away{%s}": "1x500"},
    "KnapcacheSavesNothing": {'knapcache_requests_total{%s, outcome="miss"}': "0+10x500"},
    "KnapcacheSpendLimitNearlyUsed": {'knapcache_limit_used_ratio{%s, tenant="a", limit="usd_per_day"}': "0.9x500"},
    "KnapcacheSemanticErrors": {'knapcache_semantic_alarms_total{%s, scope="a"}': "0x490 1x10"},
    "KnapcacheEventLoopStalls": {
        'knapcache_loop_stall_seconds_bucket{%s, clock="wall", le="0.25"}': "0+1x500",
        'knapcache_loop_stall_seconds_bucket{%s, clock="wall", le="1"}': "0+9x500",
        'knapcache_loop_stall_seconds_bucket{%s, clock="wall", le="+Inf"}': "0+9x500",
    },
    "KnapcacheEventsDropped": {"knapcache_events_dropped_total{%s}": "0x490 1x10"},
    "KnapcacheFewFilesLeft": {
        'process_open_fds{job="knapcache", %s}': "900x500",
        'process_max_fds{job="knapcache", %s}': "1000x500",
    },
}
"""For each alert, series of an instance with its name, one value a minute. It fires at minute 500."""
HEALTHY = {
    'up{job="knapcache", %s}': "1x500",
    'process_start_time_seconds{job="knapcache", %s}': "100x300 200x200",
    'knapcache_calls_total{%s, upstream="u", code="2xx"}': "0+10x500",
    'knapcache_calls_total{%s, upstream="u", code="5xx"}': "0+1x500",
    'knapcache_requests_total{%s, outcome="miss"}': "0+10x500",
    'knapcache_requests_total{%s, outcome="hit"}': "0+1x500",
    "knapcache_breaker_open{%s}": "0x500",
    "knapcache_engine_nodes_away{%s}": "0x500",
    'knapcache_semantic_alarms_total{%s, scope="a"}': "1x500",
    'knapcache_loop_stall_seconds_bucket{%s, clock="wall", le="0.25"}': "0+9x500",
    'knapcache_loop_stall_seconds_bucket{%s, clock="wall", le="+Inf"}': "0+9x500",
    'knapcache_limit_used_ratio{%s, tenant="a", limit="usd_per_day"}': "0.5x500",
    'knapcache_limit_used_ratio{%s, tenant="a", limit="concurrent"}': "1x500",
    "knapcache_events_dropped_total{%s}": "0x500",
    'process_open_fds{job="knapcache", %s}': "100x500",
    'process_max_fds{job="knapcache", %s}': "1000x500",
}
"""Series of an instance for which no alert fires."""


def alert_tests() -> dict[str, Any]:
    """Input of `promtool test rules`: each alert fires for its fault, and for no other instance."""
    instances = {**FAULTS, "healthy": HEALTHY}
    series = [
        {"series": name % f'instance="{instance}"', "values": values}
        for instance, found in instances.items()
        for name, values in found.items()
    ]
    tests = []
    for rule in RULES:
        labels = {"severity": rule["labels"]["severity"], "instance": rule["alert"]}
        labels |= {"job": "knapcache"} if 'job="knapcache"' in rule["expr"] else {}
        labels |= {"upstream": "u"} if "upstream" in rule["expr"] else {}
        labels |= {"tenant": "a", "limit": "usd_per_day"} if "tenant" in rule["expr"] else {}
        tests.append({"eval_time": "500m", "alertname": rule["alert"], "exp_alerts": [{"exp_labels": labels}]})
    cases = [{"interval": "1m", "input_series": series, "alert_rule_test": tests}]
    return {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": cases}


def test_each_alert_fires_for_its_fault_and_for_no_healthy_proxy(tmp_path: Path) -> None:
    promtool = find_program("promtool", PROMTOOL)
    assert FAULTS.keys() == {rule["alert"] for rule in RULES}
    # Without annotations: promtool would compare their texts too.
    rules = [{name: value for name, value in rule.items() if name != "annotations"} for rule in RULES]
    for name, content in (
        ("alerts.yml", {"groups": [{"name": "knapcache", "rules": rules}]}),
        ("test.yml", alert_tests()),
    ):
        (tmp_path / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    run_program(promtool, "test", "rules", tmp_path / "test.yml")
