"""The semantic tier in the admin API: state, recent matches, feedback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from knapcache.features.semantic import tier as tier_module
from knapcache.features.semantic.admin import differing_words
from knapcache.features.semantic.certificate import LEVELS
from knapcache.features.semantic.differences import FEATURES
from knapcache.proxy.admin.openapi import ROOT
from knapcache.proxy.events.events import Event
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.support.admin_context import AdminHarness
from tests.support.events import event
from tests.support.semantic_control import LearnerControl, learner_feature

PATH, FEEDBACK = f"{ROOT}/semantic", f"{ROOT}/semantic/feedback"
READER = "token-of-a-reader-in-tests"


@pytest.fixture
def tier() -> LearnerControl:
    return LearnerControl("team-a", "team-b")


@pytest.fixture
def harness(tier: LearnerControl, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminHarness]:
    monkeypatch.setenv("READER_TOKEN", READER)
    tokens = [{"name": "reader", "role": "read-only", "token_env": "READER_TOKEN"}]
    semantic: dict[str, Any] = {"semantic": "on", "semantic_judge": "gpt-4o-mini"}
    made = AdminHarness(features=[learner_feature(tier)], show_content=True, admin_tokens=tokens, **semantic)
    yield made
    made.close()


@pytest.fixture
def client(harness: AdminHarness) -> Iterator[TestClient]:
    with harness.client() as found:
        yield found


def similar(number: int, **fields: object) -> Event:
    kind = str(fields.get("kind", "served"))
    known = {"match_id": f"m-{number}", "question": "How do I reset my <b>pin</b>?",
             "matched_question": "How can I reset my password?", "features": (0.5,) * len(FEATURES)}  # fmt: skip
    return event("similar" if kind == "served" else "miss", semantic=semantic_event(**known | fields))


def mark(client: TestClient, number: int) -> tuple[int, str]:
    found = client.post(FEEDBACK, json={"match": f"m-{number}", "verdict": "different"})
    return found.status_code, "" if found.status_code == 200 else found.json()["error"]["message"]


def test_the_state_has_certificates_and_sums_of_each_scope(
    harness: AdminHarness, client: TestClient, tier: LearnerControl
) -> None:
    tier.add_labels(700, scope="team-a")
    tier.add_labels(40, scope="team-b", risk=0.05, wrong=2)
    for one in (similar(1), similar(2, kind="audit"), similar(3, kind="excluded", match_id="", reason="image")):
        harness.events.append(one)
    harness.events.append_note("semantic", verdict_event(match_id="m-2", kind="audit", verdict="same", judge_usd=0.25))
    found = client.get(PATH).json()
    assert (found["mode"], found["error"], found["running"], found["problem"]) == ("on", 0.01, True, "")
    assert (found["embedding"], found["questions"], found["judge"]) == ("minilm-test", 1234, "gpt-4o-mini")
    first, second = found["scopes"]
    assert (first["scope"], first["state"], first["level"]) == ("team-a", "serving", 0)
    assert first["bound"] <= 0.01
    assert [level["threshold"] for level in first["levels"]] == list(LEVELS)
    assert {(level["labels"], level["wrong"], level["certified"]) for level in first["levels"]} == {(700, 0, True)}
    assert [level["serves"] for level in first["levels"]] == [True, False, False, False, False], (
        "no labels of their own"
    )
    assert (second["state"], second["bound"]) == ("shadow", None)
    assert [(level["labels"], level["wrong"]) for level in second["levels"]][2:] == [(0, 0), (40, 2), (40, 2)]
    tier.served_mode = "shadow"
    observed = client.get(PATH).json()["scopes"][0]
    assert (observed["mode"], observed["state"], observed["bound"]) == ("shadow", "shadow", first["bound"])
    assert [other["error"] for other in first["others"]] == [0.005, 0.01, 0.02, 0.05, 0.1]
    assert [other["certified"] for other in first["others"]] == [False, True, True, True, True]
    sums = first["all"]
    assert [sums[kind] for kind in ("requests", "served", "audit", "excluded")] == [3, 1, 1, 1]
    assert (sums["labels"], sums["reasons"], sums["judge_usd"]) == ({"audit same": 1}, {"image": 1}, 0.25)
    assert found["all"] == sums == found["today"]
    assert second["all"]["requests"] == 0
    assert client.get(f"{ROOT}/summary").json()["semantic"] is True


def test_recent_matches_have_their_questions_and_the_words_that_differ(
    harness: AdminHarness, client: TestClient
) -> None:
    for k in range(3):
        harness.events.append(similar(k, scope=f"team-{'ab'[k % 2]}"))
    rows = client.get(PATH).json()["matches"]
    assert [row["id"] for row in rows] == ["m-2", "m-1", "m-0"]
    row = rows[0]
    assert [row["question"][start:end] for start, end in row["marks"]] == ["do", "<b>pin</b>?"]
    assert [row["matched_question"][start:end] for start, end in row["matched_marks"]] == ["can", "password?"]
    assert (row["kind"], row["similarity"], row["risk"], row["verdict"]) == ("served", 0.93, 0.003, "")
    assert [one["id"] for one in client.get(PATH, params={"scope": "team-b"}).json()["matches"]] == ["m-1"]
    assert [one["id"] for one in client.get(PATH, params={"limit": 1}).json()["matches"]] == ["m-2"]
    assert client.get(PATH, params={"limit": 0}).status_code == 400


def test_only_operators_see_questions_and_mark_matches(harness: AdminHarness) -> None:
    harness.events.append(similar(1))
    with harness.client(headers={"authorization": f"Bearer {READER}"}) as reader:
        found = reader.get(PATH).json()
        assert found["content"] is False
        assert (found["matches"][0]["question"], found["matches"][0]["marks"]) == (None, [])
        assert mark(reader, 1)[0] == 403
    with harness.client(headers={}) as nobody:
        assert nobody.get(PATH).status_code == 401
    with harness.client() as operator:
        operator.get(PATH)
        operator.get(PATH)
        rows = operator.get(f"{ROOT}/audit").json()["rows"]
        assert [row["action"] for row in rows] == ["semantic", "mark_match"], "one record an hour, and the refused one"


def test_feedback_is_a_wrong_label_of_the_match(
    harness: AdminHarness, client: TestClient, tier: LearnerControl
) -> None:
    harness.events.append(similar(1))
    found = client.post(FEEDBACK, json={"match": "m-1", "verdict": "different"})
    assert (found.status_code, found.json()) == (200, {"match": "m-1", "scope": "team-a", "verdict": "different"})
    assert tier.marked == ["m-1"]
    state = client.get(PATH).json()
    assert (state["matches"][0]["verdict"], state["matches"][0]["rung"]) == ("different", "feedback")
    assert state["scopes"][0]["levels"][0]["wrong"] == 1
    assert state["scopes"][0]["all"]["labels"] == {"feedback different": 1}
    assert mark(client, 1) == (409, "This match has a wrong label already, by feedback.")
    rows = client.get(f"{ROOT}/audit").json()["rows"]
    changes = [(row["status"], row["parameters"]) for row in rows if row["action"] == "mark_match"]
    assert sorted(changes) == [(200, {"match": "m-1", "verdict": "different"}), (409, changes[0][1])]


def test_feedback_that_changes_nothing_says_why(
    harness: AdminHarness, client: TestClient, tier: LearnerControl
) -> None:
    assert mark(client, 9) == (
        404, "No such match: 'm-9'. This proxy knows its last 10,000 matches since it was started."
    )  # fmt: skip
    harness.events.append(similar(1, kind="audit"))
    harness.events.append_note("semantic", verdict_event(match_id="m-1", kind="audit", verdict="undecided"))
    assert mark(client, 1) == (409, "This match has a wrong label already, by the judge (undecided).")
    harness.events.append(similar(2, kind="shadow"))
    harness.events.append_note("semantic", verdict_event(match_id="m-2", verdict="same"))
    tier.failure = "the log cannot be written"
    assert mark(client, 2) == (503, "the log cannot be written")
    tier.failure = ""
    assert mark(client, 2) == (200, ""), "a person may correct the judge"
    for body in ({"match": "m-2"}, {"match": "m-2", "verdict": "same"}, {"match": "", "verdict": "different"}):
        assert client.post(FEEDBACK, json=body).status_code == 400


def test_a_purge_removes_the_questions_of_its_entries(client: TestClient, tier: LearnerControl) -> None:
    assert client.post(f"{ROOT}/purge", json={"all": True, "dry_run": True}).status_code == 200
    assert tier.swept == 0
    assert client.post(f"{ROOT}/purge", json={"all": True}).status_code == 200
    assert tier.swept == 1


def test_an_operator_forgets_the_labels_of_a_scope(client: TestClient, tier: LearnerControl) -> None:
    name = next(iter(tier.learners))
    tier.add_labels(700, scope=name)
    scope, *_ = client.get(PATH).json()["scopes"]
    assert "if its risk is at most" in scope["next_step"]
    assert client.post(f"{PATH}/reset", json={"scope": name}).json() == {"scope": name}
    scope, *_ = client.get(PATH).json()["scopes"]
    assert (scope["level"], scope["labels"]) == (-1, {})
    assert scope["next_step"] == "A match is served after 589 more right labels at least."
    assert client.post(f"{PATH}/reset", json={"scope": "other"}).status_code == 409


def test_a_proxy_without_the_tier_has_none_of_it() -> None:
    harness = AdminHarness()
    with harness.client() as client:
        assert client.get(PATH).status_code == 404
        assert mark(client, 1)[0] == 404
        assert "semantic" not in client.get(f"{ROOT}/summary").json()
    harness.close()


@pytest.mark.parametrize(
    ("one", "other", "here", "there"),
    [
        ("", "", [], []),
        ("Same words.", "same words?", [], []),
        ("a b c", "a c", ["b"], []),
        ("one two", "three", ["one two"], ["three"]),
        ("- x", "x y", ["-"], ["y"]),
    ],
)
def test_words_that_differ_are_marked(one: str, other: str, here: list[str], there: list[str]) -> None:
    marks = differing_words(one, other)
    assert [one[start:end] for start, end in marks[0]] == here
    assert [other[start:end] for start, end in marks[1]] == there


def test_a_tier_that_does_not_answer_delays_nothing(
    client: TestClient, tier: LearnerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get(PATH).json()["problem"] == ""

    async def hang() -> list[dict[str, Any]]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(tier, "_report", hang)
    monkeypatch.setattr(tier_module, "REPORT_SECONDS", 0.05)
    found = client.get(PATH).json()
    assert found["problem"] == "it is too busy to answer"
    assert [scope["scope"] for scope in found["scopes"]] == ["team-a", "team-b"], "as it was last known"
