"""Flat rates give the prices of genai-prices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.model import Endpoint
from knapcache.price import Meter, meter
from knapcache.price.flat_rate import shape_of

COUNT = st.integers(0, 400_000)
MODELS = ("gpt-4o", "gpt-4.1-mini", "gpt-5", "o3", "gemini-2.5-pro", "claude-sonnet-4-5", "deepseek-chat", "unknown")


@st.composite
def chats(draw: Any) -> dict[str, Any]:
    """Usages in OpenAI's format, some of them inconsistent."""
    prompt, completion = draw(COUNT), draw(COUNT)
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if draw(st.booleans()):
        usage["total_tokens"] = prompt + completion
    if draw(st.booleans()):
        cached = draw(st.integers(0, max(1, prompt)) | COUNT)
        usage["prompt_tokens_details"] = {"cached_tokens": cached, "audio_tokens": draw(st.sampled_from([0, None]))}
    if draw(st.booleans()):
        usage["completion_tokens_details"] = {"reasoning_tokens": draw(st.integers(0, max(1, completion)) | COUNT)}
    return usage


@st.composite
def messages(draw: Any) -> dict[str, Any]:
    """Usages in Anthropic's format."""
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {name: draw(COUNT) for name in names if name in names[:2] or draw(st.booleans())}


@settings(max_examples=60)
@given(
    model=st.sampled_from(MODELS),
    usages=st.lists(chats(), min_size=2, max_size=6),
    tier=st.sampled_from([None, "flex"]),
)
def test_chats(model: str, usages: list[dict[str, Any]], tier: str | None) -> None:
    assert_same_price(Endpoint.CHAT, model, usages, tier)


@settings(max_examples=40)
@given(model=st.sampled_from(MODELS), usages=st.lists(messages(), min_size=2, max_size=6))
def test_messages(model: str, usages: list[dict[str, Any]]) -> None:
    assert_same_price(Endpoint.MESSAGES, model, usages, None)


def assert_same_price(endpoint: Endpoint, model: str, usages: list[dict[str, Any]], tier: str | None) -> None:
    """Compare one meter that learns with a new meter for every usage."""
    own = Meter("usd", {"ours": {"input": 1.0, "output": 3.0}})
    for usage in [*usages, *usages]:
        found = own.bill(endpoint, model, usage, 2.0, service_tier=tier)
        expected, source = Meter("usd")._usd(endpoint, model, usage, {"service_tier": tier} if tier else {}, None)
        assert found.source == source
        assert found.usd == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-15))


def test_only_flat_prices_are_learned() -> None:
    own = Meter("usd", {"ours": {"input": 1.0, "output": 3.0}})
    for model in ("gpt-4o", "ours", "gemini-2.5-pro", "unknown"):
        own.bill(Endpoint.CHAT, model, {"prompt_tokens": 7, "completion_tokens": 3}, 1.0)
    assert [rate is not None for rate, _ in own._flat_rates.values()] == [True, True, False, False]


@pytest.mark.parametrize("odd", [1.5, True, -1, [1], b"1"])
def test_odd_usages_have_no_shape(odd: Any) -> None:
    assert shape_of({"prompt_tokens": 1, "more": odd}) is None


def test_each_service_tier_has_its_own_rate() -> None:
    """The second bill of each tier uses the learned rate."""
    own = Meter("usd")
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    expected = {None: 0.0035, "default": 0.0035, "priority": 0.00595, "batch": 0.00175}
    for _ in range(3):
        for tier, usd in expected.items():
            assert own.bill(Endpoint.CHAT, "gpt-4o", usage, 1.0, service_tier=tier).usd == pytest.approx(usd)
    assert len(own._flat_rates) == len(expected)


def test_the_number_of_rates_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MAX_MODELS", 3)
    own = Meter("usd", {f"ours-{k}": {"input": 1.0, "output": 3.0} for k in range(5)})
    for k in (0, 1, 2, 3, 4, 0):
        bill = own.bill(Endpoint.CHAT, f"ours-{k}", {"prompt_tokens": 7, "completion_tokens": 3}, 1.0)
        assert bill.usd == pytest.approx(16e-6)
    assert [key[1] for key in own._flat_rates] == ["ours-0", "ours-1", "ours-2"]


def test_a_learned_rate_replaces_genai_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Meter("usd")
    first = own.bill(Endpoint.CHAT, "gpt-4o", {"prompt_tokens": 1000, "completion_tokens": 100}, 1.0)
    monkeypatch.setattr(own, "_usd", None)  # calls fail
    second = own.bill(Endpoint.CHAT, "gpt-4o", {"prompt_tokens": 2000, "completion_tokens": 200}, 1.0)
    assert first.usd == pytest.approx(0.0035)
    assert second.usd == pytest.approx(0.007)
    assert second.source == "genai-prices"
