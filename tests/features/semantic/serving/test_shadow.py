"""Shadow: labels are collected and nothing is served by similarity. The judge model decides where texts cannot."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.features.semantic.serving.conftest import StartTier
from tests.support.meanings import TASKS, WORDINGS, MeaningUpstream, SemanticClient, task_of
from tests.support.timing import wait_until

JUDGE = "judge-model"


def test_shadow_serves_nothing_and_collects_labels(start_tier: StartTier, upstream: MeaningUpstream) -> None:
    client = start_tier(semantic="shadow", semantic_error=0.2).client
    client.wait_ready()
    before = upstream.count()
    questions = [wording.format(task) for wording, task in itertools.product(WORDINGS[:4], TASKS)]
    asked = [client.ask(question, stream=k % 2 == 1) for k, question in enumerate(questions)]
    assert {one.outcome for one in asked} == {"miss"}
    assert all(one.right for one in asked)
    assert not any("x-knapcache-similarity" in one.headers or "x-knapcache-match" in one.headers for one in asked)
    assert upstream.count() - before == len(questions)
    wait_until(lambda: client.labels() >= 34)
    scope = client.scope()
    assert scope["mode"] == "shadow"
    assert any(level["certified"] for level in scope["levels"]), "the labels would be enough"
    assert client.ask(WORDINGS[5].format(TASKS[0])).outcome == "miss"
    labels = client.status()["all"]["labels"]
    assert labels.keys() <= {"shadow same", "shadow different", "shadow undecided"}
    assert labels["shadow same"] >= 34
    assert client.ask(questions[0]).outcome == "hit"


def test_a_judge_model_labels_answers_in_changing_words_and_its_cost_is_shown(
    start_tier: StartTier, upstream: MeaningUpstream
) -> None:
    def answer(body: dict[str, Any]) -> str:
        if body["model"] == JUDGE:
            data = json.loads(body["messages"][-1]["content"])
            return "SAME" if task_of(data["question_1"]) == task_of(data["question_2"]) else "DIFFERENT"
        text = body["messages"][-1]["content"]
        return f"Of all guides on this subject, {text!r} asks for: {task_of(text)}. Read it with care."

    tier = start_tier(semantic="shadow", semantic_judge=JUDGE)
    client = tier.client
    client.wait_ready()
    upstream.answer = answer
    try:
        for wording, task in itertools.product(WORDINGS[:3], TASKS[:12]):
            client.ask(wording.format(task))
        wait_until(lambda: client.labels() >= 12)
    finally:
        upstream.answer = upstream.answer_by_meaning
    calls = [call for call in upstream.calls if call.body["model"] == JUDGE]
    assert len(calls) >= 12
    matches = [match for match in client.status()["matches"] if match["verdict"]]
    assert matches
    assert {match["rung"] for match in matches} == {"model"}
    assert {match["verdict"] for match in matches} == {"same"}
    assert client.status()["all"]["judge_usd"] > 0
    wait_until(lambda: any(row["name"] == JUDGE for row in summary_models(client)))
    (spent,) = (row for row in summary_models(client) if row["name"] == JUDGE)
    assert spent["usd_spent"] > 0
    assert spent["requests"] == 0, "a judgement is no request"
    assert tier.proxy.proxy.cache.entries(model=JUDGE)["total"] == 0


def summary_models(client: SemanticClient) -> list[dict[str, Any]]:
    """Return the usage of each model, from the summary of the admin API."""
    response = client.admin.get("/admin/v1/summary")
    response.raise_for_status()
    return list(response.json()["models"])
