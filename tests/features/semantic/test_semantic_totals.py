"""Sums of the semantic tier: counted, saved, added over proxies, and shown as metrics. And its recent matches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.features.semantic.event import MATCH_KINDS
from knapcache.features.semantic.metrics import collect_semantic
from knapcache.features.semantic.recent_matches import RecentMatches
from knapcache.features.semantic.totals import MAX_REASONS, SOURCES, VERDICTS, SemanticTotals
from knapcache.proxy.events import history_file
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.history import History
from knapcache.proxy.events.labels import MAX_LABELS, OTHER
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.support.clock import Clock
from tests.support.events import event, older_document
from tests.support.metric_docs import documented, labels_of

DAY = 86_400.0
TOTALS = {"semantic": SemanticTotals}


def similar(**fields: Any) -> Event:
    return event("similar" if fields.get("kind", "served") == "served" else "miss", semantic=semantic_event(**fields))


def totals_of(*events: Event) -> SemanticTotals:
    found = SemanticTotals()
    for one in events:
        found.count(one)
    return found


def test_requests_are_counted_by_scope_and_by_what_the_tier_did() -> None:
    found = totals_of(
        *(similar(kind=kind, scope=scope) for kind in MATCH_KINDS for scope in ("a", "", "a")),
        event("miss"),
        similar(kind="excluded", scope="a", reason="several turns"),
        similar(kind="none", scope="a", reason="number"),
        similar(kind="failed", scope="a", reason="busy"),
    )
    assert found.scopes.keys() == {"a", ""}
    assert found.scopes[""].kinds == dict.fromkeys(MATCH_KINDS, 1)
    scope = found.scopes["a"]
    assert (scope.requests, scope.served) == (2 * len(MATCH_KINDS) + 3, 2)
    assert scope.reasons == {"several turns": 1, "number": 1, "busy": 1}
    assert scope.seconds == pytest.approx(0.008 * scope.requests)
    assert (scope.usd_saved, scope.priced) == (1.0, 2), "only served answers save"
    assert found.total().requests == scope.requests + len(MATCH_KINDS)


def test_every_verdict_but_same_is_wrong() -> None:
    found = SemanticTotals()
    for kind in ("shadow", "audit"):
        for verdict in VERDICTS:
            found.count_note(verdict_event(kind=kind, verdict=verdict, judge_usd=0.25))
    found.count_note(verdict_event(kind="served", verdict="different", rung="feedback"))
    found.count_note(verdict_event(kind="audit", verdict="different", rung="feedback"))
    scope = found.scopes["team-a"]
    assert [(scope.labelled(source), scope.wrong(source)) for source in SOURCES] == [(3, 2), (3, 2), (2, 2)]
    assert (scope.labelled(), scope.wrong(), scope.judge_usd) == (8, 6, 1.5)


def test_scopes_and_reasons_are_bounded() -> None:
    events = [similar(kind="excluded", reason=f"reason {k}", scope="a") for k in range(MAX_REASONS + 5)]
    found = totals_of(*events, *(similar(scope=f"tenant {k}") for k in range(MAX_LABELS + 5)), similar(scope=""))
    assert len(found.scopes["a"].reasons) == MAX_REASONS + 1
    assert found.scopes["a"].reasons[OTHER] == 5
    assert len(found.scopes) <= MAX_LABELS + 2
    assert found.total().served == MAX_LABELS + 6
    assert SemanticTotals.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_sums_survive_a_restart_and_today_ends_with_the_day(tmp_path: Path) -> None:
    clock = Clock(1.8e9)
    history = History(tmp_path, dict, clock, totals=TOTALS)
    history.consume([similar(), similar(kind="shadow")])
    history.consume_notes([("semantic", verdict_event())])
    history.close()
    again = History(tmp_path, dict, clock, totals=TOTALS)
    assert [sums.scopes["team-a"].requests for sums in again.sums("semantic")] == [2, 2]
    clock.now += DAY
    again.consume_notes([("semantic", verdict_event(verdict="different", judge_usd=0.5))])
    today, total = again.sums("semantic")
    assert today.scopes["team-a"].labels == {"shadow different": 1}
    assert total.scopes["team-a"].labels == {"shadow same": 1, "shadow different": 1}
    assert total.scopes["team-a"].judge_usd == 0.5
    assert again.total().similar == 1
    again.check()


def test_a_file_of_version_3_is_still_read(tmp_path: Path) -> None:
    history = History(tmp_path, dict, Clock(1.8e9), totals=TOTALS)
    history.consume([event("miss")])
    history.close()
    path = tmp_path / "history.json"
    path.write_text(json.dumps(older_document(json.loads(path.read_bytes()), 3, "semantic")))
    again = History(tmp_path, dict, Clock(1.8e9), totals=TOTALS)
    assert (again.total().requests, again.total().similar) == (1, 0)
    assert not again.sums("semantic")[1]


GOOD = totals_of(similar()).to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"since": -1.0},
        {"scopes": []},
        {"scopes": {"a": {}}},
        {"scopes": {"a": GOOD["scopes"]["team-a"] | {"kinds": {"other": 1}}}},
        {"scopes": {"a": GOOD["scopes"]["team-a"] | {"labels": {"shadow": 1}}}},
        {"scopes": {"a": GOOD["scopes"]["team-a"] | {"amounts": [1.0, -1.0, 0.0]}}},
        {"scopes": {"a": GOOD["scopes"]["team-a"] | {"priced": 0.5}}},
    ],
)
def test_damaged_sums_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="semantic tier"):
        SemanticTotals.from_json(GOOD | change)


@pytest.mark.parametrize("sums", [None, {}, {"day": -1}, {"day": 1, "total": GOOD}])
def test_a_damaged_history_is_refused(sums: Any) -> None:
    document = json.loads(history_file.pack(history_file.HistoryTable(since=1.0)))
    with pytest.raises(InvalidInput):
        history_file.unpack(json.dumps(document | {"semantic": sums}).encode(), TOTALS)


def test_metrics_have_the_sums_and_the_state_of_each_scope() -> None:
    counted = totals_of(similar(), similar(kind="audit"))
    counted.count_note(verdict_event(kind="audit", verdict="undecided", judge_usd=0.25))
    reports: list[dict[str, Any]] = [
        {"scope": "team-a", "mode": "on", "bound": 0.0083, "alarms": 1},
        {"scope": "team-b", "mode": "shadow", "bound": 0.0083, "alarms": 0},
        {"scope": "team-c", "mode": "on", "failure": "starting"},
    ]
    families = list(collect_semantic(counted, reports))
    assert labels_of(families) == documented("knapcache_semantic_")
    found = {
        (sample.name.removeprefix("knapcache_semantic_"), *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["requests_total", "served", "team-a"] == found["requests_total", "audit", "team-a"] == 1
    assert found["labels_total", "audit", "team-a", "undecided"] == 1
    assert found["seconds_total", "team-a"] == pytest.approx(0.016)
    assert (found["usd_saved_total", "team-a"], found["judge_usd_total", "team-a"]) == (0.5, 0.25)
    assert [found["serving", name] for name in ("team-a", "team-b", "team-c")] == [1, 0, 0]
    assert [found["bound", name] for name in ("team-a", "team-b", "team-c")] == [0.0083, 0.0083, 1.0]
    assert [found["alarms_total", name] for name in ("team-a", "team-b", "team-c")] == [1, 0, 0]


def test_recent_matches_are_bounded_and_get_their_verdicts() -> None:
    matches = RecentMatches(limit=3)
    matches.consume([similar(match_id=f"m-{k}", scope="ab"[k % 2]) for k in range(5)] + [similar(match_id="")])
    assert [one.match.match_id for one in matches.newest(10)] == ["m-4", "m-3", "m-2"]
    assert [one.match.match_id for one in matches.newest(10, "a")] == ["m-4", "m-2"]
    matches.consume_verdicts([verdict_event(match_id=f"m-{k}", verdict="different") for k in (0, 3)])
    assert matches.find("m-0") is None
    found = matches.find("m-3")
    assert found is not None
    assert (found.match.verdict, found.match.rung, found.match.similarity) == ("different", "equal", 0.93)
    matches.check()
