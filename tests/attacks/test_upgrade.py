"""Requests with Upgrade. The parser does not read the body of one: its bytes would be the next request."""

from __future__ import annotations

import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import chat, chat_body, chunked, get, message
from tests.support.recording_upstream import RecordingUpstream

PATHS = ["/v1/chat/completions", "/v1/files", "/admin/v1/login", "/healthz", "/nowhere"]
UPGRADES = ["h2c", "websocket", "TLS/1.0", "foo"]
SMUGGLED = chat("smuggled", key="victim")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
def test_a_body_after_an_upgrade_is_not_a_request(
    connect: Connect, upstream: RecordingUpstream, path: str, upgrade: str, method: str
) -> None:
    headers = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    start = f"{method} {path} HTTP/1.1"
    for sent in (
        message(start, *headers, body=SMUGGLED),
        message(start, *headers, "Transfer-Encoding: chunked", length=False) + chunked(SMUGGLED),
        message(start, *headers, "Expect: 100-continue", body=SMUGGLED),
    ):
        (response,) = connect().send(sent).responses_until_close()
        assert (response.status, response.header("connection")) == (400, "close")
    assert upstream.requests == []


def test_an_upgrade_without_a_body_is_ignored(connect: Connect) -> None:
    for path in ("/healthz", "/v1/models"):
        sent = get(path, "Connection: Upgrade", "Upgrade: h2c")
        (response,) = connect().send(sent + SMUGGLED).responses_until_close()  # what follows is not served
        assert (response.status, response.header("connection")) == (200, "close")


def test_an_upgrade_with_an_empty_body_is_ignored(connect: Connect) -> None:
    sent = message("POST /v1/chat/completions HTTP/1.1", "Connection: Upgrade", "Upgrade: h2c", body=b"")
    (response,) = connect().send(sent).responses_until_close()
    assert response.header("connection") == "close"


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/chat/completions", "/admin/v1/summary"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_websockets_are_refused(connect: Connect, upstream: RecordingUpstream, path: str, method: str) -> None:
    headers = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    sent = message(f"{method} {path} HTTP/1.1", *headers, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", length=False)
    (response,) = connect().send(sent).responses_until_close()
    assert (response.status, response.json()["error"]["message"]) == (400, "WebSocket is not supported.")
    assert upstream.requests == []


def test_an_upgrade_header_without_the_connection_option_is_an_ordinary_header(connect: Connect) -> None:
    client = connect()
    for text in ("one", "two"):
        assert client.send(chat(text, "Upgrade: h2c")).response().text == f"You said: {text}"


def test_an_upgrade_after_a_request_does_not_end_its_response(connect: Connect) -> None:
    upgrade = message("POST /v1/files HTTP/1.1", "Connection: Upgrade", "Upgrade: h2c", body=chat_body("no"))
    (response,) = connect().send(chat("first") + upgrade).responses_until_close()
    assert response.text == "You said: first"
