"""Headers that reach the upstream: those that may change an answer are part of its key, also inside a group."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.support.raw_client import CHAT, RawClient, chat, exchange, get
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import within

VALID_KEY, BOBS_KEY = "kc-alice-xxxxxxxxxxxxxxxx", "kc-bob-xxxxxxxxxxxxxxxxxx"
TEXTS = (f"headers {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    keys = {"a": VALID_KEY, "b": BOBS_KEY}
    tenants = [{"name": name, "keys": [digest_of(key)], "group": "us"} for name, key in keys.items()]
    return {"tenants": tenants, "ignored_headers": ["X-Own-Trace-*"]}


def outcomes(proxy: RunningProxy, *sent: bytes) -> list[str | None]:
    with RawClient(proxy.url) as client:
        return [client.send(each).responses(1)[0].outcome for each in sent]


COUNTING = [
    "azureml-model-deployment: blue", "X-Amzn-SageMaker-Target-Model: b", "extra-parameters: pass-through",
    "openai-version: 2020-01-01", "Accept-Language: de", "X-Anything: 1", "anthropic-beta: tools", "openai-beta: x=1",
    "anthropic-version: 2023-06-01", "x-goog-user-project: p", "Prefer: respond-async", "Content-Language: de",
    "Content-Type: text/plain", "Range: bytes=0-1", "X-Latin: \xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("header", COUNTING)
def test_a_header_that_may_change_the_answer_is_part_of_the_key(proxy: RunningProxy, header: str) -> None:
    text = next(TEXTS)
    plain, own = chat(text, key=BOBS_KEY), chat(text, header, key=VALID_KEY)
    other = chat(text, header.partition(":")[0] + ": other", key=BOBS_KEY)
    assert outcomes(proxy, own, plain, plain, plain, own, other, plain) == [
        "miss", "miss", "hit", "hit", "hit", "miss", "hit",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        "User-Agent: other", "X-Stainless-Retry-Count: 3", "traceparent: 00-1-2-03", "x-request-id: 5", "Accept: */*",
        "Idempotency-Key: 1", "Accept-Language: *", "X-Real-IP: 10.0.0.1", "Sec-Fetch-Mode: cors", "X-Own-Trace-Id: 1",
        "X-Forwarded-For: 10.0.0.1", "Cookie: a=b", "baggage: a=b",
    ],
)  # fmt: skip
def test_a_neutral_header_is_not_part_of_the_key(proxy: RunningProxy, header: str) -> None:
    text = next(TEXTS)
    assert outcomes(proxy, chat(text, header, key=VALID_KEY), chat(text, key=BOBS_KEY)) == ["miss", "hit"]


def test_all_values_of_a_repeated_header_count(proxy: RunningProxy, upstream: RecordingUpstream) -> None:
    text = next(TEXTS)
    one, two = "anthropic-beta: one", "anthropic-beta: two"
    sent = [chat(text, *headers, key=VALID_KEY) for headers in ((one, two), (two,), (one,), (two, one), (one, two))]
    assert outcomes(proxy, *sent) == ["miss", "miss", "miss", "miss", "hit"]
    values = [", ".join(request.values("anthropic-beta")) for request in upstream.requests]
    assert values == ["one, two", "two", "one", "two, one"]


def test_two_credentials_are_no_credential_of_a_tenant(proxy: RunningProxy, upstream: RecordingUpstream) -> None:
    for first, second in ((VALID_KEY, "other"), ("other", VALID_KEY), (VALID_KEY, BOBS_KEY)):
        (found,) = exchange(proxy.url, chat("x", f"Authorization: Bearer {second}", key=first))
        assert found.status in (400, 401)
    assert upstream.requests == []


def test_requests_that_differ_in_a_header_are_not_coalesced(connect: Connect, upstream: RecordingUpstream) -> None:
    upstream.delay = 0.5
    text = next(TEXTS)
    with within(upstream.delay / 2, "three requests at once"):
        clients = [connect().send(chat(text, f"x-deployment: {name}", key=VALID_KEY)) for name in ("a", "b", "a")]
    found = [client.responses(1)[0] for client in clients]
    assert sorted(str(each.outcome) for each in found) == ["coalesced", "miss", "miss"]
    assert len(upstream.requests) == 2
    assert found[0].json()["id"] == found[2].json()["id"] != found[1].json()["id"]


@pytest.mark.parametrize("path", ["/v1/chat%2fcompletions", "/v1/%63hat/completions", "/chat/completions", CHAT + "?"])
def test_the_path_is_sent_in_one_spelling(proxy: RunningProxy, upstream: RecordingUpstream, path: str) -> None:
    """Requests with one key go to one route of the upstream."""
    text = next(TEXTS)
    spelled = chat(text, key=VALID_KEY).replace(CHAT.encode(), path.encode(), 1)
    assert outcomes(proxy, spelled, chat(text, key=BOBS_KEY)) == ["miss", "hit"]
    assert upstream.targets == [f"POST {CHAT}"]


def test_an_idempotency_key_does_not_select_a_stored_answer(proxy: RunningProxy, upstream: RecordingUpstream) -> None:
    """It is sent with requests whose answers are not stored."""
    exchange(proxy.url, chat(next(TEXTS), "Idempotency-Key: 7", key=VALID_KEY))
    exchange(proxy.url, get("/v1/models", "Idempotency-Key: 7", key=VALID_KEY), method="GET")
    assert [request.values("idempotency-key") for request in upstream.requests] == [[], ["7"]]


def test_headers_of_the_connection_and_the_client_are_not_sent(
    proxy: RunningProxy, upstream: RecordingUpstream
) -> None:
    headers = ("Connection: keep-alive, X-Hop", "X-Hop: 1", "Cookie: c=1", "X-Real-IP: 10.0.0.1", "Via: 1.1 x",
               "Forwarded: for=x", "TE: trailers", "Proxy-Authorization: Basic eA==", "Keep-Alive: 5",
               "X-Forwarded-Host: evil", "X-Knapcache-Namespace: x")  # fmt: skip
    exchange(proxy.url, chat(next(TEXTS), *headers, key=VALID_KEY))
    exchange(proxy.url, get("/v1/models", *headers, key=VALID_KEY), method="GET")
    assert len(upstream.requests) == 2
    for request in upstream.requests:
        sent = {name for name, _ in request.headers}
        assert sent.isdisjoint(header.partition(":")[0].lower() for header in headers)
        assert VALID_KEY not in str(request.headers)
