"""Input tokens by kind, from the usages that providers send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.model import Endpoint
from knapcache.price import InputTokens, Meter
from knapcache.price.input_tokens import MAX_TOKENS, input_tokens

ANTHROPIC = {
    "input_tokens": 21,
    "cache_read_input_tokens": 5000,
    "cache_creation_input_tokens": 1000,
    "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
    "output_tokens": 50,
    "service_tier": "standard",
}
DEEPSEEK = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "total_tokens": 1100,
    "prompt_cache_hit_tokens": 640,
    "prompt_cache_miss_tokens": 360,
}


@pytest.mark.parametrize(
    ("endpoint", "usage", "expected"),
    [
        (Endpoint.MESSAGES, ANTHROPIC, (21, 5000, 400, 600)),
        (Endpoint.MESSAGES, {"input_tokens": 21, "output_tokens": 5}, (21, 0, 0, 0)),
        (Endpoint.MESSAGES, {"input_tokens": 21, "cache_creation_input_tokens": 900}, (21, 0, 900, 0)),
        (Endpoint.MESSAGES, ANTHROPIC | {"cache_creation": None}, (21, 5000, 1000, 0)),
        (Endpoint.MESSAGES, ANTHROPIC | {"cache_creation_input_tokens": None}, (21, 5000, 400, 600)),
        (Endpoint.CHAT, {"prompt_tokens": 1000, "completion_tokens": 9}, (1000, 0, 0, 0)),
        (
            Endpoint.CHAT,  # OpenAI, and Gemini's OpenAI-compatible endpoint
            {"prompt_tokens": 2006, "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0}},
            (86, 1920, 0, 0),
        ),
        (
            Endpoint.CHAT,
            {"prompt_tokens": 2006, "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1006}},
            (0, 1000, 1006, 0),
        ),
        (
            Endpoint.RESPONSES,
            {"input_tokens": 2006, "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1000}},
            (6, 1000, 1000, 0),
        ),
        (Endpoint.CHAT, {"prompt_tokens": 7, "prompt_tokens_details": None}, (7, 0, 0, 0)),
        (Endpoint.CHAT, DEEPSEEK, (360, 640, 0, 0)),
        (Endpoint.CHAT, DEEPSEEK | {"prompt_tokens_details": {"cached_tokens": 640}}, (360, 640, 0, 0)),
        (Endpoint.EMBEDDINGS, {"prompt_tokens": 8, "total_tokens": 8}, (8, 0, 0, 0)),
    ],
)
def test_every_provider_reports_its_input_by_kind(
    endpoint: Endpoint, usage: dict[str, Any], expected: tuple[int, ...]
) -> None:
    found = Meter("seconds").bill(endpoint, "m", usage, 1.0).input
    assert found == InputTokens(*expected)
    assert found.total == sum(expected)


@pytest.mark.parametrize(
    ("endpoint", "usage"),
    [
        (Endpoint.CHAT, {}),
        (Endpoint.CHAT, {"prompt_tokens": "7"}),
        (Endpoint.CHAT, {"prompt_tokens": True}),
        (Endpoint.CHAT, {"prompt_tokens": 7.0}),
        (Endpoint.CHAT, {"prompt_tokens": MAX_TOKENS + 1}),
        (Endpoint.CHAT, {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}),
        (Endpoint.CHAT, {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -1}}),
        (Endpoint.CHAT, {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": "1"}}),
        (Endpoint.CHAT, {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 3}}),
        (Endpoint.CHAT, {"prompt_tokens": 5, "prompt_cache_hit_tokens": 6}),
        (Endpoint.MESSAGES, {"input_tokens": None, "cache_read_input_tokens": 7}),
        (Endpoint.MESSAGES, {"input_tokens": 3, "cache_read_input_tokens": -7}),
        (Endpoint.MESSAGES, {"input_tokens": 3, "cache_creation": {"ephemeral_1h_input_tokens": "7"}}),
        (Endpoint.MESSAGES, {"prompt_tokens": 3}),
        (Endpoint.MESSAGES, ANTHROPIC | {"cache_creation_input_tokens": 999}),
    ],
)
def test_a_usage_that_contradicts_itself_is_unknown(endpoint: Endpoint, usage: dict[str, Any]) -> None:
    assert input_tokens(endpoint, usage) is None


counts = st.integers(0, MAX_TOKENS // 4)


@given(counts, counts, counts, counts)
def test_no_token_is_lost_or_counted_twice(plain: int, read: int, short: int, long: int) -> None:
    written = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
    usage = {
        "input_tokens": plain,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": short + long,
        "cache_creation": written,
    }
    assert input_tokens(Endpoint.MESSAGES, usage) == (plain, read, short, long)
    details = {"cached_tokens": read, "cache_write_tokens": short}
    total = plain + read + short
    for endpoint, name in ((Endpoint.CHAT, "prompt_tokens"), (Endpoint.RESPONSES, "input_tokens")):
        found = input_tokens(endpoint, {name: total, f"{name}_details": details})
        assert found == (plain, read, short, 0)
        assert found is not None
        assert found.total == total
