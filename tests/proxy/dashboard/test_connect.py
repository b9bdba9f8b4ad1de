"""The commands under "Connect an app", executed as shown."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from knapcache.proxy.settings.secrets import digest_of
from knapcache.testing import FakeUpstream
from tests.support.browser import visit, wait_for_data
from tests.support.programs import find_module, find_program
from tests.support.running_proxy import RunningProxy

TOKEN = "the-admin-token-of-this-test"
KEY = "a-key-of-this-tenant-that-is-long"
LOCAL: dict[str, Any] = {"upstreams": [{"url": "local"}]}
TENANTS: dict[str, Any] = {"tenants": [{"name": "team", "keys": [digest_of(KEY)]}]}

find_program("curl", "curl")


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeUpstream]:
    with FakeUpstream() as server:
        yield server


def execute(command: str) -> dict[str, Any]:
    """Run a command as a user does who has pasted it, with a provider's key in the environment."""
    env = {**os.environ, "OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shown(browser: Browser, proxy: RunningProxy) -> tuple[str, str]:
    """Return the shell command and the lines for OpenAI's SDK that the page shows."""
    with visit(browser, f"{proxy.url}/dashboard#token={TOKEN}") as page:
        wait_for_data(page)
        expect(page.locator("#welcome")).to_be_visible()
        first = page.locator("#welcome pre").all_inner_texts()
        page.click("#connect")
        again = page.locator("#panel pre").all_inner_texts()
    assert first == again
    return first[0], first[1]


@pytest.mark.parametrize(
    ("options", "has_key"),
    [
        ({}, "$OPENAI_API_KEY"),
        (TENANTS, "YOUR_TENANT_KEY"),
        ({"allow_anonymous": False, "kind": "anthropic"}, "$ANTHROPIC"),
    ],
    ids=["provider's key", "tenant", "anthropic"],
)
def test_the_shown_curl_command_works(
    browser: Browser, provider: FakeUpstream, tmp_path: Path, options: dict[str, Any], has_key: str
) -> None:
    options = dict(options)
    anthropic = options.pop("kind", "") == "anthropic"
    url = provider.url if anthropic else provider.openai_url
    upstream = {"name": "fake", "url": url, "kind": "anthropic" if anthropic else "openai"}
    with RunningProxy(tmp_path, url, upstreams=[upstream], policy="lru", admin_token=TOKEN, **options) as proxy:
        curl, sdk = shown(browser, proxy)
        assert proxy.url in curl
        assert has_key in curl
        if options == TENANTS:
            assert 'api_key="YOUR_TENANT_KEY"' in sdk
            assert execute(curl)["error"]["type"], "the placeholder is no key"
        answer = execute(curl.replace("YOUR_TENANT_KEY", KEY))
    assert ("content" if anthropic else "choices") in answer, answer


@pytest.mark.parametrize("options", [{}, pytest.param(TENANTS, marks=pytest.mark.long)], ids=["no key", "tenant"])
def test_the_shown_curl_command_works_with_the_embedded_model(
    browser: Browser, tmp_path: Path, options: dict[str, Any]
) -> None:
    find_module("xllamacpp", "the extra local")
    with RunningProxy(tmp_path, "", policy="lru", admin_token=TOKEN, **LOCAL, **options) as proxy:
        curl, sdk = shown(browser, proxy)
        assert '"model": "smollm2-135m"' in curl
        assert ("Authorization" in curl) == bool(options)
        assert 'model="smollm2-135m"' in sdk
        curl = curl.replace('"messages"', '"max_tokens": 4, "messages"')  # the answer may be short here
        assert execute(curl.replace("YOUR_TENANT_KEY", KEY))["model"] == "smollm2-135m"
