"""Drift: when stored answers become wrong for other wordings, the tier stops serving them by itself."""

from __future__ import annotations

import itertools

import pytest

from knapcache.features.semantic.learner import SemanticLearner
from tests.features.semantic.serving.conftest import StartTier
from tests.support.meanings import TASKS, WORDINGS, MeaningUpstream
from tests.support.timing import wait_until


def test_a_drift_ends_the_certificate(
    start_tier: StartTier, upstream: MeaningUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start_tier().client
    before = client.certify()
    assert len(before) >= 60, "nothing is certified earlier"
    assert {one.outcome for one in before[:60]} == {"miss"}
    assert all(one.right for one in before)
    audits = itertools.cycle((True, False, False))
    monkeypatch.setattr(SemanticLearner, "is_audit", lambda *_: next(audits))
    upstream.drifted = True
    try:
        for number, one in enumerate(before[:80]):  # a wording that needs no label
            client.ask(f"Hello, {one.question}")
            if number % 4 == 3 and not client.serving():
                break
        wait_until(lambda: not client.serving())
        assert client.scope()["state"] == "shadow"
        for task in TASKS[:5]:
            assert client.ask(f"One more thing: {WORDINGS[0].format(task)}").outcome == "miss"
    finally:
        upstream.drifted = False
