"""Faults of the tier's parts: every request is still answered, and nothing wrong is served."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import httpx
import pytest

from knapcache.features.semantic import feature as feature_module
from knapcache.features.semantic import tier as tier_module
from knapcache.features.semantic.embedding import Embedder
from knapcache.features.semantic.learner import SemanticLearner
from knapcache.proxy.settings import Settings
from tests.features.semantic.serving.conftest import StartTier, TierProxy
from tests.support.meanings import TASKS, WORDINGS, Asked, MeaningUpstream, SemanticClient, spare_questions
from tests.support.timing import wait_until

FRESH = spare_questions()


def ask_all(client: SemanticClient, questions: list[str]) -> list[Asked]:
    asked = [client.ask(question) for question in questions]
    assert all(one.right for one in asked)
    return asked


def test_an_embedding_endpoint_that_does_not_answer_costs_no_request(start_tier: StartTier) -> None:
    client = start_tier(
        semantic_embeddings="http://127.0.0.1:9/v1", semantic_embeddings_model="text-embedding-3-small"
    ).client
    questions = [wording.format(TASKS[0]) for wording in WORDINGS[:4]]
    assert {one.outcome for one in ask_all(client, questions)} == {"miss"}
    assert {one.outcome for one in ask_all(client, questions)} == {"hit"}


def test_a_log_that_cannot_be_opened_costs_no_request(start_tier: StartTier, tmp_path: Path) -> None:
    (tmp_path / "data" / "semantic.sqlite").mkdir(parents=True)
    tier = start_tier(path=tmp_path / "data")
    client = tier.client
    questions = [wording.format(TASKS[1]) for wording in WORDINGS[:4]]
    assert {one.outcome for one in ask_all(client, questions)} == {"miss"}
    wait_until(lambda: client.status()["problem"] not in ("", "starting"))
    assert httpx.get(f"{tier.proxy.url}/readyz").status_code == 200, "a tier that cannot start does not delay the proxy"


def has_labels(client: SemanticClient, count: int) -> bool:
    return client.labels() == count


@pytest.fixture(scope="module")
def tier(start_tier: StartTier) -> TierProxy:
    found = start_tier(semantic_error=0.2)
    client = found.client
    client.certify()
    labels, served = client.labels(), 0
    while served < 4:  # until labels allow what this wording changes
        if client.ask(next(FRESH)).outcome == "similar":
            served += 1
        else:
            labels, served = labels + 1, 0
            wait_until(partial(has_labels, client, labels))
    return found


@pytest.mark.parametrize("fault", ["500", "reset"])
def test_a_failed_audit_is_answered_by_the_certified_answer(
    tier: TierProxy, upstream: MeaningUpstream, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(SemanticLearner, "is_audit", lambda *_: False)
    question, labels = next(FRESH), tier.client.labels()
    while tier.client.ask(question).outcome != "similar":  # a label of it is missing
        labels += 1
        wait_until(partial(has_labels, tier.client, labels))
        question = next(FRESH)
    monkeypatch.setattr(SemanticLearner, "is_audit", lambda *_: True)
    upstream.fail(*[fault] * 3)
    try:
        asked = tier.client.ask(question)
    finally:
        upstream._faults.clear()
    assert (asked.outcome, asked.right) == ("similar", True)
    assert tier.client.labels() == labels, "no answer came, so there is no label"


def test_the_proxy_is_ready_when_the_labels_are_loaded(start_tier: StartTier, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, open_embedder = threading.Event(), feature_module.open_embedder

    def slow(settings: Settings) -> Embedder:
        assert loading.wait(60)
        return open_embedder(settings)

    monkeypatch.setattr(feature_module, "open_embedder", slow)
    try:
        proxy = start_tier().proxy
        answer = httpx.get(f"{proxy.url}/readyz")
        assert (answer.status_code, answer.text) == (
            503,
            "not ready: the semantic tier is loading its model and labels\n",
        )
        assert httpx.get(f"{proxy.url}/healthz").status_code == 200
        with monkeypatch.context() as patch:  # it does not wait longer than that
            patch.setattr(tier_module, "READY_SECONDS", 0.0)
            assert httpx.get(f"{proxy.url}/readyz").status_code == 200
    finally:
        loading.set()
    wait_until(lambda: httpx.get(f"{proxy.url}/readyz").status_code == 200)
