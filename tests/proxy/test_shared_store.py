"""Two proxies on one Valkey or Redis: their answers, numbers and sessions, and what happens without the server."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.errors import InvalidInput, StoreError
from knapcache.proxy.events import publisher
from knapcache.proxy.proxy import Proxy
from knapcache.proxy.settings import Settings
from knapcache.testing import FakeUpstream
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess, free_port
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

find_module("redis", "the extra redis")

SECRET = "5e" * 32
HOST = socket.gethostname()
PASSWORD = "hunter2-of-the-engine"
CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}


class SharedProxy(RunningProxy):
    """A proxy on a shared store, and a client with its admin token."""

    def __init__(self, folder: Path, upstream: str, store: str, **settings: Any) -> None:
        settings = {"store": store, "secret": SECRET, "policy": "lru", "allow_anonymous": True, **settings}
        super().__init__(folder, upstream, **settings)
        self.asked = 0
        self.client = httpx.Client(base_url=self.url, timeout=60)
        self.client.headers["authorization"] = f"Bearer {self.proxy.admin_token}"

    def stop(self) -> None:
        self.client.close()
        super().stop()

    def ask(self, prompt: str) -> httpx.Response:
        body = CHAT | {"messages": [{"role": "user", "content": prompt}]}
        self.asked += 1
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return response

    def misses(self, prompt: str) -> bool:
        return self.ask(prompt).headers["x-knapcache"] == "miss"

    def hits(self, prompt: str) -> bool:
        return self.ask(prompt).headers["x-knapcache"] == "hit"

    def sees_engine(self, state: str) -> bool:
        return bool(self.get("/summary")["health"]["engine"]["state"] == state)

    def succeeds(self, method: str, path: str) -> bool:
        return self.client.request(method, f"/admin/v1{path}").status_code == 200

    def shows(self, requests: int) -> bool:
        return bool(self.get("/summary")["all"]["requests"] == requests)

    def lists(self, proxies: int) -> bool:
        return len(self.get("/proxies")["rows"]) == proxies

    def get(self, path: str, **query: Any) -> Any:
        response = self.client.get(f"/admin/v1{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def pair(
    engine: RedisProcess, upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SharedProxy, SharedProxy]]:
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(SharedProxy(tmp_path_factory.mktemp(name) / "data", upstream.openai_url, engine.url))
            for name in ("first", "second")
        )
        yield first, second


def test_a_miss_at_one_proxy_is_a_hit_at_the_other(pair: tuple[SharedProxy, SharedProxy]) -> None:
    for one, other in (pair, pair[::-1]):
        prompt = f"a question to {one.url}"
        assert one.ask(prompt).headers["x-knapcache"] == "miss"
        assert other.ask(prompt).headers["x-knapcache"] == "hit"
    assert [one.proxy.cache.owner for one in pair] == [True, False]


@pytest.mark.features
def test_both_proxies_show_the_numbers_of_both(pair: tuple[SharedProxy, SharedProxy]) -> None:
    for one in pair:
        one.ask("a question for the totals")
    asked = sum(one.asked for one in pair)
    for one in pair:
        wait_until(partial(one.shows, asked))
    first, second = (one.get("/summary") for one in pair)
    for name in ("hits", "coalesced", "misses", "tokens_saved", "cost_spent", "bytes_saved"):
        assert first["all"][name] == pytest.approx(second["all"][name])
    assert [row["requests"] for row in first["models"]] == [row["requests"] for row in second["models"]] == [asked]
    assert first["health"]["upstreams"][0]["calls"] == second["health"]["upstreams"][0]["calls"]
    assert first["health"]["engine"]["state"] == "ok"
    histories = [one.get("/history", span="hour")["points"] for one in pair]
    assert [sum(point["requests"] for point in points) for points in histories] == [asked] * 2
    pages = [one.get("/requests", after=0, limit=1000) for one in pair]
    assert [row["serial"] for row in pages[0]["rows"]] == [row["serial"] for row in pages[1]["rows"]]
    assert {row["proxy"] for page in pages for row in page["rows"]} == {HOST}
    served_by_other = [one.get(f"/requests/{row['serial']}") for one in pair for row in pages[0]["rows"][-2:]]
    assert all(row["why"]["title"] for row in served_by_other)


def test_any_proxy_lists_all_proxies(pair: tuple[SharedProxy, SharedProxy], engine: RedisProcess) -> None:
    for one in pair:
        wait_until(partial(one.lists, 2))
        page = one.get("/proxies")
        assert [row["this"] for row in page["rows"]] == [True, False]
        assert sorted(row["owner"] for row in page["rows"]) == [False, True]
        assert {(row["host"], row["workers"]) for row in page["rows"]} == {(HOST, 1)}
        assert page["engine"]["place"] == f"redis://127.0.0.1:{engine.port}"
        assert (page["ended"], page["ignored"]) == (0, 0)


def test_the_last_requests_of_a_proxy_that_has_ended_are_counted(
    upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxies publish their numbers once at the start, and once at the end."""
    monkeypatch.setattr(publisher, "INTERVAL", 1e6)
    with RedisProcess(tmp_path) as engine, SharedProxy(tmp_path / "a", upstream.openai_url, engine.url) as first:
        with SharedProxy(tmp_path / "b", upstream.openai_url, engine.url) as second:
            second.ask("the last question")
        wait_until(partial(first.shows, second.asked))


def test_a_purge_at_any_proxy_is_effective_at_all(pair: tuple[SharedProxy, SharedProxy]) -> None:
    for one, other in (pair, pair[::-1]):
        key = one.ask("a question to purge").headers["x-knapcache-key"]
        wait_until(partial(one.succeeds, "GET", f"/entries/{key}"))
        wait_until(partial(other.succeeds, "DELETE", f"/entries/{key}"))
        wait_until(partial(one.misses, "a question to purge"))


def test_a_login_at_one_proxy_is_valid_at_the_other(pair: tuple[SharedProxy, SharedProxy]) -> None:
    first, second = pair
    assert first.proxy.admin_token == second.proxy.admin_token
    found = httpx.post(f"{first.url}/admin/v1/login", json={"token": second.proxy.admin_token})
    cookie = found.headers["set-cookie"].split(";")[0]
    session = {"cookie": cookie, "x-csrf-token": found.json()["csrf"]}
    assert httpx.get(f"{second.url}/admin/v1/session", headers=session).json() == found.json()
    assert httpx.get(f"{second.url}/admin/v1/summary", headers=session | {"x-csrf-token": ""}).status_code == 403
    assert httpx.post(f"{second.url}/admin/v1/logout", headers=session).status_code == 200
    wait_until(lambda: httpx.get(f"{first.url}/admin/v1/session", headers=session).status_code == 401)
    rotated = first.client.post("/admin/v1/token/rotate", json={})
    assert rotated.status_code == 409
    assert "change secret, or set admin_token" in rotated.json()["error"]["message"]


def test_the_official_client_gets_a_hit_from_the_other_proxy(pair: tuple[SharedProxy, SharedProxy]) -> None:
    openai = find_module("openai", "the package openai")
    answers = []
    for one in pair:
        with openai.OpenAI(base_url=one.openai_url, api_key="sk-the-same-key", max_retries=0) as client:
            answers.append(client.chat.completions.with_raw_response.create(**CHAT))
    assert answers[0].headers["x-knapcache"] == "miss"
    assert answers[1].headers["x-knapcache"] == "hit"
    assert answers[0].parse().choices == answers[1].parse().choices


def test_an_engine_that_takes_no_writes_is_read_only_everywhere(
    upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(RedisProcess(tmp_path))
        pair = [stack.enter_context(SharedProxy(tmp_path / name, upstream.openai_url, engine.url)) for name in "ab"]
        pair[0].ask("stored before")
        for one in pair:
            wait_until(partial(one.hits, "stored before"))
            wait_until(partial(one.lists, 2))
        with engine.client() as client:
            client.config_set("maxmemory", 1)
            for one in pair:
                wait_until(partial(one.sees_engine, "read-only"))
                assert one.get("/proxies")["engine"]["state"] == "read-only"
                assert one.ask("stored before").headers["x-knapcache"] == "hit"
                text = one.client.get("/metrics").text
                assert "knapcache_engine_nodes_read_only 1.0" in text
                assert "knapcache_engine_nodes_away 0.0" in text
            client.config_set("maxmemory", 0)
        for one in pair:
            wait_until(partial(one.sees_engine, "ok"))
        assert [one.proxy.cache.owner for one in pair] == [True, False], "the owner has lost its lease"
    assert "takes no writes: it is out of memory" in caplog.text
    assert "does not answer" not in caplog.text


def test_without_the_engine_the_proxies_go_on_serving_and_say_so(
    upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    with ExitStack() as stack:
        caplog.set_level(logging.INFO)
        first, second = (
            stack.enter_context(SharedProxy(tmp_path / name, upstream.openai_url, url)) for name in ("a", "b")
        )  # the server is absent at the start
        assert [one.ask("before the server").headers["x-knapcache"] for one in (first, second)] == ["miss", "miss"]
        assert httpx.get(f"{first.url}/readyz").status_code == 200
        wait_until(lambda: first.get("/summary")["health"]["engine"]["state"] == "away")
        engine = stack.enter_context(RedisProcess(tmp_path, "--requirepass", PASSWORD, port=port, password=PASSWORD))
        wait_until(lambda: first.get("/summary")["health"]["engine"]["state"] == "ok")
        wait_until(lambda: first.proxy.cache.owner or second.proxy.cache.owner)
        wait_until(lambda: second.get("/summary")["all"]["requests"] == 2)

        def shared() -> bool:
            prompt = f"a question at {time.monotonic()}"
            first.ask(prompt)
            return second.ask(prompt).headers["x-knapcache"] == "hit"

        wait_until(shared)
        engine.kill()
        assert [one.ask("after the server").headers["x-knapcache"] for one in (first, second)] == ["miss", "miss"]
        wait_until(lambda: second.get("/summary")["health"]["engine"]["state"] == "away")
        wait_until(lambda: second.lists(1))
        page = second.get("/proxies")
        assert [row["this"] for row in page["rows"]] == [True]
        shown = json.dumps([page, second.get("/summary"), second.get("/requests")])
        metrics = second.client.get("/metrics").text
    assert PASSWORD not in shown + metrics + caplog.text
    assert SECRET not in shown + metrics + caplog.text
    assert "The shared store does not answer" in caplog.text


@pytest.mark.parametrize(
    ("option", "settings", "message"),
    [
        ("noeviction", {"secret": "6f" * 32}, "was written with another secret"),
        ("allkeys-lru", {}, "maxmemory-policy of the server must be noeviction"),
        ("noeviction", {"store": "redis://:wrong@127.0.0.1:{port}"}, "refused the user or the password"),
    ],
)
def test_a_store_that_cannot_be_used_ends_the_start_with_one_error(
    pair: tuple[SharedProxy, SharedProxy],
    engine: RedisProcess,
    tmp_path: Path,
    option: str,
    settings: dict[str, str],
    message: str,
) -> None:
    assert all(one.proxy.ready for one in pair)  # the store exists
    values = {"store": engine.url, "secret": SECRET} | {k: v.format(port=engine.port) for k, v in settings.items()}
    with engine.client() as client:
        client.config_set("maxmemory-policy", option)
        try:
            with pytest.raises((InvalidInput, StoreError), match=message):
                Proxy(Settings(path=tmp_path, upstreams=[{"url": "http://127.0.0.1:9/v1"}], **values))
        finally:
            client.config_set("maxmemory-policy", "noeviction")
