"""What callers say about endpoint, form and cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache import Endpoint
from knapcache.wire.cache_control import Control, control_of, endpoint_of, wants_stream, wants_usage, with_usage


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
        ("/", None),
        ("", None),
    ],
)
def test_endpoints(path: str, endpoint: Endpoint | None) -> None:
    assert endpoint_of(path) is endpoint


@pytest.mark.parametrize(
    ("headers", "body", "wanted"),
    [
        ({}, {}, Control()),
        ({"cache-control": "no-store"}, None, Control(store=False)),
        ({"cache-control": "No-Cache"}, None, Control(refresh=True)),
        ({"cache-control": "only-if-cached, max-age=60"}, None, Control(only_cached=True, max_age=60)),
        ({"cache-control": 'max-age="5"'}, None, Control(max_age=5)),
        ({"cache-control": "max-age=soon, shiny"}, None, Control()),
        ({"cache-control": "max-age=-1"}, None, Control()),
        ({"cf-aig-skip-cache": "true"}, None, Control(refresh=True, store=False)),
        ({"cf-aig-cache-ttl": "30"}, None, Control(ttl=30)),
        ({"x-portkey-cache-force-refresh": "True"}, None, Control(refresh=True)),
        ({"helicone-cache-enabled": "false"}, None, Control(refresh=True, store=False)),
        ({"helicone-cache-enabled": "true"}, None, Control()),
        ({}, {"cache": {"no-cache": True, "ttl": 9}}, Control(refresh=True, ttl=9)),
        ({}, {"cache": {"no-store": True, "s-maxage": 4}}, Control(store=False, max_age=4)),
        ({}, {"cache": {"namespace": "mine", "ttl": "x"}}, Control(namespace="mine")),
        ({}, {"cache": "yes"}, Control()),
    ],
)
def test_controls(headers: dict[str, str], body: dict[str, Any] | None, wanted: Control) -> None:
    assert control_of(headers, body) == wanted


@given(st.text(max_size=40), st.dictionaries(st.sampled_from(["ttl", "s-maxage", "no-cache"]), st.text() | st.floats()))
def test_nonsense_is_ignored(header: str, cache: dict[str, Any]) -> None:
    found = control_of({"cache-control": header, "cf-aig-cache-ttl": header}, {"cache": cache})
    for seconds in (found.max_age, found.ttl):
        assert seconds is None or 0 <= seconds < float("inf")


def test_usage_is_asked_for_beside_what_was_asked() -> None:
    body = {"model": "m", "stream": True, "stream_options": {"include_obfuscation": False}}
    assert wants_stream(body)
    assert not wants_usage(body)
    amended = json.loads(with_usage(body))
    assert wants_usage(amended)
    assert amended == {**body, "stream_options": {"include_obfuscation": False, "include_usage": True}}
    assert not wants_usage({"stream_options": True})
