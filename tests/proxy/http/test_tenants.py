"""Isolation: a tenant gets its own answers and no other's."""

from __future__ import annotations

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.support.proxy_fixtures import Start
from tests.support.proxy_scenarios import key_of, tenant, tenant_matrix
from tests.support.running_proxy import RunningProxy


def post(
    client: httpx.Client, key: str, text: str = "hello", *, stream: bool = False, headers: dict[str, str] | None = None
) -> httpx.Response:
    sent = {"authorization": f"Bearer {key}", **(headers or {})}
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
    return client.post("/chat/completions", json=body, headers=sent)


def test_without_tenants_clients_are_isolated_by_their_own_keys(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    tenant_matrix(proxy, upstream, 4, 4)
    assert {call.headers["authorization"] for call in upstream.calls} == {f"Bearer {key_of(k)}" for k in range(4)}


def test_tenants_are_isolated(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(tenants=[tenant(k) for k in range(4)])
    tenant_matrix(proxy, upstream, 4, 4)
    assert not any("authorization" in call.headers for call in upstream.calls), "a tenant's key was sent upstream"


@pytest.mark.long
def test_ten_tenants_and_ten_questions(start: Start, upstream: FakeUpstream) -> None:
    tenant_matrix(start(tenants=[tenant(k) for k in range(10)]), upstream, 10, 10)


def test_a_group_shares_and_others_do_not(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(tenants=[tenant(0, group="us"), tenant(1, group="us"), tenant(2)])
    with httpx.Client(base_url=proxy.openai_url) as client:
        assert [post(client, key_of(k)).headers["x-knapcache"] for k in range(3)] == ["miss", "hit", "miss"]
    assert upstream.count() == 2


def test_share_all_shares_answers(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(share_all=True)
    with httpx.Client(base_url=proxy.openai_url) as client:
        assert [post(client, f"key {k}").headers["x-knapcache"] for k in range(3)] == ["miss", "hit", "hit"]
    assert upstream.count() == 1


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eA=="}])
def test_unknown_credentials_are_rejected(start: Start, upstream: FakeUpstream, headers: dict[str, str]) -> None:
    proxy = start(tenants=[tenant(0)])
    for path in ("/chat/completions", "/models", "/files"):
        answer = httpx.post(f"{proxy.openai_url}{path}", json={"model": "m"}, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    assert upstream.count() == 0


def test_the_upstreams_key_replaces_the_clients_and_is_not_revealed(
    start: Start, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDERS_KEY", "sk-the-providers-own")
    proxy = start(upstreams=[{"name": "fake", "url": upstream.openai_url, "key_env": "PROVIDERS_KEY"}])
    with httpx.Client(base_url=proxy.openai_url) as client:
        for _ in range(2):
            answer = post(client, "the-clients-own", headers={"x-api-key": "another", "openai-organization": "org"})
            assert "sk-the-providers-own" not in f"{answer.headers}{answer.text}"
    sent = upstream.calls[0].headers
    assert sent["authorization"] == "Bearer sk-the-providers-own"
    assert "the-clients-own" not in str(sent)
    assert "x-api-key" not in sent
    assert "openai-organization" not in sent


def test_quotas_are_respected(start: Start) -> None:
    proxy = start(tenants=[tenant(0, quota=20_000), tenant(1)])
    with httpx.Client(base_url=proxy.openai_url) as client:
        for k in range(40):
            post(client, key_of(0), f"{k} " + "x" * 1000)
            post(client, key_of(1), f"{k} " + "x" * 1000)
    rows = proxy.proxy.cache.entries(limit=1000)["rows"]
    sizes: dict[str, int] = {}
    for row in rows:
        name = proxy.proxy.authenticator.name_of(row["tenant"])
        sizes[name] = sizes.get(name, 0) + row["size"]
    assert 0 < sizes["tenant-0"] <= 20_000 < sizes["tenant-1"]
