"""Bills compared with arithmetic by hand and with genai-prices, and bills without a price."""

from __future__ import annotations

import logging
import math
import socket
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput, install_command
from knapcache.model import Endpoint
from knapcache.price import Meter, Weights, meter
from knapcache.price.input_tokens import MAX_TOKENS
from knapcache.price.weights import MAX_AMOUNT

CHAT = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
METER = Meter()
DAY = datetime(2026, 11, 1, 20, tzinfo=UTC)


def usd(endpoint: Endpoint, model: str, usage: Any, **options: Any) -> float:
    bill = METER.bill(endpoint, model, usage, 1.5, at=DAY, **options)
    assert bill.usd is not None
    assert bill[:4] == (bill.usd, 1.5, bill.usd, "genai-prices")
    return bill.usd


# By hand: tokens times dollars per million.
@pytest.mark.parametrize(
    ("endpoint", "model", "usage", "millionths"),
    [
        (Endpoint.CHAT, "gpt-4o", CHAT, 1000 * 2.5 + 100 * 10),
        (Endpoint.CHAT, "gpt-4o-mini-2024-07-18", CHAT, 1000 * 0.15 + 100 * 0.6),
        (Endpoint.CHAT, "openai/gpt-4o", CHAT, 1000 * 2.5 + 100 * 10),
        (
            Endpoint.CHAT,  # cached input is part of the input, reasoning part of the output
            "gpt-5",
            CHAT
            | {"prompt_tokens_details": {"cached_tokens": 600}, "completion_tokens_details": {"reasoning_tokens": 64}},
            400 * 1.25 + 600 * 0.125 + 100 * 10,
        ),
        (Endpoint.COMPLETIONS, "gpt-3.5-turbo-instruct", CHAT, 1000 * 1.5 + 100 * 2),
        (
            Endpoint.RESPONSES,
            "gpt-4o",
            {"input_tokens": 1000, "output_tokens": 100, "input_tokens_details": {"cached_tokens": 1000}},
            1000 * 1.25 + 100 * 10,
        ),
        (Endpoint.EMBEDDINGS, "text-embedding-3-small", {"prompt_tokens": 1000, "total_tokens": 1000}, 1000 * 0.02),
        (
            Endpoint.MESSAGES,  # cached input is beside the input; an hour in the cache costs more than five minutes
            "claude-sonnet-4-5-20250929",
            {
                "input_tokens": 100,
                "cache_read_input_tokens": 5000,
                "cache_creation_input_tokens": 1000,
                "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
                "output_tokens": 50,
                "service_tier": "standard",
            },
            100 * 3 + 5000 * 0.3 + 400 * 3.75 + 600 * 6 + 50 * 15,
        ),
        (
            Endpoint.MESSAGES,
            "claude-3-5-haiku-latest",
            {"input_tokens": 100, "output_tokens": 50, "server_tool_use": {"web_search_requests": 2}},
            100 * 0.8 + 50 * 4 + 2 * 10_000,
        ),
        (
            Endpoint.CHAT,  # writes at 1.25 times the input's price
            "gpt-5.6-terra",
            CHAT | {"prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300}},
            100 * 2 + 600 * 0.2 + 300 * 2.5 + 100 * 12,
        ),
        (
            Endpoint.RESPONSES,
            "gpt-5.6-terra",
            {
                "input_tokens": 1000,
                "output_tokens": 100,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 1000},
            },
            1000 * 2.5 + 100 * 12,
        ),
        (
            Endpoint.CHAT,  # Gemini's implicit cache, as its OpenAI-compatible endpoint reports it
            "gemini-2.5-flash",
            CHAT | {"prompt_tokens_details": {"cached_tokens": 600}},
            400 * 0.3 + 600 * 0.03 + 100 * 2.5,
        ),
    ],
)
def test_bills_match_prices_by_hand(endpoint: Endpoint, model: str, usage: Any, millionths: float) -> None:
    assert usd(endpoint, model, usage) == pytest.approx(millionths / 1e6, rel=1e-12)


@pytest.mark.parametrize("more", [{}, {"prompt_tokens_details": {"cached_tokens": 600}}])
def test_deepseeks_cache_hits_are_billed_as_reads(more: dict[str, Any]) -> None:
    """Its newer answers have both fields. At night everything costs half."""
    usage = CHAT | {"prompt_cache_hit_tokens": 600, "prompt_cache_miss_tokens": 400} | more
    millionths = 400 * 0.27 + 600 * 0.07 + 100 * 1.1
    noon = METER.bill(Endpoint.CHAT, "deepseek-chat", usage, 1, at=DAY.replace(hour=12))
    assert noon.usd == pytest.approx(millionths / 1e6, rel=1e-12)
    assert usd(Endpoint.CHAT, "deepseek-chat", usage) == pytest.approx(millionths / 2e6, rel=1e-12)


def test_input_read_wholly_from_the_providers_cache_is_billed_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own, usage = Meter(), CHAT | {"prompt_tokens_details": {"cached_tokens": 1000}}
    for _ in range(2):
        assert own.bill(Endpoint.CHAT, "gpt-5", usage, 1).usd == pytest.approx((1000 * 0.125 + 100 * 10) / 1e6)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("endpoint", "model", "tokens", "millionths"),
    [
        (Endpoint.MESSAGES, "claude-sonnet-4-5", 0, 3),
        (Endpoint.RESPONSES, "gpt-5.6-terra", 100_000, 2),
        (Endpoint.RESPONSES, "gpt-5.6-terra", 300_000, 4),
        (Endpoint.CHAT, "gemini-2.5-pro", 200_000 - 1, 1.25),
        (Endpoint.CHAT, "gemini-2.5-pro", 200_000 + 1, 2.5),
        (Endpoint.EMBEDDINGS, "text-embedding-3-small", 10, 0.02),
    ],
)
def test_the_price_of_a_plain_input_token(endpoint: Endpoint, model: str, tokens: int, millionths: float) -> None:
    assert METER.input_price(endpoint, model, tokens) == pytest.approx(millionths / 1e6, rel=1e-12)


def test_an_input_token_without_a_price(caplog: pytest.LogCaptureFixture) -> None:
    own = Meter(prices={"free": None, "mine": {"input": 3}})
    assert own.input_price(Endpoint.CHAT, "mine") == pytest.approx(3e-6)
    assert own.input_price(Endpoint.CHAT, "free") is None
    assert own.input_price(Endpoint.CHAT, "unknown") is None
    assert Meter("seconds").input_price(Endpoint.CHAT, "gpt-4o") is None
    assert caplog.records == []


def test_tiers_and_batches() -> None:
    assert usd(Endpoint.CHAT, "gpt-4o", CHAT, service_tier="default") == usd(Endpoint.CHAT, "gpt-4o", CHAT)
    priority = usd(Endpoint.CHAT, "gpt-4o", CHAT, service_tier="priority")
    assert priority == pytest.approx((1000 * 4.25 + 100 * 17) / 1e6)
    batch = usd(Endpoint.CHAT, "gpt-4o", CHAT, batch=True)
    assert batch == pytest.approx((1000 * 1.25 + 100 * 5) / 1e6)
    assert usd(Endpoint.CHAT, "gpt-4o", CHAT, service_tier="batch") == batch
    assert usd(Endpoint.CHAT, "gpt-4o", CHAT | {"service_tier": "priority"}) == priority
    assert usd(Endpoint.CHAT, "gpt-4o", CHAT | {"service_tier": ["priority"]}) == usd(Endpoint.CHAT, "gpt-4o", CHAT)
    usage = {"input_tokens": 1000, "output_tokens": 100, "service_tier": "batch"}
    assert usd(Endpoint.MESSAGES, "claude-sonnet-4-5", usage) == pytest.approx((1000 * 1.5 + 100 * 7.5) / 1e6)


def test_audio_tokens_have_their_own_price() -> None:
    usage = CHAT | {"prompt_tokens_details": {"audio_tokens": 300}, "completion_tokens_details": {"audio_tokens": 40}}
    found = usd(Endpoint.CHAT, "gpt-audio", usage)
    assert found == pytest.approx((700 * 2.5 + 300 * 32 + 60 * 10 + 40 * 64) / 1e6)


counts = st.integers(0, 10**7)


@given(
    counts, counts, st.floats(0, 1), st.sampled_from(["gpt-4o", "gpt-4.1-nano", "o3", "gpt-5-mini", "deepseek-chat"])
)
def test_chat_is_billed_like_genai_prices(prompt: int, completion: int, cached: float, model: str) -> None:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": int(cached * prompt)},
    }
    own = genai_prices.calc_price(
        genai_prices.Usage(input_tokens=prompt, output_tokens=completion, cache_read_tokens=int(cached * prompt)),
        model,
        genai_request_timestamp=DAY,
    )
    assert METER.bill(Endpoint.CHAT, model, usage, 0, at=DAY).usd == float(own.total_price)


@given(counts, counts, counts, counts)
def test_messages_are_billed_like_genai_prices(prompt: int, read: int, written: int, completion: int) -> None:
    answer = {
        "model": "claude-sonnet-4-5",
        "usage": {
            "input_tokens": prompt,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": completion,
        },
    }
    own = genai_prices.extract_usage(answer, provider_id="anthropic").calc_price(genai_request_timestamp=DAY)
    found = METER.bill(Endpoint.MESSAGES, "claude-sonnet-4-5", answer["usage"], 0, at=DAY)  # type: ignore[arg-type]
    assert found.usd == float(own.total_price)


# The provider that bills.


def test_the_base_url_tells_the_provider() -> None:
    groq = Meter(base_url="https://api.groq.com/openai/v1").bill(Endpoint.CHAT, "llama-3.3-70b-versatile", CHAT, 1)
    assert groq.usd == pytest.approx((1000 * 0.59 + 100 * 0.79) / 1e6)
    assert Meter(provider="groq").bill(Endpoint.CHAT, "llama-3.3-70b-versatile", CHAT, 1) == groq
    assert Meter().bill(Endpoint.CHAT, "llama-3.3-70b-versatile", CHAT, 1).usd is None


def test_an_unknown_base_url_leaves_the_models_name() -> None:
    local = Meter(base_url="http://localhost:8000/v1")
    assert local.bill(Endpoint.CHAT, "gpt-4o", CHAT, 1).usd == usd(Endpoint.CHAT, "gpt-4o", CHAT)


def test_a_model_that_the_provider_does_not_have_is_unknown() -> None:
    """Other providers have other prices."""
    assert Meter(provider="groq").bill(Endpoint.CHAT, "gpt-4o", CHAT, 1).usd is None


def test_a_provider_with_its_own_way_of_counting() -> None:
    """Reasoning is beside the output for xAI, within it for OpenAI."""
    usage = CHAT | {"completion_tokens_details": {"reasoning_tokens": 300}}
    grok = METER.bill(Endpoint.CHAT, "grok-4", usage, 1, at=DAY).usd
    own = genai_prices.calc_price(
        genai_prices.Usage(input_tokens=1000, output_tokens=100 + 300), "grok-4", genai_request_timestamp=DAY
    )
    assert grok == float(own.total_price)


def test_a_provider_with_its_own_way_of_counting_messages() -> None:
    """Baseten counts no input that is written to the cache, Anthropic does."""
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 1000, "output_tokens": 50}
    baseten = meter.count_tokens(Endpoint.MESSAGES, usage, meter.find_provider("baseten"))
    anthropic = meter.count_tokens(Endpoint.MESSAGES, usage, meter.find_provider("anthropic"))
    assert (baseten.input_tokens, anthropic.input_tokens) == (100, 1100)


# The user's prices.


def test_own_prices_win() -> None:
    own = Meter(prices={"gpt-4o": {"input": 1, "output": 2, "cache_read": 0.5}, "mine": {"input": 3}})
    cached = CHAT | {"prompt_tokens_details": {"cached_tokens": 400}}
    assert own.bill(Endpoint.CHAT, "gpt-4o", cached, 1)[:4] == (0.001, 1.0, 0.001, "prices")
    assert own.bill(Endpoint.EMBEDDINGS, "mine", {"prompt_tokens": 10}, 1).usd == pytest.approx(30e-6)
    assert own.bill(Endpoint.CHAT, "gpt-4o-mini", CHAT, 1).source == "genai-prices"


def test_a_fallback_in_tokens(caplog: pytest.LogCaptureFixture) -> None:
    own = Meter(fallback={"input": 1, "output": 2})
    assert own.bill(Endpoint.CHAT, "mine", CHAT, 9)[:4] == (0.0012, 9.0, 0.0012, "fallback")
    assert [record.getMessage() for record in caplog.records] == [
        "model 'mine' has no known price: billed at the fallback's"
    ]
    assert own.bill(Endpoint.CHAT, "mine", None, 10)[:4] == (None, 10.0, 10 * meter.USD_PER_SECOND, "unbillable")


def test_a_model_of_unknown_price_is_logged_once_and_costs_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    own = Meter(fallback=0.01)
    for _ in range(3):
        assert own.bill(Endpoint.CHAT, "mine", CHAT, 3)[:4] == (None, 3.0, 0.03, "seconds")
    own.bill(Endpoint.CHAT, "other", CHAT, 3)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            f"model {name!r} has no known price (`prices` can set one): its savings are shown in seconds and tokens, "
            "not in dollars; the policy counts a second of it like 0.01 dollars",
        )
        for name in ("mine", "other")
    ]


def test_the_number_of_logged_models_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "MAX_MODELS", 3)
    own = Meter()
    for k in range(10):
        own.bill(Endpoint.CHAT, f"mine-{k}", CHAT, 1)
    assert len(caplog.records) == 4
    assert "further ones are not" in caplog.text


def test_models_not_billed_by_tokens_are_unknown_not_free() -> None:
    """Whisper has a price per hour; tokens would cost nothing."""
    assert METER.bill(Endpoint.CHAT, "whisper-1", CHAT, 1).usd is None


def test_a_free_model_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert Meter(prices={"gift": {"input": 0, "output": 0}}).bill(Endpoint.CHAT, "gift", CHAT, 1).cost == 0
    assert "is billed at 0 dollars" in caplog.text


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "12",
        [],
        {"prompt_tokens": 5},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": math.nan, "completion_tokens": 1},
        {"prompt_tokens": math.inf, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": "7", "completion_tokens": 1},
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": 10**400, "completion_tokens": 1},
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}},
        {"prompt_tokens": 5, "completion_tokens": 1.5},
        {"total_tokens": 5},
        {"input_tokens": 5, "output_tokens": 6},
    ],
)
def test_a_usage_that_cannot_be_billed_costs_its_seconds(usage: Any, caplog: pytest.LogCaptureFixture) -> None:
    bill = Meter().bill(Endpoint.CHAT, "gpt-4o", usage, 2)
    assert bill[:4] == (None, 2.0, 2 * meter.USD_PER_SECOND, "unbillable")
    assert not bill.known
    assert "model 'gpt-4o' answers with a usage that cannot be billed" in caplog.text


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
fields = st.sampled_from(
    ["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens", "service_tier"]
)
details = st.dictionaries(st.sampled_from(["cached_tokens", "audio_tokens", "reasoning_tokens"]), junk)
usages = st.builds(
    lambda plain, more: plain | more,
    st.dictionaries(fields, counts | junk),
    st.dictionaries(
        st.sampled_from(["prompt_tokens_details", "input_tokens_details", "cache_creation"]), details | junk
    ),
)


@given(
    st.sampled_from(list(Endpoint)),
    st.sampled_from(["gpt-4o", "claude-sonnet-4-5", "mine", "", "openai/", "/", "whisper-1"]) | st.text(max_size=5),
    usages | junk,
    st.floats(0, 1e12),
    st.sampled_from(["usd", "usd + 0.01*seconds", "1e12*usd + 1e12*seconds"]),
)
def test_bills_are_finite_and_not_negative(
    endpoint: Endpoint, model: str, usage: Any, seconds: float, cost: str
) -> None:
    bill = METERS[cost].bill(endpoint, model, usage, seconds)
    assert 0 <= bill.cost < math.inf
    assert bill.usd is None or 0 <= bill.usd < math.inf
    assert bill.seconds == seconds
    assert (bill.usd is None) == (bill.source in ("seconds", "unbillable"))
    assert bill.usd is not None or bill.cost > 0 or seconds < 1e-300


METERS = {cost: Meter(cost) for cost in ("usd", "usd + 0.01*seconds", "1e12*usd + 1e12*seconds")}


# Costs.


@pytest.mark.parametrize(
    ("cost", "weights"),
    [
        ("usd", Weights(1, 0)),
        ("seconds", Weights(None, 1)),
        ("usd + 0.01*seconds", Weights(1, 0.01)),
        (" 1e-2 * seconds+2*usd ", Weights(2, 0.01)),
        ("1e+3*seconds + usd", Weights(1, 1000)),
        ({"usd": 1, "seconds": 0.5}, Weights(1, 0.5)),
        ({"usd": 0, "seconds": 1}, Weights(0, 1)),
        (Weights(1, 1), Weights(1, 1)),
    ],
)
def test_costs_are_parsed(cost: Any, weights: Weights) -> None:
    assert Meter(cost).weights == weights


@pytest.mark.parametrize(
    "cost",
    [
        *(
            "",
            "euro",
            "usd +",
            "usd usd",
            "usd + usd",
            "usd - seconds",
            "-1*usd",
            "usd*2",
            "nan*usd",
            "1e13*usd",
            "0*usd",
        ),
        *({}, {"euro": 1}, {"usd": -1}, {"usd": math.nan}, {"usd": True}, {"usd": "1"}, {"usd": 0, "seconds": 0}),
        *(None, 3, ["usd"], "1e*usd", "..*usd"),
    ],
)
def test_bad_costs(cost: Any) -> None:
    with pytest.raises(InvalidInput, match=r"cost|weight"):
        Meter(cost)


def test_a_blend() -> None:
    bill = Meter("2*usd + 0.1*seconds").bill(Endpoint.CHAT, "gpt-4o", CHAT, 3)
    assert bill.cost == pytest.approx(2 * 0.0035 + 0.3)
    unknown = Meter("2*usd + 0.1*seconds", fallback=0.5).bill(Endpoint.CHAT, "mine", CHAT, 3)
    assert unknown.cost == pytest.approx(2 * 0.5 * 3 + 0.3)


def test_dollars_can_have_no_weight() -> None:
    bill = Meter({"usd": 0, "seconds": 1}).bill(Endpoint.CHAT, "gpt-4o", CHAT, 3)
    assert (bill.usd, bill.cost) == (0.0035, 3.0)


def test_seconds_without_dollars_cost_their_weight() -> None:
    assert Meter("2*seconds").bill_seconds(3).cost == 6.0
    assert Meter("usd + 2*seconds", fallback=0.5).bill_seconds(3).cost == 7.5


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "1", None, True, 1e13])
def test_seconds_are_checked(seconds: Any) -> None:
    for own in (METER, Meter("seconds")):
        with pytest.raises(InvalidInput, match="seconds must be a number from 0"):
            own.bill(Endpoint.CHAT, "gpt-4o", CHAT, seconds)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prices": {"m": 3}}, r"prices of model m must be dollars per million tokens such as .* not 3"),
        ({"prices": {"m": {"output": 3}}}, "must be dollars per million tokens"),
        (
            {"prices": {"m": {"input": 3, "ouput": 3}}},
            "prices of model m name 'ouput'; kinds of tokens are input, output",
        ),
        ({"prices": {"m": {"input": -3}}}, "the price of model m for input must be a number from 0"),
        ({"prices": {"m": {"input": math.nan}}}, "must be a number from 0"),
        ({"prices": {"m": {"input": "3"}}}, "must be a number from 0"),
        ({"fallback": 0}, "fallback must not be 0"),
        ({"fallback": -1}, "fallback, in dollars per second, must be a number from 0"),
        ({"fallback": "seconds"}, "fallback, in dollars per second, must be a number from 0"),
        ({"prices": {"m": {"input": 1, "cache_audio_read": 1}}}, "prices of model m are inconsistent: "),
        ({"fallback": {"output": 1}}, "prices of the fallback must be"),
        ({"provider": "unknown"}, "provider must be known to genai-prices, not .unknown."),
    ],
)
def test_bad_settings(options: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Meter(**options)


def test_a_model_is_a_string() -> None:
    with pytest.raises(InvalidInput, match="model must be a str"):
        METER.bill(Endpoint.CHAT, None, CHAT, 1)  # type: ignore[arg-type]


def test_prices_are_not_rounded() -> None:
    price = Meter(prices={"m": {"input": 0.1}}).prices["m"]
    assert price.input_mtok == Decimal("0.1")


# Packages and the network.


def test_without_genai_prices_only_seconds_work() -> None:
    code = """
import sys
sys.modules["genai_prices"] = None
from knapcache import Endpoint, MissingExtra
from knapcache.price import Meter
print(Meter("seconds").bill(Endpoint.CHAT, "gpt-4o", None, 2).cost)
try:
    Meter("usd")
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2.0", f"cost in dollars needs genai-prices: {install_command('price')}"]


def test_genai_prices_is_imported_only_for_dollars() -> None:
    code = "import sys, knapcache.price; knapcache.price.Meter('seconds'); print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_network_access(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    own = Meter(base_url="https://api.openai.com/v1")
    assert own.bill(Endpoint.CHAT, "gpt-4o", CHAT, 1).usd == 0.0035
    assert own.bill(Endpoint.CHAT, "unknown", CHAT, 1).usd is None


def test_usage_of_providers_without_rules_of_their_own_is_counted() -> None:
    providers = [provider for provider in get_snapshot().providers if not provider.extractors]
    assert providers
    for provider in providers:
        assert meter.count_tokens(Endpoint.CHAT, CHAT, provider) == meter.count_tokens(Endpoint.CHAT, CHAT, None)


def test_a_free_model_has_no_dollars_and_costs_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    own = Meter(prices={"gpt-4o": None, "mine": None}, fallback={"input": 1, "output": 2})
    for model in ("gpt-4o", "mine"):
        bill = own.bill(Endpoint.CHAT, model, CHAT, 3)
        assert (bill.usd, bill.source) == (None, "seconds"), "a price list and a fallback do not apply"
        assert bill.cost == pytest.approx(3 * meter.USD_PER_SECOND)
        assert bill.tokens == 1100
    assert caplog.records == []


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, 15),
        ({"prompt_tokens": 10, "completion_tokens": 5}, 15),
        (
            {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7},
            122,
        ),
        ({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5}, 15),
        ({"total_tokens": 10**30}, MAX_TOKENS),
        ({"total_tokens": -4}, 0),
        ({"prompt_tokens": "many", "completion_tokens": True}, 0),
        ({}, 0),
    ],
)
def test_tokens_are_those_of_request_and_answer(usage: dict[str, Any], tokens: int) -> None:
    bill = Meter("seconds").bill(Endpoint.CHAT, "m", usage, 1)
    assert bill.tokens == tokens
    assert bill.known is (tokens > 0)


def test_the_largest_amount_is_allowed() -> None:
    assert meter.checked_total(Decimal(repr(MAX_AMOUNT))) == MAX_AMOUNT
    with pytest.raises(ValueError, match="dollars"):
        meter.checked_total(Decimal(repr(MAX_AMOUNT)) * 2)
