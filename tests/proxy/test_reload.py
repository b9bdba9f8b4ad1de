"""Settings that are read again: what is applied, what needs a restart, and what changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import LoadedSettings
from knapcache.proxy.settings.secrets import digest_of
from tests.support.proxy_fixtures import Start
from tests.support.proxy_scenarios import key_of, tenant
from tests.support.running_proxy import RunningProxy


def reload(proxy: RunningProxy, **changes: Any) -> None:
    settings = Settings(**proxy.proxy.settings.model_dump() | changes)
    asyncio.run(proxy.proxy.reload(lambda: LoadedSettings(settings, {})))


def statuses(proxy: RunningProxy) -> list[int]:
    """Return the statuses of requests with the keys of two tenants."""
    url = f"{proxy.openai_url}/models"
    return [httpx.get(url, headers={"authorization": f"Bearer {key_of(k)}"}).status_code for k in range(2)]


def test_tenants_are_applied_and_other_changes_are_named(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="knapcache.serve")
    proxy = start(tenants=[tenant(0)])
    assert statuses(proxy) == [200, 401]
    reload(proxy, tenants=[tenant(1)])
    assert statuses(proxy) == [401, 200]
    assert caplog.messages[-1].startswith("Settings reloaded: admin_token, admin_tokens, tenants")
    reload(proxy, tenants=[tenant(0, quota="1MB")], grace=7.0)
    assert statuses(proxy) == [200, 401]
    assert caplog.messages[-1] == "Changed settings that need a restart: grace, quota of tenants"
    assert proxy.proxy.settings.grace == 2.0


def test_admin_tokens_are_applied(start: Start) -> None:
    proxy, tokens = start(), ["token-of-alice-" + "a" * 30, "token-of-bob-" + "b" * 30]
    for applied in ([], tokens[:1], tokens[1:]):
        rows = [{"name": "further", "role": "read-only", "digest": digest_of(token)} for token in applied]
        reload(proxy, admin_tokens=rows)
        for token in tokens:
            found = httpx.get(f"{proxy.url}/admin/v1/summary", headers={"authorization": f"Bearer {token}"})
            assert found.status_code == (200 if token in applied else 401)


@pytest.mark.parametrize(("before", "after"), [([], [tenant(0)]), ([tenant(0)], [])])
def test_the_step_from_no_tenants_to_some_or_back_changes_nothing(
    start: Start, caplog: pytest.LogCaptureFixture, before: list[Any], after: list[Any]
) -> None:
    proxy = start(tenants=before)
    found = statuses(proxy)
    reload(proxy, tenants=after)
    assert statuses(proxy) == found
    assert "the step from no tenants to some, or back, needs a restart" in caplog.messages[-1]
