"""Live drills with 40 intents, counted by truth: drift, restart, two workers, a shared store, feedback, hostile labels.

`DRILL_SEED=2` draws another order of the questions, other audits and another change. Each drill prints what it counted.
With other seeds, one drift of five serves more than 15 wrong answers: docs/guides/semantic.md says why.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from knapcache.features.semantic import matcher
from knapcache.testing.provider_answers import last_text
from tests.support.meanings import MODEL, SemanticClient
from tests.support.programs import find_module
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.redis_servers import RedisProcess
from tests.support.running_proxy import RunningProxy
from tests.support.semantic_drill import INTENTS, SETTINGS, Drill, IntentUpstream
from tests.support.timing import wait_until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("embedding_model")]
SEED = int(os.environ.get("DRILL_SEED", "1"))
CHANGED = 10
CERTIFY_LABELS = 250
"""More than a new tier needs here, at an allowed error of 5 %."""


@pytest.fixture
def upstream() -> Iterator[IntentUpstream]:
    with IntentUpstream() as upstream:
        yield upstream


@pytest.fixture(autouse=True)
def _seeded_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "draw", random.Random(f"{SEED} audits").random)


def start(stack: ExitStack, folder: Path, upstream: IntentUpstream, **settings: Any) -> SemanticClient:
    """Start a proxy with a semantic tier, and return a client of it."""
    proxy = stack.enter_context(RunningProxy(folder, upstream.openai_url, **SETTINGS, **settings))
    if "store" not in settings:  # a check of a shared store needs it to be idle
        stack.callback(proxy.proxy.cache.check)
    client = stack.enter_context(SemanticClient(proxy.url, proxy.proxy.admin_token))
    client.wait_ready()
    return client


@pytest.fixture
def drill(tmp_path: Path, upstream: IntentUpstream) -> Iterator[Drill]:
    with ExitStack() as stack:
        yield Drill(upstream, [start(stack, tmp_path, upstream)], SEED)


def test_a_drift_of_ten_of_forty_intents_is_noticed_and_a_purge_repairs_it(drill: Drill) -> None:
    client = drill.client
    labels = drill.ask_until(serving=True, limit=600)
    drill.ask(400)
    assert drill.wrong == 0
    assert drill.served > 200
    drill.upstream.changed = set(random.Random(f"{SEED} changed").sample(INTENTS, CHANGED))
    drill.ask_until(serving=False, limit=900)
    audits, wrong = drill.audit_share(), drill.wrong
    assert client.admin.post("/admin/v1/purge", json={"all": True}).status_code == 200
    again = drill.ask_until(serving=True, limit=900)
    print(f"{labels} labels; {wrong} wrong of {drill.served} served, audits {audits:.3f}; {again} labels after a purge")
    assert wrong <= 15
    assert audits <= 0.08
    assert again <= 300
    drill.ask(100)
    assert drill.wrong == wrong


def test_a_restart_keeps_serving(tmp_path: Path, upstream: IntentUpstream) -> None:
    with ExitStack() as stack:
        drill = Drill(upstream, [start(stack, tmp_path, upstream)], SEED)
        labels = drill.ask_until(serving=True, limit=600)
        before = drill.share_served(100)
    with ExitStack() as stack:
        drill.clients = [start(stack, tmp_path, upstream)]
        again = Drill(upstream, drill.clients, SEED + 1)
        assert again.client.serving(), "no label is needed"
        after = again.share_served(100)
    print(f"{labels} labels; {before:.2f} served before and {after:.2f} after; {drill.wrong + again.wrong} wrong")
    assert drill.wrong == again.wrong == 0
    assert min(before, after) > 0.75


def test_two_workers_serve_what_either_has_learned(tmp_path: Path, upstream: IntentUpstream) -> None:
    with ProxyProcess(tmp_path, upstream.openai_url, workers=2, **SETTINGS) as process, ExitStack() as stack:
        # A connection stays with one worker.
        clients = [stack.enter_context(SemanticClient(process.url, ADMIN_TOKEN)) for _ in range(8)]
        clients[0].wait_ready()
        drill = Drill(upstream, clients, SEED)
        labels = drill.ask_until(serving=True, limit=600)
        share = drill.share_served(200)
    print(f"{labels} labels; {share:.2f} served; {drill.wrong} wrong")
    assert labels <= CERTIFY_LABELS
    assert share > 0.75
    assert drill.wrong == 0


def test_proxies_on_a_shared_store_serve_what_either_has_learned(tmp_path: Path, upstream: IntentUpstream) -> None:
    find_module("redis", "the extra redis")
    with ExitStack() as stack:
        server = stack.enter_context(RedisProcess(tmp_path))
        shared = {"store": f"redis://127.0.0.1:{server.port}", "secret": "5e" * 32, "allow_anonymous": True}
        drill = Drill(upstream, [start(stack, tmp_path / name, upstream, **shared) for name in ("one", "two")], SEED)
        labels = drill.ask_until(serving=True, limit=600)
        wait_until(drill.clients[1].serving)
        share = drill.share_served(200)
    print(f"{labels} labels; {share:.2f} served; {drill.wrong} wrong")
    assert labels <= CERTIFY_LABELS
    assert share > 0.75
    assert drill.wrong == 0


def test_people_who_mark_right_answers_as_wrong_end_the_certificate(drill: Drill) -> None:
    client = drill.client
    drill.ask_until(serving=True, limit=600)
    marked = 0
    while client.serving():
        for answer in drill.ask(4):
            assert client.mark_wrong(answer.headers["x-knapcache-match"]).status_code == 200
            marked += 1
        assert marked < 20
    labels = drill.ask_until(serving=True, limit=900)
    print(f"{marked} marks ended the certificate; {labels} labels until the next; {drill.wrong} wrong")
    assert client.admin.post("/admin/v1/semantic/reset", json={"scope": ""}).status_code == 200
    assert not client.serving()
    assert "116 more right labels" in client.scope()["next_step"]
    assert drill.wrong == 0


def test_a_flood_of_labels_by_one_caller_serves_no_other(drill: Drill) -> None:
    """A caller who asks dangerous pairs with equal answers teaches no difference to another caller."""
    client = drill.client
    drill.ask_until(serving=True, limit=600)
    before = client.labels()
    drill.upstream.answer = lambda _: "OK."
    hostile = client.sdk.with_options(api_key="hostile")
    for number in range(30):
        for animal in ("dogs", "cats"):
            text = f"is chocolate safe for {animal} {'please ' * (1 + number % 20)}"
            hostile.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
    wait_until(lambda: client.labels() > before)
    drill.upstream.answer = lambda body: f"It depends: {last_text(body)}"
    outcomes = [client.ask(f"is chocolate safe for {animal}").outcome for animal in ("dogs", "cats")]
    print(f"{client.labels() - before} hostile labels; {outcomes}")
    assert outcomes == ["miss", "miss"]
