"""The endpoint of a path, and the directives of a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import Endpoint
from knapcache.errors import InvalidInput
from knapcache.wire import endpoint_of
from knapcache.wire.cache_control import CONTROL_HEADERS, CacheControl, parse_cache_control, with_usage


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", Endpoint.CHAT),
        ("/openai/deployments/mine/chat/completions", Endpoint.CHAT),
        ("/v1/chat/completions/", Endpoint.CHAT),
        ("/chat/completions", Endpoint.CHAT),
        ("/v1/completions", Endpoint.COMPLETIONS),
        ("/v1/responses", Endpoint.RESPONSES),
        ("/v1/embeddings", Endpoint.EMBEDDINGS),
        ("/anthropic/v1/messages", Endpoint.MESSAGES),
        ("/v1/threads/t1/messages", None),
        ("/v1/messages/batches", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/responses/r1", None),
        ("/v1/responses/r1/cancel", None),
        ("/v1/chat/completions/c1", None),
        ("/v1/fim/completions", None),
        ("/v1/models", None),
        ("/v1/chat/completions~", None),
        ("/v1/chat/completions//", Endpoint.CHAT),
        ("/", None),
        ("", None),
    ],
)
def test_the_endpoint_of_a_path(path: str, endpoint: Endpoint | None) -> None:
    assert endpoint_of(path) is endpoint


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, CacheControl(refresh=False, store=True, only_cached=False, similar=True)),
        ({"x-knapcache-tags": "b, a,b ,"}, None, CacheControl(tags=("a", "b"))),
        ({"x-knapcache-tags": " "}, None, CacheControl()),
        ({}, {"cache": {"tags": ["b", "a"]}}, CacheControl(tags=("a", "b"))),
        ({"x-knapcache-tags": "c"}, {"cache": {"tags": ["b"]}}, CacheControl(tags=("b", "c"))),
        ({"x-knapcache-tags": "c"}, {"cache": {"ttl": 5}}, CacheControl(tags=("c",), ttl=5)),
        ({"cache-control": "no-store"}, None, CacheControl(store=False)),
        ({"cache-control": "No-Cache"}, None, CacheControl(refresh=True)),
        ({"cache-control": "only-if-cached, max-age=60"}, None, CacheControl(only_cached=True, max_age=60)),
        ({"cache-control": "no-transform"}, None, CacheControl(similar=False)),
        ({"x-knapcache-semantic": " Off "}, None, CacheControl(similar=False)),
        ({"x-knapcache-semantic": "on"}, None, CacheControl()),
        ({"cache-control": 'max-age="5"'}, None, CacheControl(max_age=5)),
        ({"cache-control": "max-age=soon, shiny"}, None, CacheControl()),
        ({"cache-control": "max-age=-1"}, None, CacheControl()),
        ({"cf-aig-skip-cache": "true"}, None, CacheControl(refresh=True, store=False)),
        ({"cf-aig-cache-ttl": "30"}, None, CacheControl(ttl=30)),
        ({"x-portkey-cache-force-refresh": "True"}, None, CacheControl(refresh=True)),
        ({"helicone-cache-enabled": "false"}, None, CacheControl(refresh=True, store=False)),
        ({"helicone-cache-enabled": "true"}, None, CacheControl()),
        ({}, {"cache": {"no-cache": True, "ttl": 9}}, CacheControl(refresh=True, ttl=9)),
        ({}, {"cache": {"no-store": True, "s-maxage": 4}}, CacheControl(store=False, max_age=4)),
        ({}, {"cache": {"namespace": "mine", "ttl": "x"}}, CacheControl(namespace="mine")),
        ({}, {"cache": {"s-max-age": 4}}, CacheControl(max_age=4)),
        ({}, {"cache": {"ttl": True, "s-maxage": False}}, CacheControl()),
        ({}, {"cache": {"ttl": [5], "s-maxage": None}}, CacheControl()),
        ({}, {"cache": "yes"}, CacheControl()),
        ({"cache-control": "no-store"}, {"cache": {}}, CacheControl(store=False)),
        ({"cache-control": "no-store"}, {"cache": {"no-store": False}}, CacheControl(store=False)),
        ({"cache-control": "no-cache"}, {"cache": {"no-cache": False}}, CacheControl(refresh=True)),
        ({"cache-control": "only-if-cached"}, {"cache": {}}, CacheControl(only_cached=True)),
        ({"cache-control": "max-age=5", "cf-aig-cache-ttl": "7"}, {"cache": {}}, CacheControl(max_age=5, ttl=7)),
    ],
)
def test_directives(headers: dict[str, str], body: dict[str, Any] | None, expected: CacheControl) -> None:
    assert parse_cache_control(headers, body) == expected
    assert headers.keys() <= CONTROL_HEADERS, "requests without such headers are not searched for directives"


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (CacheControl(), True),
        (CacheControl(tags=("a",)), True),
        (CacheControl(refresh=True), False),
        (CacheControl(max_age=5, tags=("a",)), False),
    ],
)
def test_tags_alone_do_not_change_which_answers_are_served(control: CacheControl, expected: bool) -> None:
    assert control.serves_any_hit is expected


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({"x-knapcache-tags": "two words"}, {}, "'two words' is not a tag; allowed are at most 16 tags of 1 to 64"),
        ({"x-knapcache-tags": "x" * 65}, {}, "is not a tag"),
        ({"x-knapcache-tags": ",".join(map(str, range(17)))}, {}, "17 tags were given"),
        ({}, {"cache": {"tags": ["é"]}}, "'é' is not a tag"),
        ({}, {"cache": {"tags": [1]}}, "'1' is not a tag"),
        ({}, {"cache": {"tags": 1}}, "tags must be a list"),
        ({"x-knapcache-tags": "a,b,c,d,e,f,g,h"}, {"cache": {"tags": list("ijklmnopq")}}, "17 tags were given"),
    ],
)
def test_tags_that_are_not_allowed_are_errors(headers: dict[str, str], body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_cache_control(headers, body)


@given(st.text(max_size=40), st.dictionaries(st.sampled_from(["ttl", "s-maxage", "no-cache"]), st.text() | st.floats()))
def test_invalid_directives_are_ignored(header: str, cache: dict[str, Any]) -> None:
    found = parse_cache_control({"cache-control": header, "cf-aig-cache-ttl": header}, {"cache": cache})
    for seconds in (found.max_age, found.ttl):
        assert seconds is None or 0 <= seconds < float("inf")


def test_asking_for_usage_keeps_the_other_stream_options() -> None:
    body = {"model": "m", "stream": True, "stream_options": {"include_obfuscation": False}}
    amended = with_usage(body)
    assert amended == {**body, "stream_options": {"include_obfuscation": False, "include_usage": True}}
