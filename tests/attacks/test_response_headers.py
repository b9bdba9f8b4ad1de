"""Headers and pages of an upstream do not act on the proxy's own origin, on which the dashboard is."""

from __future__ import annotations

import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import CHAT, chat, get, message
from tests.support.recording_upstream import RecordingUpstream, plain, send

FOREIGN = (
    "Strict-Transport-Security: max-age=31536000", 'Alt-Svc: h3=":443"', "Set-Cookie: session=x", "Set-Cookie2: a=b",
    'Clear-Site-Data: "*"', "Service-Worker-Allowed: /", "Access-Control-Allow-Origin: *",
    "Access-Control-Allow-Credentials: true", "Content-Security-Policy-Report-Only: default-src *", "Refresh: 0; url=/",
    "X-Frame-Options: ALLOWALL", "Report-To: {}", "NEL: {}", "Cross-Origin-Resource-Policy: cross-origin",
    "Permissions-Policy: camera=*", "Referrer-Policy: unsafe-url", "Public-Key-Pins: x", "Keep-Alive: timeout=5",
    "Proxy-Authenticate: Basic", "Upgrade: h2c", "X-Nominated: 1", "Connection: keep-alive, X-Nominated",
    "Trailer: X-Late", "X-Knapcache-Key: 00", "Cache-Status: evil; hit", "Access-Control-Allow-Origin:",
    # The last one is empty: so does llama.cpp's server send it with every response.
)  # fmt: skip
OWN = ("content-security-policy", "x-content-type-options")
PAGE = b"<html><script>fetch('/admin')</script></html>"
INVALID = b'{"model": "m", "messages": [NaN]}'
REQUESTS = {
    "passthrough": get("/v1/models"),
    "bypass": message(f"POST {CHAT} HTTP/1.1", "Content-Type: application/json", body=INVALID),
    "miss": chat("a page"),
    "stream": chat("a page", stream=True),
    "embeddings": message(
        "POST /v1/embeddings HTTP/1.1",
        "Content-Type: application/json",
        body=b'{"model": "m", "input": ["one page", "two pages"]}',
    ),
}


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error", "404 Not Found"])
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/xhtml+xml", "TEXT/HTML; x", ""])
def test_pages_are_sandboxed_and_headers_for_browsers_dropped(
    connect: Connect, upstream: RecordingUpstream, request_: bytes, status: str, kind: str
) -> None:
    headers = (*FOREIGN, "Content-Security-Policy: default-src *", f"Content-Type: {kind}")
    upstream.always(send(plain(PAGE, *headers, status=status)))
    found = connect().send(request_).response()
    assert (found.status, found.body) == (int(status[:3]), PAGE)
    assert found.header("x-content-type-options") == "nosniff"
    policy = found.header("content-security-policy") or ""
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert "allow-" not in policy
    names = {name for name, _ in found.headers} - {"cache-status", "x-knapcache-key"}
    assert names.isdisjoint(header.partition(":")[0].lower() for header in FOREIGN)
    assert "evil" not in str(found.headers)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/problem+json; charset=utf-8", "audio/mpeg", "image/png", "text/plain"]
)
def test_api_types_are_left_alone(connect: Connect, upstream: RecordingUpstream, kind: str) -> None:
    upstream.script(send(plain(b"{}", f"Content-Type: {kind}", "X-Ratelimit-Remaining: 5", "Retry-After: 1")))
    found = connect().send(REQUESTS["passthrough"]).response()
    assert found.header("content-type") == kind
    assert found.header("x-ratelimit-remaining") == "5"
    assert {name for name, _ in found.headers}.isdisjoint(OWN)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_redirects_are_returned_and_not_followed(
    connect: Connect, upstream: RecordingUpstream, request_: bytes
) -> None:
    location = f"Location: {upstream.url}/v1/elsewhere"
    upstream.script(send(plain(b"", location, status="307 Temporary Redirect")))
    assert connect().send(request_).response().status == 307
    assert len(upstream.requests) == 1


def test_a_long_request_id_is_not_stored(connect: Connect, upstream: RecordingUpstream) -> None:
    answer = b'{"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}'  # noqa: E501
    for length, stored in ((100, True), (5000, False)):
        request_ = chat(f"id of {length}")
        upstream.script(send(plain(answer, "Content-Type: application/json", f"X-Request-Id: {'i' * length}")))
        for outcome in ("miss", "hit", "hit", "hit"):
            found = connect().send(request_).response()
            assert found.outcome == outcome
            assert (found.header("x-request-id") is not None) == (outcome == "miss" or stored)
