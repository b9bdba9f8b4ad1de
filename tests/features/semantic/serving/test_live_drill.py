"""A live drill with 40 intents: certificate, drift, repair by a purge, and a caller who floods labels."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from knapcache.testing import FakeUpstream
from knapcache.testing.provider_answers import last_text
from tests.features.semantic.serving.conftest import PRICES
from tests.support.meanings import WORDINGS, SemanticClient
from tests.support.programs import need_semantic_extra
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

VERBS = ("clean", "repair", "paint", "sell", "move", "insure", "store", "measure")
THINGS = ("a piano", "an old boat", "a brick wall", "a garden shed", "a wool carpet")
INTENTS = [f"{verb} {thing}" for verb, thing in itertools.product(VERBS, THINGS)]
CHANGED = 10
POLITE = ("", "Please: ", "Hello. ", "Hi, ", "OK. ")
ERROR = 0.05


class IntentUpstream(FakeUpstream):
    """Answers a question with its intent and the version of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[str] = set()
        self.answer = lambda body: self.right(last_text(body))

    def right(self, text: str) -> str:
        intent = next(intent for intent in INTENTS if intent in text)
        return f"See chapter {INTENTS.index(intent)} of the {'new' if intent in self.changed else 'first'} handbook."


class Drill:
    """Asks every question once, in random order, and counts wrong answers by truth."""

    def __init__(self, upstream: IntentUpstream, client: SemanticClient, seed: int) -> None:
        self.upstream, self.client = upstream, client
        texts = [p + w.format(i) for p, w, i in itertools.product(POLITE, WORDINGS, INTENTS)]
        random.Random(seed).shuffle(texts)
        self.texts = iter(texts)
        self.served = self.wrong = self.asked = 0

    def ask(self, count: int) -> None:
        for text in itertools.islice(self.texts, count):
            answer = self.client.ask(text)
            self.asked += 1
            self.served += answer.outcome == "similar"
            self.wrong += answer.outcome == "similar" and answer.text != self.upstream.right(text)

    def ask_until(self, serving: bool, limit: int) -> None:
        """Ask until the tier serves, or does not."""
        before = self.asked
        while self.client.serving() != serving:
            assert self.asked - before < limit
            self.ask(8)


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Any]:
    need_semantic_extra()
    with ExitStack() as stack:
        upstream = stack.enter_context(IntentUpstream())
        settings: dict[str, Any] = {"policy": "lru", "semantic": "on", "semantic_error": ERROR, "prices": PRICES}
        proxy = stack.enter_context(RunningProxy(tmp_path, upstream.openai_url, **settings))
        client = stack.enter_context(SemanticClient(proxy.url, proxy.proxy.admin_token))
        client.wait_ready()
        yield Drill(upstream, client, seed=int(os.environ.get("DRILL_SEED", "1")))
        proxy.proxy.cache.check()


@pytest.mark.long
def test_a_drift_of_ten_of_forty_intents_is_noticed_and_a_purge_repairs_it(drill: Drill) -> None:
    client = drill.client
    drill.ask_until(serving=True, limit=600)
    certified_after = client.labels()
    drill.ask(400)
    assert drill.wrong == 0
    assert drill.served > 200
    drill.upstream.changed = set(random.Random(2).sample(INTENTS, CHANGED))
    drill.ask_until(serving=False, limit=600)
    usage = client.scope()["all"]
    audits = usage["audit"] / (usage["audit"] + usage["served"])
    print(f"certified after {certified_after} labels; {drill.wrong} wrong after the drift; audits {audits:.3f}")
    assert drill.wrong <= 100, "few labels of the shadow: it depends on when an audit falls on a changed answer"
    assert audits <= 0.1
    assert client.admin.post("/admin/v1/purge", json={"all": True}).status_code == 200
    before, wrong = client.labels(), drill.wrong
    drill.ask_until(serving=True, limit=900)
    print(f"certified again after {client.labels() - before} labels")
    assert client.labels() - before <= 300
    drill.ask(100)
    assert drill.wrong == wrong


@pytest.mark.long
def test_a_flood_of_labels_by_one_caller_serves_no_other(drill: Drill) -> None:
    """A caller who asks dangerous pairs with equal answers teaches no difference to another caller."""
    client = drill.client
    drill.ask_until(serving=True, limit=600)
    drill.upstream.answer = lambda _: "OK."
    hostile = client.sdk.with_options(api_key="hostile")
    for _ in range(30):
        for animal in ("dogs", "cats"):
            text = f"is chocolate safe for {animal} {'please ' * random.Random().randint(1, 20)}"
            hostile.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    wait_until(lambda: client.labels() > 0)
    drill.upstream.answer = lambda body: f"It depends: {last_text(body)}"
    outcomes = [client.ask(f"is chocolate safe for {animal}").outcome for animal in ("dogs", "cats")]
    assert outcomes == ["miss", "miss"]
