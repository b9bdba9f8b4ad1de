"""The cache headers of every outcome, and their encoded form."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from knapcache import Answer
from knapcache.exchange.headers import CACHE_STATUS, cache_headers, hit_header_lines, outcome_headers


def answer(outcome: str, saved_usd: float | None = 0.0025) -> Answer:
    return Answer(b"", {}, outcome, "ab12", 7.9, saved_usd, "m")  # type: ignore[arg-type]


def test_every_outcome_of_an_answer_has_a_status() -> None:
    assert set(get_args(get_type_hints(Answer)["outcome"])) == set(CACHE_STATUS)


@pytest.mark.parametrize("outcome", CACHE_STATUS)
def test_only_reused_answers_have_an_age_and_savings(outcome: str) -> None:
    headers = dict(cache_headers(answer(outcome)))
    assert (headers["x-knapcache"], headers["x-knapcache-key"]) == (outcome, "ab12")
    assert headers["cache-status"].startswith("knapcache; ")
    reused = outcome in ("hit", "stale", "coalesced", "similar")
    assert (headers.get("age"), headers.get("x-knapcache-saved-usd")) == (
        ("7", "0.00250000") if reused else (None,) * 2
    )


def test_unknown_savings_are_not_reported() -> None:
    assert "x-knapcache-saved-usd" not in dict(cache_headers(answer("hit", None)))


@pytest.mark.parametrize("saved_usd", [None, 0.0, 1e-9, 0.123456789, 12.0])
def test_the_encoded_lines_of_a_hit_are_the_same_headers(saved_usd: float | None) -> None:
    hit = answer("hit", saved_usd)
    before_age, after_age = hit_header_lines(hit.key, saved_usd, hit.bill.seconds, hit.bill.tokens)
    lines = before_age.decode() + str(int(hit.age)) + after_age.decode()
    assert lines == "".join(f"{name}: {value}\r\n" for name, value in cache_headers(hit))


def test_dollars_of_the_embedded_model_are_simulated() -> None:
    made_up = answer("hit")._replace(meta={"embedded": True})
    assert dict(cache_headers(made_up))["x-knapcache-prices"] == "simulated"
    lines = b"".join(hit_header_lines("ab12", 0.0025, 1.0, 5, {"embedded": True}))
    assert b"x-knapcache-prices: simulated\r\n" in lines
    for other in (answer("hit"), made_up._replace(saved_usd=None), made_up._replace(outcome="miss")):
        assert "x-knapcache-prices" not in dict(cache_headers(other))


def test_requests_that_do_not_reach_the_cache_or_the_upstream_have_no_cache_status() -> None:
    assert outcome_headers("passthrough") == [("x-knapcache", "passthrough")]
    assert outcome_headers("miss", forwarded=False) == [("x-knapcache", "miss")]


def test_the_cache_status_of_every_outcome() -> None:
    found = {outcome: dict(outcome_headers(outcome))["cache-status"] for outcome in CACHE_STATUS}
    assert found == {
        "hit": "knapcache; hit",
        "similar": "knapcache; hit; detail=similar",
        "stale": "knapcache; hit",
        "coalesced": "knapcache; fwd=miss; collapsed",
        "miss": "knapcache; fwd=miss",
        "bypass": "knapcache; fwd=bypass",
    }
