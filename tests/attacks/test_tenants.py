"""Isolation of tenants: no header, directive or credential trick gives access to another tenant's entries."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.support.raw_client import CHAT, chat, chat_body, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy

KEYS = [f"kc-tenant-{k}-xxxxxxxxxxxxxxxx" for k in range(3)]
VALID_KEY = KEYS[0]
TEXTS = (f"isolation {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"tenants": [{"name": f"tenant-{k}", "keys": [digest_of(key)]} for k, key in enumerate(KEYS)]}


def test_concurrent_requests_of_two_tenants_are_two_calls(connect: Connect, upstream: RecordingUpstream) -> None:
    upstream.delay, text = 0.3, next(TEXTS)
    clients = [connect().send(chat(text, key=key)) for key in KEYS]
    ids = {client.responses(1)[0].json()["id"] for client in clients}
    assert len(ids) == len(upstream.requests) == 3


def test_nothing_in_a_request_selects_another_tenants_entries(connect: Connect, proxy: RunningProxy) -> None:
    text = next(TEXTS)
    owner = connect().send(chat(text, key=KEYS[1])).response()
    namespace = proxy.proxy.authenticator.namespace_of("tenant-1")
    assert namespace is not None
    names = ("X-Knapcache-Namespace", "X-Namespace", "X-Tenant", "OpenAI-Organization", "OpenAI-Project", "X-User",
             "X-Forwarded-User", "Cf-Aig-Cache-Key", "X-Portkey-Cache-Namespace", "Helicone-Cache-Seed")  # fmt: skip
    tricks = [
        *(chat(text, f"{name}: {value}") for name in names for value in ("tenant-1", namespace)),
        *(chat(text, cache={"namespace": value}) for value in ("tenant-1", namespace)),
        *(chat(text, cache={"key": owner.header("x-knapcache-key"), "tenant": value}) for value in (namespace,)),
        chat(text, f"X-Api-Key: {KEYS[1][:-1]}"),
        chat(text, "Cookie: key=" + KEYS[1]),
        chat(text, user="tenant-1", metadata={"tenant": namespace}),
    ]
    client = connect()
    for trick in tricks:
        found = client.send(trick.replace(b"Bearer k\r\n", b"Bearer " + VALID_KEY.encode() + b"\r\n")).response()
        assert found.status == 200, trick
        assert found.json()["id"] != owner.json()["id"], trick


@pytest.mark.parametrize(
    "authorization",
    [
        "", "Bearer", "Bearer ", f"Bearer  {VALID_KEY}x", f"Basic {VALID_KEY}", f"bearer{VALID_KEY}", "Bearer null",
        f"Bearer {VALID_KEY[:-1]}", f"Bearer {VALID_KEY.upper()}", f"Bearer {VALID_KEY},{VALID_KEY}",
        f"Bearer {digest_of(VALID_KEY)}", f"Bearer {VALID_KEY}\xa0", "Bearer \xff\xfe",
    ],
)  # fmt: skip
def test_a_credential_that_is_not_a_tenants_gets_nothing(
    connect: Connect, upstream: RecordingUpstream, authorization: str
) -> None:
    connect().send(chat("isolation of credentials", key=VALID_KEY)).response()
    upstream.clear()
    for path in (CHAT, "/v1/models", "/v1/files"):
        headers = ("Content-Type: application/json", f"Authorization: {authorization}")
        body = chat_body("isolation of credentials")
        assert connect().send(message(f"POST {path} HTTP/1.1", *headers, body=body)).response().status == 401
    assert upstream.requests == []
