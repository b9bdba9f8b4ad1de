"""The learner: vetoes and risks select a candidate, labels certify, and an entry's own labels change its risk."""

from __future__ import annotations

from knapcache.features.semantic.certificate import LEVELS
from knapcache.features.semantic.learner import AUDIT_RATE, RAISED_AUDIT_RATE, Candidate, Label, Match, SemanticLearner

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


def test_audits_are_more_frequent_after_a_wrong_label() -> None:
    learner = certified(SemanticLearner())
    assert learner.audit_rate == AUDIT_RATE
    learner.add(match(learner, SAME).label(True, "audit"))
    assert learner.audit_rate == RAISED_AUDIT_RATE


def test_the_report_says_what_other_errors_would_serve() -> None:
    learner = certified(SemanticLearner(0.005), 900)
    match(learner, SAME)
    others = {each["error"]: each for each in learner.report()["others"]}
    assert not others[0.005]["certified"]
    assert others[0.05]["certified"]
    assert 0.0 < others[0.05]["share"] <= 1.0
    assert others[0.005]["share"] == 0.0
