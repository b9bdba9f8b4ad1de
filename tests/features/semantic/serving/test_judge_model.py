"""The judge model labels matches where the texts of the answers do not decide."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.features.semantic.serving.conftest import StartTier
from tests.support.meanings import TASKS, WORDINGS, MeaningUpstream, SemanticClient, task_of
from tests.support.timing import wait_until

JUDGE = "judge-model"


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
        matches = [match for match in client.status()["matches"] if match["verdict"]]
    finally:
        upstream.answer = upstream.answer_by_meaning  # a judge that still waits does not understand this one
    calls = [call for call in upstream.calls if call.body["model"] == JUDGE]
    assert len(calls) >= 12
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
