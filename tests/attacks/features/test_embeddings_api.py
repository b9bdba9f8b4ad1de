"""Attacks of an embedding API on the semantic tier: replies that are no vectors, or long ones.

tests/features/semantic/serving/test_embeddings_endpoint.py has the replies that a faulty API may send as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from knapcache.errors import UpstreamFailed
from knapcache.features.semantic.embeddings_endpoint import EndpointEmbedder
from tests.features.semantic.serving.test_embeddings_endpoint import EmbeddingsApi, api

__all__ = ["api"]
VECTOR = b"[1.0, 2.0, 3.0]"
REPLIES = {
    "NaN": b'{"data": [{"index": 0, "embedding": [NaN, 1, 1]}]}',
    "infinity": b'{"data": [{"index": 0, "embedding": [1e39, 1, 1]}]}',
    "nested": b'{"data": [{"index": 0, "embedding": [[1, 2, 3]]}]}',
    "an index that is a text": b'{"data": [{"index": "0", "embedding": %s}]}' % VECTOR,
    "a list": b"[]",
    "a number": b'{"data": 1}',
    "texts": b'{"data": "abc"}',
    "deep": b'{"data": ' + b"[" * 20_000,
}


@pytest.fixture
def embedder(api: EmbeddingsApi) -> Iterator[EndpointEmbedder]:
    times = itertools.count(0.0, 1000.0)  # every pause after a failure is over
    embedder = EndpointEmbedder(api.openai_url, "m", clock=lambda: next(times))
    assert embedder.dimensions == 3
    yield embedder
    embedder.close()


@pytest.mark.parametrize("name", REPLIES)
def test_what_is_no_vector_is_a_failure(name: str, api: EmbeddingsApi, embedder: EndpointEmbedder) -> None:
    api.answer = 200, REPLIES[name]
    with np.errstate(all="ignore"), pytest.raises(UpstreamFailed):
        embedder.embed(["text"])
    api.answer = None
    assert embedder.embed(["text"]).shape == (1, 3)


def test_a_long_reply_is_not_parsed(api: EmbeddingsApi, embedder: EndpointEmbedder) -> None:
    """Parsing holds the interpreter's lock: 30 MB of numbers would stop the event loop for a second."""
    numbers = b"1," * (15 << 20)
    api.answer = 200, b'{"data": [{"index": 0, "embedding": %s}], "x": [%s1]}' % (VECTOR, numbers)
    with pytest.raises(UpstreamFailed, match=r"with [0-9]+ bytes"):
        embedder.embed(["text"])
    api.answer = None
    assert embedder.embed(["text"]).shape == (1, 3)
