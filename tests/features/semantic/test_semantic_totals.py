"""Events of the semantic tier: restored from JSON, counted, saved, shown as metrics, and the recent matches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.features.semantic.event import MATCH_KINDS, RecentMatches, SemanticEvent, VerdictEvent
from knapcache.features.semantic.totals import MAX_REASONS, VERDICTS, SemanticTotals, collect_semantic
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.history import History
from knapcache.proxy.events.labels import MAX_LABELS, OTHER
from knapcache.proxy.workers.owner_link import WorkerMessage, decode_message, encode_message
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.support.clock import Clock
from tests.support.events import event, older_document
from tests.support.metric_docs import documented, labels_of

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
    assert (scope.requests, scope.kinds["served"]) == (2 * len(MATCH_KINDS) + 3, 2)
    assert scope.reasons == {"several turns": 1, "number": 1, "busy": 1}
    assert scope.seconds == pytest.approx(0.008 * scope.requests)
    assert (scope.usd_saved, scope.priced) == (1.0, 2), "only served answers save"
    assert found.total().requests == scope.requests + len(MATCH_KINDS)


def test_verdicts_are_counted_by_source() -> None:
    found = SemanticTotals()
    for kind in ("shadow", "audit"):
        for verdict in VERDICTS:
            found.count_note(verdict_event(kind=kind, verdict=verdict, judge_usd=0.25))
    found.count_note(verdict_event(kind="served", verdict="different", rung="feedback"))
    found.count_note(verdict_event(kind="audit", verdict="different", rung="feedback"))
    scope = found.scopes["team-a"]
    judged = {f"{source} {verdict}": 1 for source in ("shadow", "audit") for verdict in VERDICTS}
    assert (scope.labels, scope.judge_usd) == (judged | {"feedback different": 2}, 1.5)


def test_scopes_and_reasons_are_bounded() -> None:
    events = [similar(kind="excluded", reason=f"reason {k}", scope="a") for k in range(MAX_REASONS + 5)]
    found = totals_of(*events, *(similar(scope=f"tenant {k}") for k in range(MAX_LABELS + 5)), similar(scope=""))
    assert len(found.scopes["a"].reasons) == MAX_REASONS + 1
    assert found.scopes["a"].reasons[OTHER] == 5
    assert len(found.scopes) <= MAX_LABELS + 2
    assert found.total().kinds["served"] == MAX_LABELS + 6
    assert SemanticTotals.from_json(json.loads(json.dumps(found.to_json()))) == found


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


def test_matches_and_verdicts_cross_processes() -> None:
    events = [event("similar", semantic=semantic_event(question="é")), event("miss", semantic=semantic_event())]
    notes = [("semantic", verdict_event()), ("semantic", verdict_event(verdict="different", judge_usd=0.25))]
    message = WorkerMessage(events, notes, 7)
    assert decode_message(encode_message(message), {"semantic": SemanticEvent}, {"semantic": VerdictEvent}) == message
