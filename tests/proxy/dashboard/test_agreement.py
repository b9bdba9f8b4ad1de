"""Settings, command line, admin API and page say the same about routes, limits, tags and upstreams."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
import pytest
from playwright.sync_api import Browser

from knapcache.cli.main import main
from knapcache.proxy.settings.loading import load
from knapcache.testing import FakeUpstream
from tests.support.browser import open_view, visit, wait_for_data
from tests.support.running_proxy import RunningProxy

SETTINGS = """
port = 0
policy = "lru"
shadows = []
path = {path}

[limits]
usd_per_day = 5.0
requests_per_minute = 40

[[upstreams]]
name = "main"
url = "{url}"

[[route]]
name = "evals"
model = ["gpt-4o*"]
field = {{ "metadata.purpose" = "eval" }}
ttl = "1h"
tags = ["evals"]
"""
BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}], "metadata": {"purpose": "eval"}}


def test_all_surfaces_agree(browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeUpstream() as upstream:
        file, request = tmp_path / "knapcache.toml", tmp_path / "request.json"
        file.write_text(SETTINGS.format(path=json.dumps(str(tmp_path / "data")), url=upstream.openai_url))
        request.write_text(json.dumps(BODY))

        assert main(["serve", "--config", str(file), "--show-settings", "--json"]) == 0
        shown = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
        assert main(["route", "test", str(request), "--config", str(file), "--json"]) == 0
        tested = json.loads(capsys.readouterr().out)
        (route,) = shown["route"]
        assert tested["route"] == route["name"] == "evals"
        assert tested["rules"] == route

        loaded = load(file).settings
        fields = {name: getattr(loaded, name) for name in loaded.model_fields_set if name != "path"}
        with RunningProxy(tmp_path / "data", upstream.openai_url, **fields) as proxy:
            with openai.OpenAI(base_url=proxy.openai_url, api_key="any", max_retries=0) as sdk:
                answer = sdk.chat.completions.with_raw_response.create(**BODY)  # type: ignore[call-overload]
            assert answer.headers["x-knapcache-route"] == "evals"
            assert answer.headers["x-knapcache-upstream"] == "main"
            token = proxy.proxy.admin_token
            admin = httpx.Client(base_url=f"{proxy.url}/admin/v1", headers={"authorization": f"Bearer {token}"})
            with admin:
                summary, limits = admin.get("/summary").json(), admin.get("/limits").json()["rows"]
                (entry,) = admin.get("/entries", params={"tag": "evals"}).json()["rows"]
            (status,) = summary["routes"]
            assert status["name"] == "evals"
            assert (
                {name: route[name] for name in status["rules"]} == status["rules"] == {"ttl": 3600.0, "tags": ["evals"]}
            )
            assert status["recent"] == {"miss": 1}
            given = {name: value for name, value in shown["limits"].items() if value is not None}
            assert {row["limit"]: row["allowed"] for row in limits} == given
            assert entry["tags"] == ["evals"]
            assert [each["name"] for each in summary["health"]["upstreams"]] == ["main"]

            with visit(browser, f"{proxy.url}/dashboard#token={token}") as page:
                wait_for_data(page)
                open_view(page, "requests")
                text = " ".join(page.inner_text("#routes-table tbody").split())  # some spaces do not break
                for part in ("evals", "model gpt-4o*", "ttl = 3600", "tags = evals", "1 miss"):
                    assert part in text
                open_view(page, "limits")
                page.wait_for_selector("#limits-table tbody tr")
                assert "$5.00" in page.inner_text("#limits-table tbody")
                open_view(page, "entries")
                page.wait_for_selector("#entries-table tbody tr[data-key]")
                assert "evals" in page.inner_text("#entries-table tbody")
