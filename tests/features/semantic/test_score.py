"""Features and score."""

import numpy as np
import pytest

import knapcache.features.semantic.differences as features_module
import knapcache.features.semantic.score as score_module
from knapcache.errors import InvalidInput
from knapcache.features.semantic.differences import FEATURES, WordCounts, features, split_ids, word_id
from knapcache.features.semantic.score import Score, WordRisks, fit
from knapcache.features.semantic.word_facts import stem
from knapcache.features.semantic.words import read_words


def test_features_are_finite_and_symmetric_up_to_the_one_sided_ones() -> None:
    counts = WordCounts()
    for text in ("How do I cook rice?", "How do I cook oats?", ""):
        counts.add(read_words(text))
    counts.check()
    for one, other in (("How do I cook rice?", "Explain how to cook barley"), ("", ""), ("???", "Why?")):
        x = features(read_words(one), read_words(other), 0.9, counts)
        assert len(x) >= len(FEATURES)
        assert np.isfinite(x).all()


def test_word_ids_tell_shared_words_from_unmatched_ones() -> None:
    x = features(read_words("cook rice"), read_words("cook barley"), 0.9, WordCounts())
    cook, rice, barley = (word_id(stem(word)) for word in ("cook", "rice", "barley"))
    unmatched, shared, pair = split_ids(x)
    assert (sorted(unmatched), shared) == (sorted((rice, barley)), [-cook])
    assert pair == split_ids(features(read_words("sell barley"), read_words("sell rice"), 0.9, WordCounts()))[2]
    assert split_ids(features(read_words("cook rice"), read_words("cook"), 0.9, WordCounts()))[2] is None


def test_labels_of_a_word_change_the_risk_of_pairs_with_that_word_in_the_same_part() -> None:
    score, base = Score(), [0.5] * len(FEATURES)
    for _ in range(50):
        score.add([*base, 1.0, -9.0], True)
        score.add([*base, 2.0, -9.0], False)
    score.check()
    right, unknown, wrong = (score.risk([*base, each]) for each in (2.0, 3.0, 1.0))
    assert 4 * right < unknown
    assert wrong > unknown + 0.1
    assert score.risk([*base, -1.0]) == score.risk([*base, -2.0]) == unknown


def test_counts_of_words_are_bounded_and_follow_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordRisks()
    for _ in range(1000):
        words.add([1.0], 0.5, True)
    before = words.shift([1.0], [])
    for _ in range(100):
        words.add([1.0], 0.5, False)
    assert before > 0 > words.shift([1.0], [])
    monkeypatch.setattr(score_module, "MAX_WORDS", 100)
    for each in range(110):
        words.add([float(each + 2)], 0.5, False)
    assert words.shift([1.0], []) == 0


def test_a_word_in_many_questions_is_less_rare() -> None:
    counts = WordCounts()
    for _ in range(20):
        counts.add(read_words("cook rice"))
    counts.add(read_words("cook oats"))
    rice, oats, barley = counts.rarities(["rice", stem("oats"), "barley"])
    assert rice < oats < barley


def test_the_score_learns_from_labels_and_is_deterministic() -> None:
    rng = np.random.default_rng(1)
    one, other = Score(), Score()
    for _ in range(600):
        x = rng.normal(0.5, 0.3, len(FEATURES)).tolist()
        wrong = bool(x[3] + 0.05 * rng.normal() < 0.5)
        one.add(x, wrong)
        other.add(x, wrong)
    one.check()
    x = [0.5] * len(FEATURES)
    x[3] = 0.9
    low = one.risk(x)
    assert low == other.risk(x)
    x[3] = 0.1
    assert low < 0.1 < 0.9 < one.risk(x)


def test_old_labels_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_module, "MAX_LABELS", 500)
    rng = np.random.default_rng(2)
    score = Score()
    for wrong in (True, False):
        for _ in range(600):
            score.add(rng.normal(0.5, 0.3, len(FEATURES)).tolist(), wrong)
    assert score.risk([0.5] * len(FEATURES)) < 0.02


def test_a_label_with_another_number_of_features_is_refused() -> None:
    with pytest.raises(InvalidInput, match="3 features"):
        Score().add((1.0, 2.0, 3.0), True)


def test_the_fitted_weights_are_where_the_gradient_of_the_loss_is_zero() -> None:
    rng = np.random.default_rng(4)
    z = np.hstack([np.ones((400, 1)), rng.normal(size=(400, 3))])
    wrong = (rng.random(400) < 0.1 + 0.4 * (z[:, 1] > 0)).astype(float)
    prior, ridge, weight = np.array([0.5, -1.0, 0.0, 2.0]), np.array([0.1, 4.0, 1.0, 9.0]), rng.random(400)
    weights = fit(z, wrong, prior, ridge, prior, weight)

    def loss(w: np.ndarray) -> float:
        q = 1 / (1 + np.exp(-z @ w))
        return float(-np.sum(weight * np.log(np.where(wrong > 0, q, 1 - q))) + np.sum(ridge * (w - prior) ** 2) / 2)

    steps = 1e-4 * np.eye(4)
    gradient = [(loss(weights + step) - loss(weights - step)) / 2e-4 for step in steps]
    assert gradient == pytest.approx([0.0] * 4, abs=1e-4)


def test_word_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_module, "MAX_WORDS", 100)
    counts = WordCounts()
    for at in range(300):
        counts.add(read_words(f"frequent q{at}x"))
        counts.check()
    frequent, rare = counts.rarities([stem("frequent"), "q7x"])
    assert frequent < 0.25 < rare
