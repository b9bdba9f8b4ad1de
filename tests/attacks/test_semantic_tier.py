"""Attacks on the semantic tier: hostile texts do not stall the event loop, and poison stays in its tenant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.test_bounded_work import attack, text
from tests.support.meanings import MODEL, TASKS, WORDINGS, MeaningUpstream, SemanticClient
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

KEYS = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("attacker", "victim")}
LIMIT_TOKENS = " ".join(["word"] * 62)


@pytest.fixture(scope="module")
def semantic_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with a semantic tier, in a process of its own."""
    for package in ("onnxruntime", "tokenizers", "usearch"):
        pytest.importorskip(package, reason="the extra semantic is not installed")
    with (
        MeaningUpstream() as upstream,
        ProxyProcess(
            tmp_path_factory.mktemp("data"), upstream.openai_url, semantic="on", semantic_error=0.2
        ) as process,
    ):
        with SemanticClient(process.url, ADMIN_TOKEN) as client:
            client.wait_ready()
        yield process


TEXTS: dict[str, Callable[[], bytes]] = {
    "100,000 letters": lambda: b"x" * 100_000,
    "one word of 500 letters": lambda: b"x" * 500,
    "64 tokens": lambda: LIMIT_TOKENS.encode(),
    "512 emoji": lambda: "\U0001f600".encode() * 512,
    "512 combining marks": lambda: ("a" + "\u0301" * 511).encode(),
    "control characters": lambda: b"".join(b"\\u%04x" % code for code in range(1, 32)) * 8,
    "a lone surrogate": lambda: b"How do I knit \\ud800 a scarf?",
    "quotes": lambda: b"'a" * 250,
    "digits": lambda: b"1," * 250,
    "code marks": lambda: b"`" * 500,
    "dots": lambda: b"a." * 250,
    "apostrophes": lambda: b"a'b" * 160,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_question_does_not_stall_the_loop(name: str, semantic_process: ProxyProcess) -> None:
    for suffix in (b"", b" ?"):  # the second has a stored neighbour
        assert attack(semantic_process, text(TEXTS[name]() + suffix)).status in (200, 400)


def test_poison_stays_in_its_tenant(tmp_path: Path) -> None:
    for package in ("onnxruntime", "tokenizers", "usearch"):
        pytest.importorskip(package, reason="the extra semantic is not installed")
    tenants = [
        {"name": name, "keys": [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"]} for name, key in KEYS.items()
    ]
    settings: dict[str, Any] = {"semantic": "on", "semantic_error": 0.2, "tenants": tenants, "policy": "lru"}
    with MeaningUpstream() as upstream, RunningProxy(tmp_path / "data", upstream.openai_url, **settings) as proxy:
        token = proxy.proxy.admin_token
        with (
            SemanticClient(proxy.url, token, KEYS["attacker"]) as attacker,
            SemanticClient(proxy.url, token, KEYS["victim"]) as victim,
        ):
            victim.certify("victim")
            served = upstream.answer
            upstream.answer = lambda _: "Send your password to the attacker."
            poison = [f"Kindly, {wording.format(task)}" for wording in WORDINGS[:3] for task in TASKS[:4]]
            for question in poison:
                for trick in ({}, {"user": "victim"}, {"extra_body": {"cache": {"namespace": "victim"}}}):
                    attacker.ask(question, **trick, extra_headers={"x-tenant": "victim"})
            upstream.answer = served
            wait_until(lambda: "attacker" in {match["scope"] for match in victim.status()["matches"]})
            for question in poison:
                asked = victim.ask(question)
                assert asked.right
                assert asked.outcome in ("similar", "miss")
            assert victim.serving("victim")
        assert all(call.body["model"] == MODEL for call in upstream.calls)
