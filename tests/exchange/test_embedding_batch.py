"""Requests with several items: what each item is reported as, and which answers are not read."""

from __future__ import annotations

import json
from typing import Any

import httpx
import orjson
import pytest

from knapcache import Answer, Cache
from knapcache.cache.cache import internal_of
from knapcache.cache.values import Lookup
from knapcache.errors import Incomplete
from knapcache.exchange import embedding_batch
from knapcache.exchange.embedding_batch import ITEMS_AT_ONCE, EmbeddingBatch, read_answer
from knapcache.exchange.exchange import Exchange, exchange_of
from knapcache.exchange.fetcher import Fetcher
from knapcache.keys.parse import SHORT
from knapcache.model import Endpoint
from knapcache.wire import FORMATS
from tests.exchange.conftest import JSON, Provider, ScriptedResponse

VECTOR = b"[" + b"0.5," * 10_000 + b"0.5]"


def exchange(*items: Any, headers: dict[str, str] | None = None) -> Exchange:
    url = httpx.URL("https://api.example/v1/embeddings")
    return exchange_of(Endpoint.EMBEDDINGS, url, headers or {}, json.dumps({"model": "m", "input": items}).encode())


def hit(key: str) -> Lookup:
    return Lookup(key, Answer(b"{}", {}, outcome="hit", key=key, age=1.0, saved_usd=None, model="m"))


def test_a_stored_item_that_occurs_twice_is_a_hit_both_times() -> None:
    per_item = FORMATS[Endpoint.EMBEDDINGS].per_item
    assert per_item is not None
    batch = EmbeddingBatch(exchange("a", "a", "b"), per_item, [hit("1"), hit("1"), hit("2")])
    assert batch.complete
    assert [answer.outcome for answer in batch.answers()] == ["hit", "hit", "hit"]


def test_the_request_for_missing_items_has_no_directives() -> None:
    per_item = FORMATS[Endpoint.EMBEDDINGS].per_item
    assert per_item is not None
    url = httpx.URL("https://api.example/v1/embeddings")
    raw = b'{"model": "m", "input": ["a", "b"], "cache": {"no-store": true}}'
    given = exchange_of(Endpoint.EMBEDDINGS, url, {}, raw)
    batch = EmbeddingBatch(given, per_item, [hit("1"), Lookup("2")])
    assert json.loads(batch.upstream_body()) == {"model": "m", "input": ["b"]}


def test_too_many_bytes_between_two_strings_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'{"data":[{"embedding":%b,"object":"embedding"}]}' % VECTOR
    between = len(VECTOR) + 2  # the colon and the comma around it
    assert len(content) > SHORT
    monkeypatch.setattr(embedding_batch, "MAX_VECTOR", between)
    assert list(read_answer(content)) == ["data"]
    monkeypatch.setattr(embedding_batch, "MAX_VECTOR", between - 1)
    with pytest.raises(Incomplete, match="between two strings"):
        read_answer(content)


def test_a_long_answer_may_have_vectors_as_text() -> None:
    data = [{"embedding": "AAAA" * 10_000}, {"embedding": [0.5] * 10_000}]
    content = json.dumps({"data": data}).encode()
    assert len(content) > SHORT
    assert json.loads(orjson.dumps(read_answer(content))) == {"data": data}


@pytest.mark.parametrize("vector", [b'"' + b"AAA\\u0041" * 2000 + b'"', b'"' + b"A A" * 3000 + b'"'])
def test_a_text_that_is_not_base64_is_parsed(vector: bytes) -> None:
    content = b'{"data":[{"embedding": %b, "name":"embedding"}]}' % vector
    assert json.loads(orjson.dumps(read_answer(content))) == json.loads(content)


def test_a_vector_elsewhere_in_an_answer_is_not_read() -> None:
    content = b'{"data":[],"usage":{"embedding":"%b"}}' % (b"A" * SHORT)
    with pytest.raises(Incomplete, match="not the embedding of an item"):
        read_answer(content)


def embeddings(count: int) -> ScriptedResponse:
    """A provider's answer for so many items."""
    data = [{"object": "embedding", "index": k, "embedding": [0.5]} for k in range(count)]
    answer = {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 16, "total_tokens": 16}}
    return ScriptedResponse(200, JSON, json.dumps(answer).encode())


async def test_which_items_are_fetched() -> None:
    provider = Provider(embeddings(2), embeddings(1), embeddings(2), embeddings(1))
    only = {"cache-control": "only-if-cached"}
    with Cache("4MB", policy="lru", shadows=()) as cache:
        fetcher = Fetcher(internal_of(cache))

        async def fetch(*items: Any, headers: dict[str, str] | None = None) -> tuple[int, list[str]] | None:
            fetched = await fetcher.fetch(exchange(*items, headers=headers), "provider", provider.send)
            return None if fetched is None else (fetched.status, [answer.outcome for answer in fetched.answers])

        assert await fetch("a", "b", headers=only) == (504, [])
        assert await fetch("a", "b") == (200, ["miss", "miss"])
        assert await fetch("b", "a", headers=only) == (200, ["hit", "hit"])
        assert await fetch("a", "c") == (200, ["hit", "miss"])
        assert [request["input"] for request in provider.requests] == [["a", "b"], ["c"]]
        assert await fetch("a", "d") is None, "an answer for another number of items than those that were missing"
        assert await fetch("e", "f") == (200, []), "it is passed on"
        assert await fetch("a", ["b"]) is None, "no item has a key"
        assert await fetch("a", ["b"], headers=only) == (504, [])
        assert len(provider.requests) == 4
        cache.check()


@pytest.mark.parametrize("upstream", ["local", "https://a.test"])
async def test_items_of_the_embedded_model_are_marked(upstream: str) -> None:
    with Cache("4MB", policy="lru", shadows=()) as cache:
        asked = exchange("a", "b")._replace(context={"upstream": upstream})
        fetched = await Fetcher(internal_of(cache)).fetch(asked, "provider", Provider(embeddings(2)).send)
    assert fetched is not None
    assert [answer.meta.get("embedded", False) for answer in fetched.answers] == [upstream == "local"] * 2


@pytest.mark.parametrize("pauses", [True, False])
async def test_other_requests_run_between_many_items(pauses: bool) -> None:
    provider = Provider(embeddings(ITEMS_AT_ONCE))
    calls = []

    async def pause() -> None:
        calls.append(len(provider.requests))

    with Cache("4MB", policy="lru", shadows=()) as cache:
        fetcher = Fetcher(internal_of(cache), pause=pause if pauses else None)
        fetched = await fetcher.fetch(exchange(*map(str, range(ITEMS_AT_ONCE))), "provider", provider.send)
    assert fetched is not None
    assert fetched.status == 200
    assert [answer.outcome for answer in fetched.answers] == ["miss"] * ITEMS_AT_ONCE
    assert calls == ([0, 1] if pauses else [])
