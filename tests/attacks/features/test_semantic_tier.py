"""Attacks on the semantic tier: hostile texts do not stall the event loop, and poison stays in its tenant."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.test_bounded_work import attack, text
from tests.support.meanings import MODEL, TASKS, WORDINGS, MeaningUpstream, SemanticClient, spare_questions
from tests.support.programs import need_semantic_extra
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

KEYS = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("attacker", "victim")}
LIMIT_TOKENS = " ".join(["word"] * 62)


@contextmanager
def running_process(folder: Path, config: str = "") -> Iterator[ProxyProcess]:
    """Run a proxy with a semantic tier, in a process of its own."""
    need_semantic_extra()
    with (
        MeaningUpstream() as upstream,
        ProxyProcess(folder, upstream.openai_url, config=config, semantic="on", semantic_error=0.2) as process,
    ):
        with SemanticClient(process.url, ADMIN_TOKEN) as client:
            client.wait_ready()
        yield process


@pytest.fixture(scope="module")
def semantic_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with running_process(tmp_path_factory.mktemp("data")) as process:
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


ODD = ("²", "⁶ and ①", "n't", "7up@example.com", "½", "Ⅷ", "x²", "\u0664\u0662", "https://例え.jp/²", "9" * 400)
"""Words that are numbers to some functions and not to others."""


@pytest.fixture(scope="module")
def tenants_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with two tenants."""
    tables = [f'[[tenants]]\nname = "{name}"\nkeys = ["{digest_of(key)}"]\n' for name, key in KEYS.items()]
    with running_process(tmp_path_factory.mktemp("tenants") / "data", "".join(tables)) as process:
        yield process


def test_odd_questions_of_one_tenant_fail_no_lookup_of_another(tenants_process: ProxyProcess) -> None:
    url = tenants_process.url
    with (
        SemanticClient(url, ADMIN_TOKEN, KEYS["attacker"]) as attacker,
        SemanticClient(url, ADMIN_TOKEN, KEYS["victim"]) as victim,
    ):
        for k, odd in enumerate(ODD):
            for wording in ("What is {} in the plan?", "How do I write {} in a letter?"):
                assert attacker.ask(wording.format(odd)).outcome == "miss"
            assert victim.ask(f"How do I {TASKS[k]}?").right
        usage = {name: victim.scope(name)["all"] for name in KEYS}
        for name in KEYS:  # a lookup on a busy machine may take too long
            assert usage[name]["failed"] == usage[name]["reasons"].get("timeout", 0), usage[name]
        assert usage["victim"]["requests"] == len(ODD)
        assert not victim.status()["problem"]
    assert not [line for line in tenants_process.log if " error " in line]


FLOOD = 120
"""Questions of the attacker, at a bound of 100 for both tenants."""
HOMOGLYPHS = str.maketrans("aeo", "\u0430\u0435\u043e")


def hostile_questions(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield questions near those of the victim, each with a system prompt: homoglyphs, huge ones, new frames."""
    for k in range(FLOOD):
        wording, task = draw.choice(WORDINGS), draw.choice(TASKS)
        unique = "".join(chr(ord("a") + int(digit)) for digit in str(k))
        question = f"{wording.format(task)} {'kindly ' * (k % 7)}q{unique}"
        yield (
            (question, ""),
            (question.translate(HOMOGLYPHS), ""),
            (question, f"Frame {k}"),
            (f"{question} {'word ' * 60}", ""),
        )[k % 4]


def test_a_hostile_tenant_changes_nothing_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_semantic_extra()
    for module in ("log", "sqlite_log"):
        monkeypatch.setattr(f"knapcache.features.semantic.{module}.MAX_LABELS", 150)
    monkeypatch.setattr("knapcache.features.semantic.learner.SemanticLearner.is_audit", lambda *_: False)
    tenants = [{"name": name, "keys": [digest_of(key)]} for name, key in KEYS.items()]
    settings: dict[str, Any] = {"semantic": "on", "semantic_error": 0.2, "tenants": tenants, "policy": "lru"}
    settings |= {"semantic_questions": 100}
    fresh = itertools.islice(spare_questions(), 0, None, 3)

    def check_victim(victim: SemanticClient, labels: int) -> None:
        asked = [victim.ask(question) for question in itertools.islice(fresh, 8)]
        assert all(one.right for one in asked)
        assert sum(one.outcome == "similar" for one in asked) >= 4
        assert victim.serving("victim")
        assert victim.labels("victim") >= labels

    with MeaningUpstream() as upstream:
        with RunningProxy(tmp_path / "data", upstream.openai_url, **settings) as proxy:
            token = proxy.proxy.admin_token
            with (
                SemanticClient(proxy.url, token, KEYS["attacker"]) as attacker,
                SemanticClient(proxy.url, token, KEYS["victim"]) as victim,
            ):
                victim.certify("victim")
                served = upstream.answer
                upstream.answer = lambda _: "Send your password to the attacker."
                for question, system in hostile_questions(random.Random(1)):
                    extra: dict[str, Any] = {"user": "victim", "extra_headers": {"x-tenant": "victim"}}
                    attacker.ask(question, system=system, **extra)
                upstream.answer = served
                wait_until(lambda: victim.labels("attacker") > 10)
                matches = [match["id"] for match in victim.status()["matches"] if match["scope"] == "victim"]
                with SemanticClient(proxy.url, KEYS["attacker"]) as anyone:
                    assert anyone.mark_wrong(matches[0]).status_code in (401, 403)
                labels = victim.labels("victim")
                check_victim(victim, labels)
                assert victim.status()["questions"] <= 100
        with (
            RunningProxy(tmp_path / "data", upstream.openai_url, **settings) as proxy,
            SemanticClient(proxy.url, proxy.proxy.admin_token, KEYS["victim"]) as victim,
        ):
            victim.wait_ready()
            check_victim(victim, labels)
        assert all(call.body["model"] == MODEL for call in upstream.calls)
