"""Drift: when stored answers become wrong for other wordings, the tier stops serving them by itself."""

from __future__ import annotations

import itertools

from tests.features.semantic.serving.conftest import StartTier
from tests.support.meanings import TASKS, WORDINGS, MeaningUpstream
from tests.support.timing import wait_until

OPENINGS = ("Hello, {}", "Please: {}", "Hi, {}", "Dear assistant, {}", "A question: {}", "Good day, {}")
MAX_WRONG = 150
"""Answers. Audits find the drift: with 5 % of them, more than 150 answers without an audit have a chance of 0.05 %."""


def test_a_drift_ends_the_certificate(start_tier: StartTier, upstream: MeaningUpstream) -> None:
    client = start_tier().client
    before = client.certify()
    assert len(before) >= 60, "nothing is certified earlier"
    assert {one.outcome for one in before[:60]} == {"miss"}
    assert all(one.right for one in before)
    upstream.drifted = True
    wrong = asked = 0
    try:
        for opening, wording, task in itertools.product(OPENINGS, WORDINGS, TASKS):
            served = client.ask(opening.format(wording.format(task)))
            wrong += served.outcome == "similar"
            asked += 1
            assert wrong <= MAX_WRONG
            if asked % 8 == 0 and not client.serving():
                break
        wait_until(lambda: not client.serving())
        assert client.scope()["state"] == "shadow"
        for task in TASKS[:5]:
            assert client.ask(f"One more thing: {WORDINGS[0].format(task)}").outcome == "miss"
    finally:
        upstream.drifted = False
