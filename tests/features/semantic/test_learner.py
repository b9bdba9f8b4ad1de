"""The learner: vetoes and risks select a candidate, labels certify, and an entry's own labels change its risk."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from knapcache.features.semantic.audits import AUDIT_RATE, AUDIT_START, Audits
from knapcache.features.semantic.certificate import LEVELS
from knapcache.features.semantic.learner import (
    MAX_ENTRIES,
    PRINCIPAL_LABELS,
    PRINCIPAL_WINDOW,
    RECOVERY_LABELS,
    Candidate,
    Label,
    Match,
    SemanticLearner,
)

ASKED = "What is the capital of France?"
SAME = Candidate(b"a", "Which city is the capital of France?", 0.95)


def match(learner: SemanticLearner, *candidates: Candidate) -> Match:
    found = learner.match(ASKED, candidates)
    assert found is not None
    return found


def certified(learner: SemanticLearner, labels: int = 700) -> SemanticLearner:
    found = match(learner, SAME)
    for k in range(labels):
        learner.add(Label(b"%d" % k, found.features, found.score, LEVELS[0], False, "shadow"))
    return learner


def test_without_a_candidate_that_has_no_veto_there_is_no_match() -> None:
    learner = SemanticLearner()
    assert learner.match("How do I boil 3 eggs?", [Candidate(b"a", "How do I boil 4 eggs?", 0.97)]) is None
    assert learner.match(ASKED, []) is None


def test_the_candidate_of_least_risk_is_the_match() -> None:
    other = Candidate(b"b", "Which city is the largest port of southern France today?", 0.65)
    found = match(SemanticLearner(), other, SAME)
    assert (found.key, found.text) == (b"a", SAME.text)
    assert 0.0 < found.risk == found.score < 1.0


def test_nothing_is_served_before_labels_have_certified_it() -> None:
    learner = SemanticLearner()
    assert not learner.serves(match(learner, SAME))
    assert (learner.bound, learner.report()["level"]) == (None, -1)
    certified(learner)
    found = match(learner, SAME)
    assert learner.serves(found)
    assert learner.bound is not None
    assert learner.bound <= 0.01
    assert learner.report()["level"] >= 0
    assert learner.report()["labels"] == {"shadow": 700}


def test_a_wrong_label_raises_the_risk_of_its_entry_alone() -> None:
    learner = certified(SemanticLearner())
    before = match(learner, SAME)
    learner.add(before.label(True, "feedback"))
    after, other = match(learner, SAME), match(learner, SAME._replace(key=b"b"))
    assert after.risk > 1.5 * other.risk
    assert other.risk == other.score


def test_audits_rise_with_what_is_at_stake_and_after_a_wrong_label() -> None:
    learner = certified(SemanticLearner())
    found = match(learner, SAME)
    rates = []
    for _ in range(11):
        rates.append(learner.audit_rate(found))
        learner.count_served(found)
    assert AUDIT_RATE * AUDIT_START < rates[0] < 2 * AUDIT_RATE * AUDIT_START
    assert rates == sorted(rates)
    assert rates[10] == pytest.approx(rates[0] * 1.25 / 0.75, rel=0.1)
    assert learner.audit_rate(found, surprise=100.0) > 0.99
    assert (learner.audit_rate(found, base=0.0), learner.audit_rate(found, base=1.0)) == (0.0, 1.0)
    learner.add(found.label(False, "audit"))
    assert learner.audit_rate(found) == pytest.approx(rates[0], rel=0.05), "a label ends what is at stake"
    learner.add(match(learner, SAME._replace(key=b"other")).label(True, "shadow"))
    assert learner.audit_rate(found) > 5 * rates[0], "labels of the shadow raise audits, too"


@pytest.mark.parametrize("rate", [0.03, 0.07, 0.2])
def test_audits_have_about_the_same_distance(rate: float) -> None:
    audits, draw = Audits(), random.Random(1).random
    due = [k for k in range(20_000) if audits.is_due(rate, draw)]
    gaps = {after - before for before, after in pairwise(due)}
    assert len(due) / 20_000 == pytest.approx(rate, rel=0.15)
    assert 0.5 / rate - 2 < min(gaps) < max(gaps) <= 1.5 / rate + 1, "none is missing for long"
    assert len(gaps) > 0.6 / rate, "the distances differ"


def test_all_answers_are_audits_or_none() -> None:
    learner = certified(SemanticLearner())
    found, draw = match(learner, SAME), random.Random(1).random
    assert not any(learner.is_audit(found, draw, base=0.0) for _ in range(100))
    assert all(learner.is_audit(found, draw, base=1.0) for _ in range(100))
    assert not learner.is_audit(found, draw), "the next one is not due"


def test_audits_are_half_as_many_where_the_shadow_has_labels() -> None:
    learner = certified(SemanticLearner(), 589)
    found = match(learner, SAME)
    first = learner.audit_rate(found)
    assert first == pytest.approx(2 * AUDIT_RATE * AUDIT_START, rel=0.1)
    for k in range(1000):
        learner.add(found._replace(key=b"%d" % k).label(False, "shadow"))
    assert learner.audit_rate(found) == pytest.approx(AUDIT_RATE * AUDIT_START, rel=0.05)
    assert learner.audit_rate(found) < 0.6 * first


def test_a_difference_that_no_label_has_judged_is_not_served() -> None:
    learner = certified(SemanticLearner())
    new = learner.match("What is the medieval capital of France?", [SAME])
    assert new is not None
    assert (new.obstacle, learner.serves(new)) == ("word", False)
    learner.add(new.label(False, "shadow"))
    known = learner.match("What is the medieval capital of France?", [SAME._replace(key=b"b")])
    assert known is not None
    assert known.obstacle == ""


def test_a_substitution_needs_a_label_of_its_own() -> None:
    learner = SemanticLearner()

    def obstacle(asked: str, stored: str) -> str:
        found = learner.match(asked, [Candidate(b"k", stored, 0.95)])
        assert found is not None
        learner.add(found.label(False, "shadow"))
        return found.obstacle

    assert obstacle("is it safe for dogs at all times of the year", "is it safe at all times of the year") == "word"
    assert obstacle("is it safe for cats at all times of the year", "is it safe at all times of the year") == "word"
    assert obstacle("is chocolate safe for dogs", "is chocolate safe for cats") == "word", "both words alone are known"
    assert obstacle("is chocolate safe for cats", "is chocolate safe for dogs") == ""


def test_what_one_principal_has_shown_holds_for_no_other() -> None:
    learner = SemanticLearner()
    asked, stored = "is chocolate safe for dogs", Candidate(b"k", "is chocolate safe for cats", 0.95)

    def found(principal: str) -> Match:
        match = learner.match(asked, [stored], principal)
        assert match is not None
        return match

    for _ in range(5):
        learner.add(found("mallory").label(False, "shadow"))
    assert found("mallory").obstacle == ""
    assert found("alice").obstacle == "word"
    learner.add(found("bob").label(False, "shadow"))
    assert found("alice").obstacle == ""


def test_of_several_principals_none_has_more_than_half_of_the_labels() -> None:
    learner = SemanticLearner(0.05)
    found = match(learner, SAME)
    for k in range(3000):
        label = Label(b"%d" % k, found.features, found.score, LEVELS[0], False, "shadow")
        learner.add(label._replace(principal="flood" if k % 10 else "other"))
    labels = learner.certificate.report()[0].labels
    assert labels == pytest.approx(600, abs=PRINCIPAL_LABELS), "as many of the flood as of the other"


def test_a_caller_that_asks_no_more_and_feedback_do_not_hold_back_the_labels_of_another() -> None:
    learner = SemanticLearner(0.05)
    found = match(learner, SAME)
    label = Label(b"a", found.features, found.score, LEVELS[0], False, "shadow", principal="one")

    def counted(labels: int) -> int:
        before = learner.certificate.report()[0].labels
        for k in range(labels):
            learner.add(label._replace(key=b"%d" % k))
        return learner.certificate.report()[0].labels - before

    assert counted(200) == 200
    learner.add(learner.feedback(b"a", found.features, LEVELS[0], 0.0))
    assert counted(50) == 50
    learner.add(label._replace(principal="two"))
    assert counted(50) == 0
    counted(PRINCIPAL_WINDOW)
    assert counted(50) == 50


def test_wrong_audits_of_a_caller_count_beyond_its_share() -> None:
    learner = SemanticLearner(0.01)
    label = Label(b"a", match(learner, SAME).features, 0.001, LEVELS[0] / 2, False, "shadow", principal="one")
    for k in range(1200):
        learner.add(label._replace(key=b"%d" % k))
    learner.add(label._replace(principal="two"))
    for k in range(5):
        learner.add(label._replace(key=b"wrong %d" % k, wrong=True, source="audit"))
    assert learner.certificate.alarms == 1
    assert learner.bound is None


def test_callers_that_have_left_take_no_memory() -> None:
    learner = SemanticLearner(0.05)
    label = Label(b"a", match(learner, SAME).features, 0.001, LEVELS[0] / 2, False, "shadow")
    for k in range(2 * PRINCIPAL_WINDOW):
        learner.add(label._replace(principal=f"caller {k}"))
    assert len(learner._counts_of) == PRINCIPAL_WINDOW == learner._counted_labels
    learner._verified = set()
    for k in range(MAX_ENTRIES + 10):
        learner._count_entry(label._replace(key=b"%d" % k))
    assert len(learner._verified) == MAX_ENTRIES


def test_an_entry_whose_last_label_is_wrong_is_not_served() -> None:
    learner = certified(SemanticLearner())
    learner.add(match(learner, SAME).label(True, "audit"))
    assert match(learner, SAME).obstacle == "entry"
    other = SAME._replace(key=b"b", cosine=0.9)
    assert match(learner, SAME, other).key == b"b", "another entry is preferred"
    learner.add(match(learner, SAME).label(False, "shadow"))
    assert match(learner, SAME).obstacle == ""


def alarmed(learner: SemanticLearner) -> SemanticLearner:
    """Add wrong labels of new entries until the certificate ends."""
    found = match(certified(learner), SAME)
    for k in range(20):
        learner.add(found._replace(key=b"wrong %d" % k, risk=LEVELS[0]).label(True, "audit"))
        if learner.certificate.alarms:
            return learner
    raise AssertionError("there was no alarm")


def test_after_an_alarm_entries_need_a_right_label_and_outdated_ones_teach_nothing() -> None:
    learner = alarmed(SemanticLearner(0.05))
    assert learner.bound is None
    found = match(learner, SAME)
    assert found.obstacle == "entry"
    for k in range(100):
        learner.add(found._replace(key=b"outdated %d" % k).label(True, "shadow"))
    assert match(learner, SAME).score == pytest.approx(found.score), "wrong labels of old answers train nothing"
    learner.add(found.label(False, "shadow"))
    assert match(learner, SAME).obstacle == ""
    labels = 0
    while learner.bound is None:
        learner.add(match(learner, SAME).label(False, "shadow"))
        labels += 1
    assert labels < 150
    for _ in range(RECOVERY_LABELS):
        learner.add(match(learner, SAME).label(False, "shadow"))
    assert match(learner, SAME._replace(key=b"never labelled")).obstacle == "", "the recovery is over"


def counted_labels(learner: SemanticLearner) -> int:
    """Return how many labels the widest level has."""
    return int(learner.report()["levels"][-1]["labels"])


def test_after_an_alarm_right_labels_of_other_entries_certify_and_do_not_verify_these() -> None:
    learner = alarmed(SemanticLearner(0.05))
    assert counted_labels(learner) == 0
    labels, uncounted = 0, 0
    while learner.bound is None and labels < 200:
        learner.add(match(learner, SAME._replace(key=b"%d" % labels)).label(False, "shadow"))
        labels += 1
        uncounted += not counted_labels(learner)
    assert 5 <= uncounted <= 20, "the first of them show that the cause is gone"
    assert labels == 116 + uncounted
    assert match(learner, SAME._replace(key=b"0")).obstacle == ""
    assert match(learner, SAME._replace(key=b"never labelled")).obstacle == "entry"


def test_after_an_alarm_labels_of_other_entries_do_not_count_while_answers_are_outdated() -> None:
    learner = alarmed(SemanticLearner(0.05))
    for k in range(200):
        learner.add(match(learner, SAME._replace(key=b"%d" % k)).label(k % 4 == 0, "shadow"))
    assert counted_labels(learner) == 0
    learner = alarmed(SemanticLearner(0.05))
    for k in range(50):
        learner.add(match(learner, SAME._replace(key=b"%d" % k)).label(False, "shadow"))
    before = counted_labels(learner)
    assert before > 30
    learner.add(match(learner, SAME._replace(key=b"wrong")).label(True, "shadow"))
    assert counted_labels(learner) == before + 1, "earlier labels alone decide whether one counts"
    learner.add(match(learner, SAME._replace(key=b"next")).label(False, "shadow"))
    learner.add(match(learner, SAME._replace(key=b"wrong")).label(False, "shadow"))
    assert counted_labels(learner) == before + 1


def test_after_an_alarm_an_entry_whose_last_label_is_wrong_does_not_count() -> None:
    learner = alarmed(SemanticLearner(0.05))
    for k in range(50):
        learner.add(match(learner, SAME._replace(key=b"%d" % k)).label(False, "shadow"))
    before = counted_labels(learner)
    learner.add(match(learner, SAME._replace(key=b"wrong 0")).label(False, "shadow"))
    assert counted_labels(learner) == before


def test_after_a_restart_older_labels_weigh_on_no_certificate() -> None:
    learner = alarmed(SemanticLearner(0.05))
    assert learner.labels_weigh
    learner.add(Label(b"", (), 0.0, 1.0, False, "restart"))
    assert not learner.labels_weigh
    assert "116 more right labels" in learner.report()["next_step"], "as many as of a new tier"
    assert match(learner, SAME).obstacle == "", "words keep their labels"


def test_after_a_partial_restart_entries_keep_their_labels_and_a_recovery_goes_on() -> None:
    learner = alarmed(SemanticLearner(0.05))
    learner.add(match(learner, SAME).label(True, "audit"))
    learner.add(Label(b"", (), 0.0, 1.0, False, "partial restart"))
    assert "116 more right labels" in learner.report()["next_step"]
    for k in range(130):
        right = match(learner, SAME._replace(key=b"%d" % k))
        learner.add(right.label(False, "shadow"))
        learner.add(right.label(False, "shadow"))
    assert learner.bound is not None
    assert match(learner, SAME).obstacle == "entry", "its last label is wrong"
    assert match(learner, SAME._replace(key=b"never labelled")).obstacle == "entry", "the recovery goes on"


def test_the_report_says_what_other_errors_would_serve() -> None:
    learner = certified(SemanticLearner(0.005), 900)
    match(learner, SAME)
    others = {each["error"]: each for each in learner.report()["others"]}
    assert not others[0.005]["certified"]
    assert others[0.05]["certified"]
    assert 0.0 < others[0.05]["share"] <= 1.0
    assert others[0.005]["share"] == 0.0
