"""Replies to the cache have the service tier of the answer; and which requests have no key."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from knapcache import Answer
from knapcache.errors import Incomplete, Uncacheable
from knapcache.exchange import exchange as exchange_module
from knapcache.exchange.exchange import (
    Exchange,
    cacheable_endpoint,
    exchange_of,
    make_exchange,
    parse_request,
    plain_reply,
    stream_reply,
    to_response,
)
from knapcache.keys.parse import SHORT
from knapcache.keys.rules import CROSS_ITEM_OPTIONS
from knapcache.model import Endpoint
from knapcache.wire import FORMATS, StreamCollector

CHAT = {
    "id": "1", "object": "chat.completion", "model": "gpt-4o", "service_tier": "flex",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}  # fmt: skip
RESPONSE = {
    "id": "1", "object": "response", "model": "gpt-4o", "status": "completed", "service_tier": "flex", "output": [],
    "usage": {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6},
}  # fmt: skip
ANSWERS: dict[Endpoint, dict[str, Any]] = {Endpoint.CHAT: CHAT, Endpoint.RESPONSES: RESPONSE}


def exchange(endpoint: Endpoint, **body: Any) -> Exchange:
    url = httpx.URL(f"https://api.example/v1/{endpoint.value}")
    return exchange_of(endpoint, url, {}, json.dumps({"model": "gpt-4o", **body}).encode())


@pytest.mark.parametrize("endpoint", ANSWERS)
def test_the_tier_of_a_plain_answer(endpoint: Endpoint) -> None:
    def tier(answer: dict[str, Any]) -> str | None:
        return plain_reply(exchange(endpoint), 200, {}, json.dumps(answer).encode()).tier

    assert tier(ANSWERS[endpoint]) == "flex"
    assert tier({**ANSWERS[endpoint], "service_tier": None}) is None
    assert tier({**ANSWERS[endpoint], "service_tier": 5}) is None


@pytest.mark.parametrize("endpoint", ANSWERS)
def test_the_tier_of_a_stream(endpoint: Endpoint) -> None:
    collector = StreamCollector(FORMATS[endpoint])
    for block in FORMATS[endpoint].to_stream(json.dumps(ANSWERS[endpoint]).encode(), "json", usage=True):
        collector.feed(block)
    reply = stream_reply(exchange(endpoint, stream=True), {}, collector, [], usage_asked=True)
    assert reply.cacheable
    assert reply.tier == "flex"


@pytest.mark.parametrize(("usage", "asked", "lacks"), [(1, 1, False), (1, 0, False), (0, 1, False), (0, 0, True)])
def test_a_stream_lacks_usage_that_nobody_asked_for(usage: bool, asked: bool, lacks: bool) -> None:
    """A stream for which it was asked in vain does not: the provider would not send it with another fetch."""
    collector = StreamCollector(FORMATS[Endpoint.CHAT])
    for block in FORMATS[Endpoint.CHAT].to_stream(json.dumps(CHAT).encode(), "json", usage=usage):
        collector.feed(block)
    reply = stream_reply(exchange(Endpoint.CHAT, stream=True), {}, collector, [], usage_asked=asked)
    assert (reply.meta.get("lacks") == "usage") is lacks


def test_the_tier_that_only_the_last_chunks_have() -> None:
    collector = StreamCollector(FORMATS[Endpoint.CHAT])
    for block in FORMATS[Endpoint.CHAT].to_stream(json.dumps(CHAT).encode(), "json", usage=True):
        collector.feed(block.replace(b'"service_tier":"flex"', b'"service_tier":null') if b"Hi" in block else block)
    assert stream_reply(exchange(Endpoint.CHAT, stream=True), {}, collector, [], usage_asked=True).tier == "flex"


@pytest.mark.parametrize(
    ("value", "bypass"),
    [
        ("a", False),
        (["a", "b"], False),
        ([1, 2], False),
        (["a", [1, 2]], False),
        (["a", ["b"]], True),
        ([["a"]], True),
        (["a", True], True),
        ([], True),
        (None, True),
    ],
)
def test_embeddings_without_a_key(value: Any, bypass: bool) -> None:
    assert exchange(Endpoint.EMBEDDINGS, input=value).bypass.startswith("neither") is bypass
    together = exchange(Endpoint.EMBEDDINGS, input=value, **{CROSS_ITEM_OPTIONS[0]: True}).bypass
    assert together.startswith("neither" if bypass else "the embeddings depend on one another")


def test_an_incomplete_plain_answer_is_returned_only_to_those_who_asked_for_a_plain_one() -> None:
    reply = plain_reply(exchange(Endpoint.CHAT), 200, {}, b'{"choices":')
    assert not reply.cacheable
    answer = Answer(reply.payload, reply.meta, outcome="coalesced", key="", age=0.0, saved_usd=None, model="")
    assert to_response(exchange(Endpoint.CHAT), answer).body == b'{"choices":'
    with pytest.raises(Incomplete, match="other form"):
        to_response(exchange(Endpoint.CHAT, stream=True), answer)


@pytest.mark.parametrize(
    ("meta", "outcome"), [({}, "hit"), ({"form": "other"}, "hit"), ({"form": "json", "status": 500}, "hit")]
)
def test_an_answer_that_no_proxy_has_stored_is_not_returned(meta: dict[str, Any], outcome: Any) -> None:
    answer = Answer(b"{}", meta, outcome=outcome, key="", age=0.0, saved_usd=None, model="")
    with pytest.raises(Incomplete, match="that no proxy has stored"):
        to_response(exchange(Endpoint.CHAT), answer)


@pytest.mark.parametrize(("limit", "found"), [(None, 10.0), (11.0, 10.0), (10.0, 10.0), (9.0, 9.0)])
def test_the_life_of_an_answer_is_limited(limit: float | None, found: float) -> None:
    raw = b'{"cache": {"ttl": 10}}'
    made = make_exchange(Endpoint.CHAT, {}, raw, parse_request(raw), None, {}, limit)
    assert made.control.ttl == found


def test_only_posts_are_cached() -> None:
    assert cacheable_endpoint("POST", "/v1/chat/completions") is Endpoint.CHAT
    assert cacheable_endpoint("GET", "/v1/chat/completions") is None


def test_the_query_belongs_to_the_key_and_is_not_stored() -> None:
    def context(query: str) -> dict[str, str]:
        url = httpx.URL(f"https://api.example/v1/chat/completions{query}")
        return dict(exchange_of(Endpoint.CHAT, url, {}, b"{}").context)

    assert "query" not in context("")
    assert context("?key=secret")["query"] != context("?key=other")["query"]
    assert "secret" not in str(context("?key=secret"))


def test_the_provider_gets_the_bytes_of_the_caller_unless_they_have_directives() -> None:
    url = httpx.URL("https://api.example/v1/chat/completions")
    raw = b'{ "model" : "gpt-4o",  "messages": [] }'
    assert exchange_of(Endpoint.CHAT, url, {}, raw).upstream_body(False) == raw
    directed = b'{ "model" : "gpt-4o",  "messages": [], "cache": {"no-store": true} }'
    assert json.loads(exchange_of(Endpoint.CHAT, url, {}, directed).upstream_body(False)) == json.loads(raw)


def test_a_long_answer_that_costs_too_much_to_parse_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise Uncacheable("too much")

    content = json.dumps(CHAT).encode()
    monkeypatch.setattr(exchange_module, "check_cost", refuse)
    for size, stored in ((SHORT, True), (SHORT + 1, False)):
        assert plain_reply(exchange(Endpoint.CHAT), 200, {}, content.ljust(size)).cacheable is stored
