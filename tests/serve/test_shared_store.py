"""Two proxies on one Valkey or Redis: their answers, numbers and sessions, and what happens without the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.support.redis_servers import EngineServer
from tests.support.running_proxy import RunningProxy

pytest.importorskip("redis", reason="the extra redis is not installed")

SECRET = "5e" * 32
PASSWORD = "hunter2-of-the-engine"
CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}


class SharedProxy(RunningProxy):
    """A proxy on a shared store, and a client with its admin token."""

    def __init__(self, folder: Path, upstream: str, store: str, **settings: Any) -> None:
        settings = {"store": store, "secret": SECRET, "policy": "lru", "allow_anonymous": True, **settings}
        super().__init__(folder, upstream, **settings)
        self.client = httpx.Client(base_url=self.url, timeout=20.0)
        self.client.headers["authorization"] = f"Bearer {self.proxy.admin_token}"

    def ask(self, prompt: str) -> httpx.Response:
        body = CHAT | {"messages": [{"role": "user", "content": prompt}]}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=20.0)
        assert response.status_code == 200, response.text
        return response

    def get(self, path: str, **query: Any) -> Any:
        response = self.client.get(f"/admin/v1{path}", params=query)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    with EngineServer(tmp_path_factory.mktemp("engine")) as server:
        yield server


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def pair(
    engine: EngineServer, upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
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
        # The client has its answer before the store: then the other proxy waits for the store.
        assert other.ask(prompt).headers["x-knapcache"] in ("hit", "coalesced")
        assert other.ask(prompt).headers["x-knapcache"] == "hit"
    assert [one.proxy.cache.owner for one in pair] == [True, False]
