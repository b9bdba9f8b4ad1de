"""Routes in a running proxy, with OpenAI's SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from knapcache.cli.serve import new_key
from knapcache.testing import FakeUpstream
from tests.support.proxy_fixtures import Start
from tests.support.running_proxy import RunningProxy

ROUTES = [
    {"name": "fresh", "header": {"x-mode": "fresh"}, "cache": "refresh"},
    {"name": "private", "field": {"metadata.private": "yes"}, "cache": "off"},
    {"name": "read", "model": "gpt-4o", "cache": "read-only"},
    {"name": "cold", "model": "o3*", "max_temperature": 0.2},
    {"name": "apart", "header": {"x-mode": "apart"}, "namespace": "apart"},
    {"name": "short", "model": "gpt-3.5*", "ttl": 0.05},
]


@pytest.fixture
def proxy(start: Start) -> RunningProxy:
    return start(route=ROUTES)


@pytest.fixture
def sdk(proxy: RunningProxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=proxy.openai_url, api_key="any", max_retries=0) as sdk:
        yield sdk


def outcome(sdk: openai.OpenAI, model: str = "gpt-4o-mini", text: str = "hi", mode: str = "", **options: Any) -> str:
    headers = {"x-mode": mode} if mode else {}
    messages: Any = [{"role": "user", "content": text}]
    response = sdk.chat.completions.with_raw_response.create(
        model=model, messages=messages, extra_headers=headers, **options
    )
    return str(response.headers["x-knapcache"])


PRIVATE = {"metadata": {"private": "yes"}, "store": True}
O3 = {"model": "o3-mini"}


@pytest.mark.parametrize(
    ("requests", "outcomes"),
    [
        ([{}] * 3, "miss hit hit"),
        ([{"mode": "fresh"}] * 2, "miss miss"),
        ([PRIVATE, PRIVATE, *[{"metadata": {"private": "no"}}] * 2], "bypass bypass miss hit"),
        ([{"model": "gpt-4o"}] * 2, "miss miss"),
        ([*[O3 | {"temperature": 0.9}] * 2, *[O3 | {"temperature": 0.1}] * 2], "bypass bypass miss hit"),
        ([{}, {"mode": "apart"}, {"mode": "apart"}], "miss miss hit"),
        ([{}, {}, {}, {"mode": "fresh"}, {}], "miss hit hit miss hit"),
    ],
    ids=["no route", "refresh", "off", "read-only", "temperature", "namespace", "not served by its bytes"],
)
def test_a_route_decides_on_the_use_of_the_cache(
    sdk: openai.OpenAI, upstream: FakeUpstream, requests: list[dict[str, Any]], outcomes: str
) -> None:
    assert [outcome(sdk, **request) for request in requests] == outcomes.split()
    assert upstream.count() == outcomes.count("miss") + outcomes.count("bypass")


def test_a_route_has_its_own_time_to_live(sdk: openai.OpenAI) -> None:
    assert outcome(sdk, "gpt-3.5-turbo") == "miss"
    time.sleep(0.1)
    assert outcome(sdk, "gpt-3.5-turbo") == "miss"


def test_responses_and_recent_requests_name_their_route(proxy: RunningProxy, sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "named"}]

    def route(model: str, **options: Any) -> str | None:
        found = sdk.chat.completions.with_raw_response.create(model=model, messages=messages, **options)
        return str(found.headers["x-knapcache-route"]) if "x-knapcache-route" in found.headers else None

    assert [route("o3-mini", temperature=0.1) for _ in range(4)] == ["cold"] * 4  # a miss, a hit, and known hits
    assert route("o3-mini", temperature=0.9) == "cold"
    assert route("gpt-4o-mini") is None
    admin = {"authorization": f"Bearer {proxy.proxy.admin_token}"}
    summary = httpx.get(f"{proxy.url}/admin/v1/summary", headers=admin).json()
    cold = next(each for each in summary["routes"] if each["name"] == "cold")
    assert cold["conditions"] == ["model o3*"]
    assert cold["rules"] == {"max_temperature": 0.2}
    assert cold["recent"] == {"miss": 1, "hit": 3, "bypass": 1}
    rows = httpx.get(f"{proxy.url}/admin/v1/requests", headers=admin).json()["rows"]
    assert [row["route"] for row in rows] == ["cold"] * 5 + [""]


def test_tenants_of_a_group_share_entries_but_not_routes(start: Start) -> None:
    keys = {name: new_key(name).splitlines() for name in ("a", "b")}
    tenants = [{"name": name, "keys": [lines[-1].split('"')[1]], "group": "g"} for name, lines in keys.items()]
    proxy = start(tenants=tenants, route=[{"name": "off-for-b", "tenant": "b", "cache": "off"}])
    a, b = (openai.OpenAI(base_url=proxy.openai_url, api_key=keys[name][0], max_retries=0) for name in ("a", "b"))
    with a, b:
        assert [outcome(a) for _ in range(3)] == ["miss", "hit", "hit"]
        assert [outcome(b) for _ in range(2)] == ["bypass", "bypass"]


def test_a_route_selects_its_upstream(start: Start, upstream: FakeUpstream) -> None:
    with FakeUpstream() as other:
        upstreams = [{"name": "main", "url": upstream.openai_url}, {"name": "other", "url": other.openai_url}]
        routes = [{"name": "elsewhere", "header": {"x-mode": "other"}, "upstreams": ["other"]}]
        proxy = start(upstreams=upstreams, route=routes)
        with openai.OpenAI(base_url=proxy.openai_url, api_key="any", max_retries=0) as sdk:
            assert outcome(sdk) == "miss"
            assert outcome(sdk, mode="other") == "miss"
            assert outcome(sdk, mode="other") == "hit"
        assert (upstream.count(), other.count()) == (1, 1)
