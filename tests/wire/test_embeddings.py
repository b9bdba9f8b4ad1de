"""Splitting and joining embeddings keeps vectors, order and tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import Incomplete
from knapcache.wire import embeddings
from knapcache.wire.base import MAX_NAME


def answer(n: int, tokens: int = 7) -> dict[str, Any]:
    data = [{"object": "embedding", "index": i, "embedding": [i + 0.5, -0.1]} for i in range(n)]
    return {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


@given(st.lists(st.text(max_size=20), min_size=1, max_size=8), st.integers(0, 1000), st.randoms())
def test_splitting_and_joining_returns_the_same_answer(inputs: list[str], tokens: int, random: Any) -> None:
    original = answer(len(inputs), tokens)
    shuffled = {**original, "data": random.sample(original["data"], len(inputs))}
    parts = embeddings.split(shuffled, inputs)
    assert json.loads(embeddings.join([part.body for part in parts])) == original
    assert sum(shares := [dict(part.usage or {})["prompt_tokens"] for part in parts]) == tokens
    assert min(shares) >= 0


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_shares_add_up_and_are_proportional(total: int, weights: list[int]) -> None:
    shares = embeddings.share(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) <= 1


@pytest.mark.parametrize(
    ("value", "items"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ([], [])],
)
def test_the_items_of_input(value: Any, items: list[Any]) -> None:
    assert embeddings.inputs(value) == items


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [{"embedding": [1.0], "index": 0}],
        [{"embedding": [1.0], "index": 0}, {"embedding": [1.0], "index": 0}],
        [{"embedding": [1.0], "index": 0}, {"embedding": [], "index": 1}],
        [{"embedding": [1.0], "index": 0}, {"embedding": 3, "index": 1}],
        [{"embedding": [1.0], "index": 0}, "vector"],
        [{"embedding": [1.0], "index": 0}, {"embedding": [1.0], "index": []}],
        [{"embedding": [1.0], "index": 1}, {"embedding": [1.0], "index": 2}],
    ],
)
def test_incomplete_answers_are_refused(data: Any) -> None:
    with pytest.raises(Incomplete):
        embeddings.split({**answer(2), "data": data}, ["a", "b"])


def test_the_name_of_a_model_is_kept_unless_it_is_too_long() -> None:
    for length, kept in ((MAX_NAME, True), (MAX_NAME + 1, False)):
        name = "e" * length
        (part,) = embeddings.split(answer(1) | {"model": name}, ["a"])
        assert part.model == (name if kept else "")
        assert json.loads(part.body)["model"] == (name if kept else None)
