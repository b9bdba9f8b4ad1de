"""Embeddings by an API: what is sent, what is accepted, and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from knapcache.errors import InvalidInput, UpstreamFailed
from knapcache.features.semantic import tier as tier_module
from knapcache.features.semantic.embeddings_endpoint import MAX_BATCH, EndpointEmbedder
from knapcache.features.semantic.feature import check_embedder, open_embedder
from knapcache.features.semantic.tier import SemanticTier
from knapcache.proxy.settings import Settings
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide, plain


class EmbeddingsApi(RecordingUpstream):
    """An API that answers with vectors made from the texts, or with what a test gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: tuple[int, bytes] | None = None
        self.close_after_answer = False
        self.always(self._embed)

    def _embed(self, side: UpstreamSide, request: RecordedRequest) -> None:
        data = [{"index": k, "embedding": vector_of(text)} for k, text in enumerate(request.json()["input"])]
        status, content = self.answer or (200, json.dumps({"data": data[::-1]}).encode())
        side.send(plain(content, status=f"{status} Status"))
        side.open = not self.close_after_answer


def vector_of(text: str) -> list[float]:
    return [float(len(text)), 3.0, -4.0]


@pytest.fixture
def api() -> Iterator[EmbeddingsApi]:
    with EmbeddingsApi() as api:
        yield api


@pytest.fixture
def embedder(api: EmbeddingsApi) -> Iterator[EndpointEmbedder]:
    embedder = EndpointEmbedder(f"{api.openai_url}/", "model-1", "sk-key")
    yield embedder
    embedder.close()


def test_texts_become_vectors_of_length_one_in_their_order(api: EmbeddingsApi, embedder: EndpointEmbedder) -> None:
    assert embedder.dimensions == 3
    texts = ["a" * (k + 1) for k in range(MAX_BATCH + 3)]
    vectors = embedder.embed([*texts, "", "\ud800"])
    expected = np.array([vector_of(text) for text in [*texts, " ", "?"]])
    np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)
    assert vectors.dtype == np.float32
    assert embedder.embed([]).shape == (0, 3)
    assert set(api.targets) == {"POST /v1/embeddings"}
    assert api.requests[1].values("authorization") == ["Bearer sk-key"]
    assert api.requests[1].json()["model"] == "model-1"
    assert [len(request.json()["input"]) for request in api.requests] == [1, MAX_BATCH, 5]
    assert api.accepted == 1
    assert embedder.build == f"model-1 of {api.openai_url}"


def test_a_connection_that_the_api_has_closed_is_replaced(api: EmbeddingsApi, embedder: EndpointEmbedder) -> None:
    api.close_after_answer = True
    for _ in range(3):
        assert embedder.embed(["text"]).shape == (1, 3)
    assert api.accepted == 3


def test_an_error_that_may_quote_a_question_is_not_repeated_and_a_refused_text_causes_no_pause(
    api: EmbeddingsApi, embedder: EndpointEmbedder
) -> None:
    api.answer = 401, b'{"error": {"message": "Incorrect API key"}}'
    with pytest.raises(UpstreamFailed, match="status 401: Incorrect API key"):
        assert embedder.dimensions, "no text of a request was sent yet"
    api.answer = None
    embedder = EndpointEmbedder(api.openai_url, "model-1")
    assert embedder.dimensions == 3
    for status, kind in ((400, InvalidInput), (500, UpstreamFailed)):
        api.answer = status, b'{"error": {"message": "cannot embed: my prompt"}}'
        with pytest.raises(kind, match=rf"status {status}$"):
            embedder.embed(["my prompt"])  # at once: a refused text does not stop others
    embedder.close()


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (500, b"<html>", "status 500"),
        (200, b"not JSON", "without embeddings of 1 texts"),
        (200, b'{"data": []}', "without embeddings|shape"),
        (200, b'{"data": [{"index": 7, "embedding": [1]}]}', "without embeddings of 1 texts"),
        (200, b'{"data": [{"index": 0, "embedding": []}]}', "shape"),
        (200, b'{"data": [{"index": 0, "embedding": ["a"]}]}', "without embeddings"),
        (200, b'{"data": [{"index": 0, "embedding": [0, 0, 0]}]}', "without a direction"),
        (200, b'{"data": [{"index": 0, "embedding": [1, 2]}]}', "2 components; before it was 3"),
    ],
)
def test_other_answers_are_failures(
    api: EmbeddingsApi, embedder: EndpointEmbedder, status: int, content: bytes, message: str
) -> None:
    assert embedder.dimensions == 3
    api.answer = status, content
    with pytest.raises(UpstreamFailed, match=message):
        embedder.embed(["text"])


def test_after_a_failure_calls_fail_at_once_until_a_pause_is_over(api: EmbeddingsApi) -> None:
    now = 1000.0
    embedder = EndpointEmbedder(api.openai_url, "model-1", clock=lambda: now)
    api.answer = 503, b""
    for pause in (2.0, 4.0):
        with pytest.raises(UpstreamFailed, match=r"status 503$"):
            embedder.embed(["text"])
        sent = len(api.requests)
        now += pause - 0.1
        with pytest.raises(UpstreamFailed, match=r"status 503 \(not tried again yet\)"):
            embedder.embed(["text"])
        assert len(api.requests) == sent
        now += 0.2
    api.answer = None
    assert embedder.embed(["text"]).shape == (1, 3)
    embedder.close()


def test_an_api_that_is_not_there_is_a_failure() -> None:
    embedder = EndpointEmbedder("http://127.0.0.1:9", "model-1")
    with pytest.raises(UpstreamFailed, match="semantic_embeddings"):
        assert embedder.dimensions
    embedder.close()
    embedder.close()


def test_tokens_are_estimated_by_words() -> None:
    embedder = EndpointEmbedder("http://127.0.0.1:9", "model-1")
    assert embedder.tokens("What is the capital of France?") == 7
    assert embedder.tokens("x" * 80) == 10
    assert embedder.tokens("") == 0
    embedder.close()


def test_the_settings_open_an_embedder(api: EmbeddingsApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDINGS_KEY", "sk-from-environment")
    settings = Settings(
        semantic_embeddings=api.openai_url,
        semantic_embeddings_model="model-1",
        semantic_embeddings_key_env="EMBEDDINGS_KEY",
    )
    check_embedder(settings)
    embedder = open_embedder(settings)
    assert (embedder.dimensions, embedder.build) == (3, f"model-1 of {api.openai_url}")
    assert api.requests[0].values("authorization") == ["Bearer sk-from-environment"]
    assert isinstance(embedder, EndpointEmbedder)
    embedder.close()
    with pytest.raises(InvalidInput, match="needs semantic_embeddings_model"):
        check_embedder(Settings(semantic_embeddings=api.openai_url))
    with pytest.raises(InvalidInput, match="name of an environment variable") as refused:
        check_embedder(settings.model_copy(update={"semantic_embeddings_key_env": "sk-a-key-by-mistake"}))
    assert "mistake" not in str(refused.value)


async def test_an_api_that_does_not_answer_at_the_start_is_tried_again(
    api: EmbeddingsApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tier_module, "RETRY_SECONDS", 0.01)
    settings = Settings(semantic="shadow", semantic_embeddings=api.openai_url, semantic_embeddings_model="model-1")
    api.answer = 503, b""
    opened = asyncio.Event()
    loop = asyncio.get_running_loop()

    def open_matcher(_: object) -> Any:
        if len(api.requests) == 3:
            api.answer = None
        embedder = open_embedder(settings)
        assert isinstance(embedder, EndpointEmbedder)
        embedder.close()
        loop.call_soon_threadsafe(opened.set)
        raise InvalidInput("enough for this test")

    tier = SemanticTier(settings, open_matcher)
    running = asyncio.create_task(tier.run())
    await asyncio.wait_for(opened.wait(), 30)
    await running
    await tier.close()
    assert len(api.requests) == 4
    assert caplog.text.count("not started yet: semantic_embeddings answered with status 503") == 1


async def test_a_change_of_the_upstreams_while_the_log_is_not_open_restarts_the_certificates() -> None:
    def settings(url: str) -> Settings:
        return Settings(semantic="shadow", upstreams=[{"url": url}])

    matcher = Mock()
    tier = SemanticTier(settings("http://127.0.0.1:9/v1"), lambda _: matcher)
    tier.configure(settings("http://127.0.0.1:9/v1"))
    tier.configure(settings("http://127.0.0.1:8/v1"))
    running = asyncio.create_task(tier.run())
    while not matcher.state.restart.called:
        await asyncio.sleep(0.01)
    running.cancel()
    await tier.close()
    matcher.state.restart.assert_called_once_with([""])
