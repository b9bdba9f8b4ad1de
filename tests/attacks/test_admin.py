"""Attacks on the admin API: addresses, tokens, sessions, origins, paths and labels, against the whole proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from knapcache.serve.admin.auth import MAX_WRONG_TOKENS
from knapcache.serve.settings.secrets import digest_of
from knapcache.testing import FakeUpstream
from tests.support.running_proxy import RunningProxy

KEY = "kc-a-tenant-of-these-tests"


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as found:
        yield found


def guess(client: httpx.Client, number: int, address: str) -> int:
    """Send a wrong token with a forged address, and return the status."""
    headers = {"x-forwarded-for": address, "forwarded": f"for={address}", "x-real-ip": address}
    return client.post("/admin/v1/login", json={"token": f"wrong {number}"}, headers=headers).status_code


def test_a_forged_address_does_not_lift_the_limit_on_wrong_tokens(upstream: FakeUpstream, tmp_path: Path) -> None:
    with RunningProxy(tmp_path, upstream.openai_url) as proxy, httpx.Client(base_url=proxy.url) as client:
        found = [guess(client, k, f"10.0.0.{k}") for k in range(MAX_WRONG_TOKENS + 1)]
        assert found == [401] * MAX_WRONG_TOKENS + [429]


def test_behind_a_trusted_proxy_one_client_does_not_lock_out_another(upstream: FakeUpstream, tmp_path: Path) -> None:
    settings = {"trusted_proxies": "127.0.0.0/8"}
    with RunningProxy(tmp_path, upstream.openai_url, **settings) as proxy, httpx.Client(base_url=proxy.url) as client:
        # The part that the client itself sent is on the left; the trusted proxy appended the address on the right.
        found = [guess(client, k, f"10.9.9.{k}, 10.0.0.1") for k in range(MAX_WRONG_TOKENS + 1)]
        assert found == [401] * MAX_WRONG_TOKENS + [429]
        assert guess(client, 0, "10.0.0.2") == 401


def test_with_tenants_metrics_need_the_admin_token(upstream: FakeUpstream, tmp_path: Path) -> None:
    tenants = [{"name": "search", "keys": [digest_of(KEY)]}]
    with RunningProxy(tmp_path, upstream.openai_url, tenants=tenants) as proxy:
        for headers in ({}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            assert httpx.get(f"{proxy.url}/metrics", headers=headers).status_code == 401
        token = {"authorization": f"Bearer {proxy.proxy.admin_token}"}
        assert "knapcache_requests_total" in httpx.get(f"{proxy.url}/metrics", headers=token).text
