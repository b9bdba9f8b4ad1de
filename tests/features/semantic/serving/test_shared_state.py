"""The certificate outlives the process, and is shared by workers and by proxies on one server."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.meanings import MeaningUpstream, SemanticClient, spare_questions
from tests.support.programs import find_module
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.redis_servers import RedisProcess
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

pytestmark = pytest.mark.usefixtures("embedding_model")
SETTINGS: dict[str, Any] = {"semantic": "on", "semantic_error": 0.2}


def serves(client: SemanticClient, questions: list[str]) -> bool:
    """Return whether one of a few questions is served by similarity; some may be drawn for an audit."""
    asked = [client.ask(question) for question in questions]
    assert all(one.right for one in asked)
    assert {one.outcome for one in asked} <= {"similar", "miss"}
    return any(one.outcome == "similar" for one in asked)


@pytest.mark.parametrize("encrypted", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_restart_keeps_the_certificate(
    upstream: MeaningUpstream, tmp_path: Path, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIER_KEY", "ab" * 32)
    settings = {**SETTINGS, **({"encryption_key_env": "TIER_KEY"} if encrypted else {}), "policy": "lru"}
    fresh = spare_questions()
    reports = []
    for start in range(2):
        with RunningProxy(tmp_path / "data", upstream.openai_url, **settings) as proxy:
            with SemanticClient(proxy.url, proxy.proxy.admin_token) as client:
                if start == 0:
                    client.certify()
                client.wait_ready()
                wait_until(client.serving)
                scope = client.scope()
                reports.append((sum(scope["labels"].values()), [level["e_value"] for level in scope["levels"]]))
                assert serves(client, list(itertools.islice(fresh, 6)))
            proxy.proxy.cache.check()
    assert reports[1][0] >= reports[0][0]
    files = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir() if "semantic" in path.name)
    assert files, "there is a log"
    assert b"sourdough" not in files, "no question is written beside the entries"


@pytest.mark.long
def test_two_workers_agree(upstream: MeaningUpstream, tmp_path: Path) -> None:
    with ProxyProcess(tmp_path / "data", upstream.openai_url, workers=2, **SETTINGS) as process:
        with SemanticClient(process.url, ADMIN_TOKEN) as client:
            client.certify()
        fresh = spare_questions()
        for pid in process.pids():
            with process.only(pid), SemanticClient(process.url, ADMIN_TOKEN) as client:
                wait_until(lambda: serves(client, [next(fresh), next(fresh)]))


@pytest.mark.long
def test_proxies_on_one_engine_share_the_certificate(upstream: MeaningUpstream, tmp_path: Path) -> None:
    find_module("redis", "the extra redis")
    with ExitStack() as stack:
        engine = stack.enter_context(RedisProcess(tmp_path))
        settings = {"store": f"redis://127.0.0.1:{engine.port}", "secret": "5e" * 32, "allow_anonymous": True}
        clients = []
        for name in ("one", "two"):
            given = {**SETTINGS, **settings, "policy": "lru"}
            proxy = stack.enter_context(RunningProxy(tmp_path / name, upstream.openai_url, **given))
            clients.append(stack.enter_context(SemanticClient(proxy.url, proxy.proxy.admin_token)))
        clients[0].certify()
        wait_until(clients[1].serving)
        fresh = spare_questions()
        assert serves(clients[1], list(itertools.islice(fresh, 6)))
        assert serves(clients[0], list(itertools.islice(fresh, 6)))
        match = next(one for question in fresh if (one := clients[1].ask(question)).outcome == "similar")
        assert clients[1].mark_wrong(match.headers["x-knapcache-match"]).status_code == 200
        wait_until(lambda: "feedback" in clients[0].scope()["labels"])
