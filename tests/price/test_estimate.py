"""Estimates of the cost of calls."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.model import Endpoint
from knapcache.price.estimate import DEFAULT_OUTPUT, MAX_INPUT, MAX_MEANS, MAX_OUTPUT, CostEstimator, max_output
from knapcache.price.meter import Meter

PRICES = {"m": {"input": 1.0, "output": 10.0}}


@pytest.fixture
def estimator() -> CostEstimator:
    return CostEstimator(Meter("usd", PRICES))


def test_without_calls_the_request_bounds_the_estimate(estimator: CostEstimator) -> None:
    amounts = estimator.estimate("team", Endpoint.CHAT, "m", 4000, 50)
    assert list(amounts) == pytest.approx([1000 * 1e-6 + 50 * 1e-5, 1050])
    amounts = estimator.estimate("team", Endpoint.CHAT, "m", 4000, None)
    assert amounts.usd == pytest.approx(1000 * 1e-6 + DEFAULT_OUTPUT * 1e-5)
    assert estimator.estimate("team", Endpoint.EMBEDDINGS, "m", 4000, None).tokens == 1000
    assert estimator.estimate("team", Endpoint.MESSAGES, "of unknown price", 400, 10) == (0.0, 110)


def test_the_mean_of_the_tenant_comes_before_that_of_all(estimator: CostEstimator) -> None:
    for usd in (0.02, 0.04):
        estimator.learn("other", "m", usd, 500)
    assert estimator.estimate("team", Endpoint.CHAT, "m", 40, 50).usd == pytest.approx(0.03)
    estimator.learn("team", "m", 0.5, 700)
    assert estimator.estimate("team", Endpoint.CHAT, "m", 40, 50) == pytest.approx((0.5, 700))
    assert estimator.estimate("other", Endpoint.CHAT, "m", 40, 50).usd == pytest.approx(0.03)


def test_the_price_of_the_input_is_the_least(estimator: CostEstimator) -> None:
    estimator.learn("team", "m", 1e-6, 1)
    assert estimator.estimate("team", Endpoint.CHAT, "m", 40_000, 50) == pytest.approx((0.01, 10_000))


@pytest.mark.parametrize(
    ("endpoint", "output"), [(Endpoint.CHAT, 30), (Endpoint.MESSAGES, 30), (Endpoint.EMBEDDINGS, 0)]
)
def test_what_has_arrived_is_the_least(estimator: CostEstimator, endpoint: Endpoint, output: int) -> None:
    estimator.learn("team", "m", 1.0, 10**6)
    least = estimator.at_least(endpoint, "m", 4000, 30)
    assert least == pytest.approx((1000 * 1e-6 + output * 1e-5, 1000 + output))
    assert estimator.at_least(endpoint, "m", 10**9, 30).tokens == MAX_INPUT + output


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, None),
        ({"n": 1}, None),
        ({"n": 2}, 2 * DEFAULT_OUTPUT),
        ({"n": 10**9}, MAX_OUTPUT),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "n": 3}, 15),
        ({"max_tokens": 5, "n": 0}, 5),
        ({"max_tokens": 5, "n": True}, 5),
        ({"max_tokens": 0, "max_completion_tokens": 7}, 7),
        ({"max_output_tokens": 1}, 1),
        ({"max_output_tokens": True}, None),
        ({"max_tokens": MAX_OUTPUT, "n": 2}, MAX_OUTPUT),
    ],
)
def test_the_output_that_a_request_allows(body: dict[str, Any], tokens: int | None) -> None:
    assert max_output(body) == tokens


def test_the_number_of_means_is_bounded(estimator: CostEstimator) -> None:
    for number in range(MAX_MEANS):
        estimator.learn("team", f"model-{number}", 1.0, 1)
    assert estimator.estimate("team", Endpoint.CHAT, f"model-{MAX_MEANS - 1}", 40, 50).usd == 1.0
    assert estimator.estimate("team", Endpoint.CHAT, "model-0", 40, 50).usd == 0.0
