"""Tenants: each has its own setting, labels and certificate, and never gets an answer of another."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

from knapcache.proxy.settings.secrets import digest_of
from tests.features.semantic.serving.conftest import StartTier
from tests.support.meanings import TASKS, WORDINGS, MeaningUpstream, SemanticClient, spare_questions

KEYS = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("certified", "newcomer", "without")}


def test_tenants_have_their_own_certificates_and_answers(start_tier: StartTier, upstream: MeaningUpstream) -> None:
    modes: dict[str, dict[str, Any]] = {
        "certified": {"semantic": "on"},
        "newcomer": {"semantic": "on", "semantic_error": 0.1},
        "without": {},
    }
    tenants = [{"name": name, "keys": [digest_of(KEYS[name])], **mode} for name, mode in modes.items()]
    tier = start_tier(KEYS["certified"], semantic="off", semantic_error=0.2, tenants=tenants)
    first = tier.client
    with ExitStack() as stack:
        newcomer, without = (
            stack.enter_context(SemanticClient(tier.proxy.url, tier.proxy.proxy.admin_token, KEYS[name]))
            for name in ("newcomer", "without")
        )
        first.certify("certified")
        assert [scope["error"] for scope in first.status()["scopes"] if scope["scope"] == "certified"] == [0.2]
        assert first.scope("newcomer")["error"] == 0.1
        fresh = spare_questions()
        outcomes = [first.ask(question).outcome for question in itertools.islice(fresh, 8)]
        assert outcomes.count("similar") >= 4
        before = upstream.count()
        questions = [wording.format(task) for wording, task in itertools.product(WORDINGS[:2], TASKS[:8])]
        for client in (newcomer, without):
            asked = [client.ask(question) for question in questions]
            assert {one.outcome for one in asked} == {"miss"}, "nothing of the other tenant is served"
        assert upstream.count() - before == 2 * len(questions)
        assert not first.serving("newcomer")
        assert first.scope("newcomer")["labels"].keys() <= {"shadow"}
        assert first.scope("newcomer")["all"]["served"] == 0
        assert {match["scope"] for match in first.status()["matches"]} == {"certified", "newcomer"}
