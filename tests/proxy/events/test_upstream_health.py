"""Health of the upstreams."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from knapcache.proxy.events.events import UpstreamTry
from knapcache.proxy.events.metrics import Metrics
from knapcache.proxy.events.upstream_health import QUIET, UpstreamHealth
from knapcache.proxy.settings import UpstreamSettings
from knapcache.proxy.settings.endpoints import has_own_credential
from tests.support.events import event


def upstreams(monkeypatch: pytest.MonkeyPatch) -> UpstreamHealth:
    """Return the health of `a`, with callers' keys, and of `b`, with a key of the proxy's own."""
    monkeypatch.setenv("KEY_OF_B", "secret")
    url = "http://127.0.0.1:9/v1"
    return UpstreamHealth(
        UpstreamSettings.model_validate({"name": name, "url": url, "key_env": key})
        for name, key in (("a", None), ("b", "KEY_OF_B"))
    )


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> UpstreamHealth:
    return upstreams(monkeypatch)


def of(health: UpstreamHealth, name: str) -> dict[str, Any]:
    return next(row for row in health.report() if row["name"] == name)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "knapcache.serve"]


def test_every_call_is_counted_and_an_answered_retry_is_no_failure(health: UpstreamHealth) -> None:
    health.consume(
        [
            event("hit"),
            event("coalesced", upstream="a"),
            event("miss", upstream="a", attempts=(0, 503, 429, 200)),
            event("failed", upstream="unknown", attempts=(503, 503)),
        ]
    )
    row = of(health, "a")
    assert (row["state"], row["calls"], row["errors"]) == ("ok", 4, 2)
    assert of(health, "b")["calls"] == 0


def test_one_line_at_the_first_failure_and_one_at_recovery(
    health: UpstreamHealth, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for k in range(4):
        health.consume(
            [event("failed", time=100.0 + k, seconds=0.5, upstream="a", attempts=(0,), error="connection refused")]
        )
    row = of(health, "a")
    assert (row["state"], row["reason"], row["failed"]) == ("failing", "connection refused", 4)
    assert row["failing_since"] == 100.5
    health.consume([event("failed", time=104.0, upstream="a", attempts=(404,))])
    assert of(health, "a")["state"] == "failing", "an error is no successful answer"
    health.consume([event("miss", time=110.0, seconds=2.5, upstream="a", attempts=(200,))])
    row = of(health, "a")
    assert (row["state"], row["failing_since"], row["reason"], row["failed"]) == ("ok", None, "", 0)
    assert lines(caplog) == [
        "upstream a fails: connection refused. Requests that need it get an error; cached answers are served.",
        "upstream a answers again: it failed 4 requests in 12.0 s.",
    ]


def test_an_upstream_that_fails_again_soon_writes_no_line_for_a_minute(
    health: UpstreamHealth, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    at = 1000.0
    for _ in range(20):
        health.consume([event("failed", time=at, upstream="a", attempts=(500,))])
        health.consume([event("miss", time=at + 1, upstream="a", attempts=(200,))])
        at += 2
    assert len(lines(caplog)) == 2
    assert of(health, "a")["state"] == "ok"
    health.consume([event("failed", time=at, upstream="a", attempts=(500,))])
    assert of(health, "a")["state"] == "failing"
    assert len(lines(caplog)) == 2
    health.consume([event("failed", time=at + QUIET, upstream="a", attempts=(500,))])
    assert len(lines(caplog)) == 3


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "status 401: it rejects the key in KEY_OF_B"),
        (403, "status 403: it rejects the key in KEY_OF_B"),
        (429, "status 429: rate limit or quota exceeded"),
        (500, "status 500: internal server error"),
        (503, "status 503: service unavailable"),
        (529, "status 529: overloaded"),
        (599, "status 599: an error of the upstream"),
        (0, "no response"),
    ],
)
def test_the_reason_is_in_plain_words(health: UpstreamHealth, status: int, reason: str) -> None:
    health.consume([event("failed", upstream=name, attempts=(status,)) for name in "ab"])
    assert of(health, "b")["reason"] == reason
    callers_fault = status in (401, 403, 429)
    assert of(health, "a")["state"] == ("ok" if callers_fault else "failing"), "callers bring their own keys to a"


def test_a_broken_stream_is_a_failure_although_its_status_was_200(health: UpstreamHealth) -> None:
    health.consume([event("failed", upstream="a", attempts=(200,), error="connection reset")])
    assert of(health, "a")["reason"] == "connection reset"


def test_the_metric_is_0_while_an_upstream_fails(health: UpstreamHealth) -> None:
    health.consume([event("failed", upstream="b", attempts=(500,))])
    text = Metrics(dict, upstreams=health.report).render().decode()
    assert 'knapcache_upstream_up{upstream="a"} 1.0' in text
    assert 'knapcache_upstream_up{upstream="b"} 0.0' in text


def test_failures_that_another_upstream_covers(health: UpstreamHealth, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tried = (UpstreamTry("a", (0,), "connection refused", 0.0),)
    health.consume([event("miss", upstream="b", attempts=(200,), tried=tried)])
    row = of(health, "a")
    assert (row["state"], row["reason"], row["calls"], row["errors"]) == ("failing", "connection refused", 1, 1)
    assert (row["health"], row["open_until"]) == ("healthy", None), "one failure does not open it"
    assert (of(health, "b")["state"], of(health, "b")["calls"]) == ("ok", 1)
    assert lines(caplog) == ["upstream a fails: connection refused. b answers; cached answers are served."]
    assert (row["fallback"], of(health, "b")["fallback"]) == ("b", "")
    health.consume([event("failed", upstream="b", attempts=(503,), error="no response", tried=tried)])
    assert of(health, "a")["fallback"] == "", "no upstream has answered the last one"
    health.consume([event("miss", upstream="a", attempts=(200,))])
    assert (of(health, "a")["state"], of(health, "a")["fallback"]) == ("ok", "")


def test_the_health_is_that_of_the_last_call(health: UpstreamHealth) -> None:
    later = time.time() + 100.0
    for until, state in ((later, "open"), (time.time() - 1.0, "half-open"), (0.0, "healthy")):
        health.consume([event("miss", upstream="b", attempts=(200,), tried=(UpstreamTry("a", (503,), "", until),))])
        assert of(health, "a")["health"] == state
        health.consume([event("failed", upstream="b", attempts=(503,), open_until=until)])
        assert (of(health, "b")["health"], of(health, "b")["open_until"]) == (state, until or None)
    health.consume([event("failed", upstream="b", attempts=(503,), open_until=later), event("failed", error="x")])
    assert of(health, "b")["health"] == "open", "a request that made no call says nothing about it"


def test_a_credential_in_the_headers_is_a_key_of_its_own() -> None:
    fields = {"name": "azure", "url": "https://x.test/v1"}
    for headers, own in (({}, False), ({"X-Team": "a"}, False), ({"Api-Key": "secret"}, True)):
        settings = UpstreamSettings.model_validate({**fields, "headers": headers})
        assert has_own_credential(settings) is own
    health = UpstreamHealth([settings])
    health.consume([event("failed", upstream="azure", attempts=(401,))])
    assert of(health, "azure")["reason"] == "status 401: it rejects the key in headers"


def test_a_failure_is_the_present_state_for_a_minute_or_while_the_upstream_is_open(health: UpstreamHealth) -> None:
    now = time.time()
    for age, until, present in ((0.0, 0.0, True), (90.0, now + 100.0, True), (90.0, now - 89.0, False)):
        failed = event("failed", time=now - age, seconds=0.0, upstream="a", attempts=(503,), open_until=until)
        health.consume([failed])
        row = of(health, "a")
        assert (row["state"], row["last_failure"], row["failing_now"]) == ("failing", now - age, present)
    health.consume([event("miss", upstream="a", attempts=(200,))])
    assert (of(health, "a")["last_failure"], of(health, "a")["failing_now"]) == (None, False)
