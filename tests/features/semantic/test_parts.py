"""Parts of the tier by their definitions: audits, harmless differences, risks of words, fingerprints, and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from knapcache.features.semantic import audits, freshness, harmless, learner, matcher, score
from knapcache.features.semantic.audits import AUDIT_START, AUDIT_STEP, FIRST_LABELS, Audits
from knapcache.features.semantic.drift import ALARM, CHANGED, MAX_RISK, MAX_VALUE, MIN_RISK, UNKNOWN_RISK, DriftWatch
from knapcache.features.semantic.freshness import MAX_SCANNED, Fingerprints, fingerprint_of
from knapcache.features.semantic.harmless import HarmlessDifferences
from knapcache.features.semantic.learner import Label, SemanticLearner
from knapcache.features.semantic.matcher import MAX_FAULTS, Matcher
from knapcache.features.semantic.score import MAX_COUNT, MAX_SHIFT, WordRisks


def test_the_rate_of_audits_is_that_of_the_formula() -> None:
    found = Audits()

    def expected(served: int, audited: int, shadow: int, doubt: float = 1.0) -> Any:
        share = (FIRST_LABELS + audited) / (FIRST_LABELS + audited + shadow)
        return pytest.approx(1.0 - 0.9 ** ((AUDIT_START + AUDIT_STEP * served) * doubt * (1.0 + share)))

    assert found.rate(b"a", 1.0, 0.1) == expected(0, 0, 0)
    for _ in range(3):
        found.count_served(b"a")
    assert found.rate(b"a", 2.0, 0.1) == expected(3, 0, 0, 2.0)
    for k in range(12):
        found.add(b"b", "audit" if k < 4 else "shadow", certified=True)
    assert found.rate(b"a", 1.0, 0.1) == expected(3, 4, 8)
    found.add(b"a", "shadow", certified=True)
    assert found.rate(b"a", 1.0, 0.1) == expected(0, 4, 9), "a label of the entry"
    found.add(b"b", "shadow", certified=False)
    assert found.rate(b"a", 1.0, 0.1) == expected(0, 0, 0), "no level is certified"


def test_a_sure_audit_is_due() -> None:
    assert Audits().is_due(1.0, lambda: 0.999)
    found = Audits()
    due = [found.is_due(1.0 - math.exp(-0.5), lambda: 0.25) for _ in range(6)]
    assert due == [False, True] * 3, "0.5 is added to the sum each time, and the limit is 0.75"


# right and wrong labels by principal; who may use the difference then, as a word and as a substitution
@pytest.mark.parametrize(
    ("labels", "words", "pairs"),
    [
        ("", "", ""), ("a+", "a", "a"), ("a-", "", ""), ("a+ b+", "abc", "abc"), ("a+ a+", "a", "a"),
        ("a+ a-", "a", ""), ("a+ a- a-", "", ""), ("a+ b+ c- c-", "abc", ""), ("a+ b+ c- c- c-", "", ""),
        ("a- b+", "b", ""), ("a+ b+ b+", "abc", "abc"),
    ],
)  # fmt: skip
def test_what_labels_allow(labels: str, words: str, pairs: str) -> None:
    found = HarmlessDifferences()
    for each in labels.split():
        found.add([7.0], each[1] == "-", each[0])
    found.check()
    assert "".join(name for name in "abc" if found.allow([7.0], None, name)) == words
    assert "".join(name for name in "abc" if found.allow([1.0], 7.0, name)) == pairs
    assert found.allow([], None)
    assert not found.allow([7.0, 8.0], None, "a")


def test_the_shift_of_words_is_that_of_the_formula() -> None:
    words = WordRisks()
    words.add([1.0], 0.5, True)
    words.add([2.0], 0.25, False)
    one, two = math.log(2.0 / 1.5), math.log(1.0 / 1.25)
    assert words.shift([1.0], []) == words.shift([], [1.0]) == pytest.approx(one)
    assert words.shift([1.0, 9.0], [2.0]) == pytest.approx(one / math.sqrt(2.0) + two)
    assert words.shift([], []) == words.shift([9.0], []) == 0.0
    for _ in range(40):
        words.add([3.0], 0.0, True)
        words.add([4.0], 1.0, False)
    assert (words.shift([3.0], []), words.shift([4.0], [])) == (MAX_SHIFT, -MAX_SHIFT)
    for _ in range(int(MAX_COUNT) + 1):
        words.add([5.0], 0.5, True)
    halved = (MAX_COUNT + 1) / 2
    assert words.shift([5.0], []) == pytest.approx(math.log((1 + halved) / (1 + halved / 2)))


@pytest.mark.parametrize(
    ("risk", "servable", "q"),
    [
        (0.1, True, 0.1), (0.1, False, 0.1), (0.01, True, MIN_RISK), (0.01, False, UNKNOWN_RISK),
        (0.9, True, MAX_RISK),
    ],
)  # fmt: skip
def test_a_step_of_the_drift_is_that_of_the_formula(risk: float, servable: bool, q: float) -> None:
    p = q + (1.0 - q) * CHANGED
    watch = DriftWatch(0.02)
    watch.add(risk, True, servable=servable)
    assert watch.value == pytest.approx(math.log(p / q))
    watch.add(risk, False, servable=servable)
    assert watch.value == pytest.approx(max(0.0, math.log(p / q) + math.log((1.0 - p) / (1.0 - q))))
    for _ in range(60):
        watch.add(risk, True, servable=servable)
    assert (watch.value, watch.alarmed) == (MAX_VALUE, True)
    assert (DriftWatch(0.02, ALARM).alarmed, DriftWatch(0.02, ALARM - 0.001).alarmed) == (True, False)
    allowed = DriftWatch(0.5)
    allowed.add(0.01, True, servable=True)
    assert allowed.value == pytest.approx(math.log((0.25 + 0.75 * CHANGED) / 0.25)), "half of the allowed error"


def test_a_fingerprint_is_looked_for_at_both_ends_of_an_answer() -> None:
    first, last = b'{"model": "a",', b'"system_fingerprint" : "b"}'
    fill = 2 * MAX_SCANNED - len(first) - len(last)
    assert fingerprint_of(first + b" " * (10 * fill) + last) == b"a b"
    middle = b'"model": "c"'
    padded = middle.rjust((fill + len(middle)) // 2).ljust(fill)
    assert fingerprint_of(first + padded + last) == b"a c b"
    assert fingerprint_of(first + b" " * MAX_SCANNED + padded + b" " * MAX_SCANNED + last) == b"a b"
    assert fingerprint_of(b'"model":"a" ' * 9) == b"a a a a"
    assert fingerprint_of(b'"model":"%b"' % (b"m" * 201)) == b""


def served() -> Any:
    found = Audits()
    for k in range(9):
        found.count_served(b"%d" % k)
    return found._served


def differences() -> Any:
    found = HarmlessDifferences()
    for k in (*range(9), 7, 8):
        found.add([float(k)], True)
    found.check()
    return found._labels


def words() -> Any:
    found = WordRisks()
    found.add([float(k) for k in range(9)], 0.5, True)
    return found._counts


def frames() -> Any:
    found = Fingerprints()
    for k in range(9):
        found.add(b"%d" % k, b"m")
    return found._latest


def principals() -> Any:
    found = SemanticLearner()
    features = next(iter(match_features(found)))
    for k in range(9):
        found.add(Label(b"k", features, 0.5, 0.5, False, "shadow", principal=str(k)))
    return found._principals


def match_features(found: SemanticLearner) -> list[Any]:
    candidate = learner.Candidate(b"a", "Which city is the capital of France?", 0.95)
    match = found.match("What is the capital of France?", [candidate])
    assert match is not None
    return [match.features]


def texts() -> Any:
    found = Matcher(Mock(), Mock(), Mock())
    assert [found._text(b"%d" % k) for k in range(9)] == ["text"] * 9
    return found._texts


@pytest.mark.parametrize(
    ("module", "name", "fill"),
    [
        (audits, "MAX_SERVED", served), (harmless, "MAX_DIFFERENCES", differences), (score, "MAX_WORDS", words),
        (freshness, "MAX_FRAMES", frames), (learner, "MAX_PRINCIPALS", principals), (matcher, "MAX_TEXTS", texts),
    ],
)  # fmt: skip
def test_the_oldest_are_dropped_beyond_a_bound(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, fill: Callable[[], Any]
) -> None:
    monkeypatch.setattr(matcher, "stored_text", lambda _: "text")
    everything = list(fill())
    monkeypatch.setattr(module, name, 3)
    assert (len(everything), list(fill())) == (9, everything[-3:])


def test_each_fault_is_logged_once_and_not_too_many(caplog: pytest.LogCaptureFixture) -> None:
    found = Matcher(Mock(), Mock(), Mock())
    for _ in range(2):
        for k in range(MAX_FAULTS + 5):
            found._log_fault(type(f"Fault{k}", (Exception,), {})())
    assert len(caplog.records) == MAX_FAULTS
