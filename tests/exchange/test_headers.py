"""Which headers are part of a key, which reach the caller, and which separate callers.

The lists are written out here: a header that leaves or enters one of them changes who shares an answer, or what a
browser does with one.
"""

from __future__ import annotations

import pytest

from knapcache.exchange import headers as subject
from knapcache.exchange.headers import (
    SANDBOX,
    credentials_namespace,
    forwarded_headers,
    is_neutral,
    nominated,
    request_ids,
    sandboxed,
    vary_context,
)

CREDENTIALS = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "openai-organization",
    "openai-project",
    "cf-aig-authorization",
    "helicone-auth",
    "ocp-apim-subscription-key",
    "proxy-authorization",
    "x-amz-security-token",
    "x-litellm-api-key",
    "x-portkey-api-key",
    "x-portkey-virtual-key",
]
NEUTRAL = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "anthropic-dangerous-direct-browser-access",
    "b3",
    "baggage",
    "cache-control",
    "cdn-loop",
    "cf-aig-cache-ttl",
    "cf-aig-skip-cache",
    "connection",
    "content-encoding",
    "content-length",
    "cookie",
    "date",
    "dnt",
    "expect",
    "forwarded",
    "from",
    "x-knapcache-semantic",
    "x-knapcache-tags",
    "helicone-cache-enabled",
    "x-knapcache-semantic",
    "x-knapcache-tags",
    "host",
    "http-referer",
    "idempotency-key",
    "keep-alive",
    "langsmith-trace",
    "origin",
    "pragma",
    "priority",
    "proxy-connection",
    "referer",
    "request-id",
    "sentry-trace",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "true-client-ip",
    "uber-trace-id",
    "upgrade",
    "upgrade-insecure-requests",
    "user-agent",
    "via",
    "x-amzn-trace-id",
    "x-client-ip",
    "x-client-request-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-goog-api-client",
    "x-ms-client-request-id",
    "x-portkey-cache-force-refresh",
    "x-real-ip",
    "x-request-id",
    "x-request-start",
    "x-requested-with",
    "x-title",
    "x-trace-id",
]
NEUTRAL_PREFIXES = [
    "cf-aig-metadata",
    "cf-connecting-",
    "cf-ip",
    "cf-ray",
    "cf-visitor",
    "cf-worker",
    "helicone-cache-",
    "helicone-property-",
    "helicone-request-id",
    "helicone-session-",
    "helicone-user-id",
    "sec-",
    "x-b3-",
    "x-claude-code-",
    "x-datadog-",
    "x-envoy-",
    "x-forwarded-",
    "x-knapcache",
    "x-portkey-cache-",
    "x-portkey-metadata",
    "x-portkey-span-",
    "x-portkey-trace-",
    "x-stainless-",
]
NOT_FORWARDED = [
    "accept-ch",
    "alt-svc",
    "cache-status",
    "clear-site-data",
    "connection",
    "content-encoding",
    "content-length",
    "content-security-policy",
    "content-security-policy-report-only",
    "critical-ch",
    "expect-ct",
    "keep-alive",
    "nel",
    "observe-browsing-topics",
    "origin-agent-cluster",
    "origin-trial",
    "permissions-policy",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "public-key-pins",
    "public-key-pins-report-only",
    "referrer-policy",
    "refresh",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "sourcemap",
    "speculation-rules",
    "strict-transport-security",
    "supports-loading-mode",
    "te",
    "timing-allow-origin",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-content-type-options",
    "x-dns-prefetch-control",
    "x-frame-options",
    "x-sourcemap",
    "x-xss-protection",
]
NOT_FORWARDED_PREFIXES = ["access-control-", "cross-origin-", "x-knapcache"]


def test_neutral_headers_are_not_part_of_the_key() -> None:
    assert set(subject.NEUTRAL_HEADERS) == {*NEUTRAL, *CREDENTIALS}
    assert list(subject.NEUTRAL_PREFIXES) == NEUTRAL_PREFIXES
    names = [*NEUTRAL, *CREDENTIALS, *(f"{prefix}x" for prefix in NEUTRAL_PREFIXES)]
    assert vary_context(dict.fromkeys(names, "any value")) == {}


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("accept-language", "*", True),
        ("accept-language", " * ", True),
        ("accept-language", "de", False),
        ("content-type", "application/json", True),
        ("content-type", "", True),
        ("content-type", "Application/JSON; charset=UTF-8", True),
        ("content-type", 'application/json; charset="utf-8"', True),
        ("content-type", "application/json; charset=latin-1", False),
        ("content-type", "text/plain", False),
        ("x-other", "", False),
        ("anthropic-version", "*", False),
    ],
)
def test_values_that_do_not_change_answers(name: str, value: str, neutral: bool) -> None:
    assert is_neutral(name, value) is neutral


def test_every_other_header_is_part_of_the_key() -> None:
    seen = {str(vary_context({}))}
    for headers in ({"x-a": "1"}, {"x-a": "2"}, {"x-b": "1"}, {"x-a": "1", "x-b": "1"}, {"anthropic-beta": "1"}):
        context = vary_context(headers)
        assert str(context) not in seen
        seen.add(str(context))
    for name in ("anthropic-version", "anthropic-beta", "openai-beta"):
        assert vary_context({name: "v", "x-a": "1"})[name] == "v"
    hashed = vary_context({"x-a": "secret value"})
    assert list(hashed) == ["headers"]
    assert "secret" not in str(hashed)
    assert vary_context({"x-a": "1", "x-b": "2"}) == vary_context({"x-b": "2", "x-a": "1"})


def test_ignored_headers_are_patterns() -> None:
    headers = {"x-mine-1": "a", "x-mine-2": "b"}
    assert vary_context(headers, ["x-mine-*"]) == {}
    assert vary_context(headers, ["x-mine-1"]) == vary_context({"x-mine-2": "b"}) != {}
    assert vary_context({"anthropic-beta": "b"}, ["*"]) == {"anthropic-beta": "b"}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_every_credential_separates_callers(name: str) -> None:
    one, other = credentials_namespace({name: "one"}), credentials_namespace({name: "other"})
    assert one is not None
    assert one.startswith("key-")
    assert one != other
    assert credentials_namespace({name: "one", "x-a": "1"}) == one
    assert len({credentials_namespace({each: "one"}) for each in CREDENTIALS}) == len(CREDENTIALS)
    assert credentials_namespace({"x-a": "1"}) is None


def test_headers_of_a_connection_a_client_or_an_origin_are_not_forwarded() -> None:
    assert set(subject.NOT_FORWARDED) == set(NOT_FORWARDED)
    assert list(subject.NOT_FORWARDED_PREFIXES) == NOT_FORWARDED_PREFIXES
    names = [*NOT_FORWARDED, *(f"{prefix}x" for prefix in NOT_FORWARDED_PREFIXES)]
    pairs = [(name.title(), "v") for name in names] + [(name, "v") for name in names]
    assert forwarded_headers([*pairs, ("X-Other", "1"), ("x-other", "2")]) == [("X-Other", "1"), ("x-other", "2")]


def test_headers_that_connection_nominates_are_not_forwarded() -> None:
    pairs = [
        ("Connection", "close, X-One"),
        ("connection", " x-two "),
        ("X-ONE", "1"),
        ("x-two", "2"),
        ("x-three", "3"),
    ]
    assert forwarded_headers(pairs) == [("x-three", "3")]
    assert nominated("a, B ,c") == {"a", "b", "c"}
    assert forwarded_headers([("Content-Length", "5"), ("Via", "1")], {"content-length"}) == [("Content-Length", "5")]


@pytest.mark.parametrize(
    ("content_type", "inert"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/problem+json", True),
        ("application/octet-stream", True),
        ("text/event-stream", True),
        ("text/plain", True),
        ("audio/mpeg", True),
        ("video/mp4", True),
        ("image/png", True),
        ("image/jpeg", True),
        ("image/webp", True),
        ("image/gif", True),
        ("image/avif", True),
        ("image/svg+xml", False),
        ("text/html", False),
        ("application/javascript", False),
        ("application/xml", False),
        ("application/jsonx", False),
        ("", False),
    ],
)
def test_answers_that_a_browser_may_run_are_sandboxed(content_type: str, inert: bool) -> None:
    headers = [("Content-Type", content_type), ("x-a", "1")]
    assert sandboxed(headers) == (headers if inert else [*headers, *SANDBOX])


def test_two_content_types_or_none_are_sandboxed() -> None:
    for headers in ([], [("content-type", "application/json"), ("content-type", "application/json")]):
        assert sandboxed(headers) == [*headers, *SANDBOX]
    assert dict(SANDBOX) == {
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    }


def test_request_ids_of_usual_length_are_stored() -> None:
    assert request_ids({"x-request-id": "a", "request-id": "b", "x-other": "c"}) == {
        "x-request-id": "a",
        "request-id": "b",
    }
    assert request_ids({"x-request-id": "", "request-id": "b" * 200}) == {"request-id": "b" * 200}
    assert request_ids({"x-request-id": "a" * 201}) == {}
