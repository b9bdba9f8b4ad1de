"""The Host and Origin headers: what a page of another site, or an ambiguous head, must not reach."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import WireResponse, chat_body
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy

APP = "https://app.example.com"


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {
        "allowed_origins": f"{APP}, chrome-extension://abc",
        "allowed_hosts": "127.0.0.1, localhost, llm.example.com",
    }


def post(connect: Connect, *headers: str, path: str = "/v1/chat/completions") -> WireResponse:
    body = chat_body("hello")
    lines = [f"POST {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "Authorization: Bearer k"]
    return connect().send("\r\n".join([*lines, "", ""]).encode() + body).response()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/healthz", "/admin/v1/purge", "/nowhere"])
@pytest.mark.parametrize("second", ["127.0.0.1", "evil.example"])
def test_two_host_headers_get_400(connect: Connect, upstream: RecordingUpstream, path: str, second: str) -> None:
    for hosts in (("127.0.0.1", second), (second, "127.0.0.1")):
        response = post(connect, *(f"Host: {host}" for host in hosts), path=path)
        assert (response.status, response.header("connection")) == (400, "close")
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:9"),
        ("localhost:8080", "http://localhost"),
        ("localhost", "http://localhost:9"),
        ("localhost:8080", "http://127.0.0.1:8080"),
        ("127.0.0.1:8080", "https://evil.example"),
        ("127.0.0.1:8080", "null"),
        ("127.0.0.1:8080", ""),
        ("127.0.0.1:8080", "http://127.0.0.1:8080.evil.example"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080@evil.example"),
        ("127.0.0.1:8080", "http://evil.example/127.0.0.1:8080"),
        ("127.0.0.1", "https://127.0.0.1:80"),
        ("127.0.0.1", "http://127.0.0.1:443"),
        ("127.0.0.1", "ftp://127.0.0.1"),
        ("127.0.0.1", "chrome-extension://other"),
        ("llm.example.com", "https://app.example.com.evil.example"),
        ("llm.example.com", "http://app.example.com"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/admin/v1/purge"])
def test_other_origins_get_403(
    connect: Connect, upstream: RecordingUpstream, path: str, host: str, origin: str
) -> None:
    assert post(connect, f"Host: {host}", f"Origin: {origin}", path=path).status == 403
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("localhost", "http://localhost"),
        ("LOCALHOST:80", "http://localhost"),
        ("llm.example.com", "https://llm.example.com"),  # TLS ends in front of the proxy
        ("llm.example.com:443", "https://llm.example.com"),
        ("llm.example.com", "https://llm.example.com:443"),
        ("llm.example.com", APP),
        ("llm.example.com", "chrome-extension://abc"),
    ],
)
def test_the_same_origin_and_allowed_ones_are_served(connect: Connect, host: str, origin: str) -> None:
    for path, status in (("/v1/chat/completions", 200), ("/v1/files", None)):
        response = post(connect, f"Host: {host}", f"Origin: {origin}", path=path)
        assert response.status == status or (status is None and response.status != 403)


def test_an_origin_that_may_use_v1_may_not_use_the_admin_api(connect: Connect, proxy: RunningProxy) -> None:
    token = proxy.proxy.admin_token
    headers = ("Host: llm.example.com", f"Origin: {APP}", f"X-Authorization: {token}")
    assert post(connect, *headers, path="/admin/v1/purge").status == 403


def test_an_unknown_host_gets_421(connect: Connect) -> None:
    assert post(connect, "Host: evil.example").status == 421
    assert post(connect).status == 421
