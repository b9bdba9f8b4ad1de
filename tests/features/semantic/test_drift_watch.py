"""The statistic of drift: surprising wrong labels raise it, right ones lower it."""

from __future__ import annotations

import math
import random

import pytest

from knapcache.features.semantic.drift import CHANGED, DriftWatch
from knapcache.features.semantic.freshness import CHANGED_MODEL, DAY, RECENT_FINGERPRINTS, Fingerprints, fingerprint_of


def test_the_statistic_is_the_log_likelihood_ratio_from_zero() -> None:
    watch = DriftWatch(0.1)
    watch.add(0.2, wrong=False, servable=True)
    assert watch.value == 0.0
    watch.add(0.2, wrong=True, servable=True)
    assert watch.value == pytest.approx(math.log((0.2 + 0.8 * CHANGED) / 0.2))
    before = watch.value
    watch.add(0.2, wrong=False, servable=True)
    assert watch.value == pytest.approx(before + math.log(1 - CHANGED))


def test_an_unlikely_wrong_label_counts_more_and_one_of_a_new_difference_less() -> None:
    values = []
    for risk, servable in ((0.001, True), (0.001, False), (0.3, True)):
        watch = DriftWatch(0.01)
        watch.add(risk, wrong=True, servable=servable)
        values.append(watch.value)
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3


def test_labels_as_estimated_raise_few_alarms_and_a_drift_raises_one_soon() -> None:
    draw = random.Random(1)

    def labels_to_alarm(more_wrong: float, limit: int) -> int:
        watch = DriftWatch(0.05)
        for count in range(limit):
            risk = draw.choice((0.03, 0.06, 0.12))
            watch.add(risk, wrong=draw.random() < risk + (1 - risk) * more_wrong, servable=True)
            if watch.alarmed:
                return count
        return limit

    assert sum(labels_to_alarm(0.0, 1000) < 1000 for _ in range(100)) < 50
    counts = sorted(labels_to_alarm(0.25, 1000) for _ in range(100))
    assert counts[50] < 25
    assert counts[95] < 80


def test_old_answers_and_those_of_another_model_are_surprising() -> None:
    one, other = b'{"model": "m-1", "choices": [], "system_fingerprint": "fp_1"}', b'{"model":"m-2","choices":[]}'
    assert (fingerprint_of(one), fingerprint_of(other), fingerprint_of(b"{}")) == (b"m-1 fp_1", b"m-2", b"")
    prints = Fingerprints()
    assert prints.surprise(b"frame", one, 0.0) == 1.0
    assert prints.surprise(b"frame", one, 30 * DAY) == 2.0
    assert prints.surprise(b"frame", one, 1e9) == 4.0
    prints.add(b"frame", fingerprint_of(one))
    assert prints.surprise(b"frame", one, 0.0) == 1.0
    assert prints.surprise(b"frame", other, 0.0) == CHANGED_MODEL


def test_builds_that_answer_in_turn_are_no_surprise() -> None:
    prints, payloads = Fingerprints(), [b'{"system_fingerprint": "fp_%d"}' % k for k in range(3)]
    for payload in payloads * 3:
        prints.add(b"frame", fingerprint_of(payload))
    prints.add(b"frame", b"")
    assert {prints.surprise(b"frame", payload, 0.0) for payload in payloads} == {1.0}
    for _ in range(RECENT_FINGERPRINTS):
        prints.add(b"frame", b"fp_9")
    assert {prints.surprise(b"frame", payload, 0.0) for payload in payloads} == {CHANGED_MODEL}
