"""Whose answers are whose: nobody gets another's, everybody gets their own."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.serve.conftest import Start
from tests.support.running_proxy import RunningProxy


def key_of(k: int) -> str:
    return f"kc-tenant-{k}-{'x' * 20}"


def tenant(k: int, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(key_of(k).encode()).hexdigest()
    return {"name": f"tenant-{k}", "keys": [f"sha256:{digest}"], **more}


def ask(
    client: httpx.Client, key: str, text: str = "hello", *, stream: bool = False, headers: dict[str, str] | None = None
) -> httpx.Response:
    said = {"authorization": f"Bearer {key}", **(headers or {})}
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
    return client.post("/chat/completions", json=body, headers=said)


def matrix(proxy: RunningProxy, upstream: FakeUpstream, tenants: int, questions: int) -> None:
    """All ask all questions, twice: the first time each pays, the second time nobody does."""
    with httpx.Client(base_url=proxy.openai) as client:
        for round_ in ("miss", "hit", "hit"):
            for k in range(tenants):
                for q in range(questions):
                    answer = ask(client, key_of(k), f"question {q}", stream=(k + q) % 2 == 0)
                    assert answer.headers["x-knapcache"] == round_, (k, q)
                    assert f"question {q}" in answer.text or f"{q}" in answer.text
    assert upstream.count() == tenants * questions


def test_callers_without_tenants_are_kept_apart_by_their_own_keys(proxy: RunningProxy, upstream: FakeUpstream) -> None:
    matrix(proxy, upstream, 4, 4)
    assert {call.headers["authorization"] for call in upstream.calls} == {f"Bearer {key_of(k)}" for k in range(4)}


def test_tenants_are_kept_apart(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(tenants=[tenant(k) for k in range(4)])
    matrix(proxy, upstream, 4, 4)
    assert not any("authorization" in call.headers for call in upstream.calls), "a key of ours left the house"


@pytest.mark.long
def test_ten_tenants_and_ten_questions(start: Start, upstream: FakeUpstream) -> None:
    matrix(start(tenants=[tenant(k) for k in range(10)]), upstream, 10, 10)


def test_a_group_shares_and_others_do_not(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(tenants=[tenant(0, group="us"), tenant(1, group="us"), tenant(2)])
    with httpx.Client(base_url=proxy.openai) as client:
        assert [ask(client, key_of(k)).headers["x-knapcache"] for k in range(3)] == ["miss", "hit", "miss"]
    assert upstream.count() == 2


def test_sharing_is_never_the_clients_choice(start: Start) -> None:
    proxy = start(tenants=[tenant(0), tenant(1)])
    with httpx.Client(base_url=proxy.openai) as client:
        ask(client, key_of(0))
        for name in ("x-knapcache-namespace", "x-namespace", "openai-organization", "x-tenant"):
            found = ask(client, key_of(1), headers={name: "tenant-0", "cache-control": "no-store"})
            assert found.headers["x-knapcache"] == "miss"


def test_everybody_shares_where_that_is_set(start: Start, upstream: FakeUpstream) -> None:
    proxy = start(share_all=True)
    with httpx.Client(base_url=proxy.openai) as client:
        assert [ask(client, f"key {k}").headers["x-knapcache"] for k in range(3)] == ["miss", "hit", "hit"]
    assert upstream.count() == 1


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eA=="}])
def test_strangers_are_refused(start: Start, upstream: FakeUpstream, headers: dict[str, str]) -> None:
    proxy = start(tenants=[tenant(0)])
    for path in ("/chat/completions", "/models", "/files"):
        answer = httpx.post(f"{proxy.openai}{path}", json={"model": "m"}, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    assert upstream.count() == 0


def test_the_providers_key_is_ours_to_send_and_nobody_sees_it(
    start: Start, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDERS_KEY", "sk-the-providers-own")
    proxy = start(upstreams=[{"name": "fake", "url": upstream.openai, "key_env": "PROVIDERS_KEY"}])
    with httpx.Client(base_url=proxy.openai) as client:
        for _ in range(2):
            answer = ask(client, "the-callers-own", headers={"x-api-key": "another", "openai-organization": "org"})
            assert "sk-the-providers-own" not in f"{answer.headers}{answer.text}"
    sent = upstream.calls[0].headers
    assert sent["authorization"] == "Bearer sk-the-providers-own"
    assert "the-callers-own" not in str(sent)
    assert "x-api-key" not in sent
    assert "openai-organization" not in sent


def test_quotas_hold(start: Start) -> None:
    proxy = start(tenants=[tenant(0, quota=20_000), tenant(1)])
    with httpx.Client(base_url=proxy.openai) as client:
        for k in range(40):
            ask(client, key_of(0), f"{k} " + "x" * 1000)
            ask(client, key_of(1), f"{k} " + "x" * 1000)
    rows = proxy.proxy.cache.entries(limit=1000)["rows"]
    taken: dict[str, int] = {}
    for row in rows:
        name = proxy.proxy.authenticator.name_of(row["tenant"])
        taken[name] = taken.get(name, 0) + row["size"]
    assert 0 < taken["tenant-0"] <= 20_000 < taken["tenant-1"]
