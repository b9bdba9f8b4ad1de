"""The certificate: its guarantee, computed exactly and independently of its code, e-values by hand, and how it ends.

The e-value of a level depends only on the number of labels n and of wrong ones k. So the probability that it ever
reaches a threshold is found by following the distribution of k from label to label.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from knapcache.errors import InvalidInput
from knapcache.features.semantic.certificate import (
    ALPHA,
    BETS,
    CAP,
    LEVELS,
    OWN_LABELS,
    Certificate,
    certified_error,
    log_e_value,
)

NEEDED = len(LEVELS) / ALPHA
SAFE = LEVELS[0] / 2


def e_value(labels: int, wrong: int, error: float) -> float:
    """Return the e-value of these labels against "at least `error` of them are wrong", by its definition."""
    return sum(r**wrong * ((1 - r * error) / (1 - error)) ** (labels - wrong) for r in BETS) / len(BETS)


def fill(certificate: Certificate, labels: int, wrong: int = 0, risk: float = SAFE) -> None:
    for k in range(labels):
        certificate.add(risk, k < wrong)


@pytest.mark.parametrize(("labels", "wrong"), [(0, 0), (1, 1), (300, 0), (900, 3)])
def test_the_e_value_is_that_of_the_formula(labels: int, wrong: int) -> None:
    certificate = Certificate(0.01)
    fill(certificate, labels, wrong)
    assert certificate.e_value(0) == pytest.approx(min(CAP, e_value(labels, wrong, 0.01)))
    assert math.exp(log_e_value(labels, wrong, 0.01)) == pytest.approx(e_value(labels, wrong, 0.01))


def test_no_level_serves_before_its_labels_are_enough() -> None:
    certificate = Certificate(0.01)
    count = 0
    while certificate.level < 0:
        assert not certificate.serves(SAFE)
        certificate.add(SAFE, False)
        count += 1
    assert e_value(count, 0, 0.01) >= certificate.needed > e_value(count - 1, 0, 0.01)
    assert certificate.serves(SAFE)
    assert certificate.bound(4) <= 0.01


def test_a_label_counts_for_the_levels_that_contain_its_risk() -> None:
    certificate = Certificate(0.05)
    fill(certificate, 10, 0, 0.03)
    fill(certificate, 5, 5, 0.5)
    assert [level.labels for level in certificate.report()] == [0, 0, 10, 10, 10]
    assert [level.wrong for level in certificate.report()] == [0] * 5


def test_a_wide_level_with_wrong_labels_leaves_the_narrow_ones_certified() -> None:
    certificate = Certificate(0.05)
    for k in range(400):
        certificate.add(SAFE, False)
        certificate.add(0.1, k % 5 == 0)
    assert 0 <= certificate.level < 4
    assert certificate.serves(SAFE)
    assert not certificate.serves(0.1)


def test_wrong_labels_close_together_restart_all_levels() -> None:
    certificate = Certificate(0.01)
    fill(certificate, 2000)
    assert certificate.level == 0
    assert not certificate.suspicious
    certificate.add(SAFE, True)
    assert certificate.suspicious
    for _ in range(4):
        certificate.add(SAFE, True)
    assert certificate.alarms == 1
    assert certificate.level == -1
    assert sum(level.labels for level in certificate.report()) <= 3 * len(LEVELS)


def test_a_level_without_labels_of_its_own_is_not_served() -> None:
    certificate = Certificate(0.1)
    fill(certificate, 500)
    assert all(level.certified for level in certificate.report())
    assert certificate.level == 0
    assert not certificate.serves(LEVELS[1])
    fill(certificate, OWN_LABELS - 1, risk=LEVELS[3])
    assert certificate.level == 0
    fill(certificate, 1, risk=LEVELS[3])
    assert certificate.level == 3
    assert certificate.serves(LEVELS[2])
    assert not certificate.serves(LEVELS[4])


def test_rare_wrong_labels_raise_no_alarm() -> None:
    certificate = Certificate(0.01)
    fill(certificate, 3000)
    for k in range(2000):
        certificate.add(SAFE, k % 500 == 0)
    assert certificate.alarms == 0
    assert certificate.level == 0


def test_many_wrong_labels_end_a_certificate_without_an_alarm() -> None:
    certificate = Certificate(0.3)  # the alarm's bets are small here
    fill(certificate, 5000)
    count = 0
    while certificate.level >= 0:
        certificate.add(SAFE, True)
        count += 1
    assert count < 20


@given(st.integers(0, 5000), st.integers(0, 50))
def test_the_bound_is_the_least_error_that_is_certified(labels: int, wrong: int) -> None:
    wrong = min(wrong, labels)
    bound = certified_error(labels, wrong, 100.0)
    if bound < 1.0:
        assert log_e_value(labels, wrong, bound) >= log_e_value(labels, wrong, bound / 1.01)
        assert e_value(labels, wrong, bound) >= 100.0


@pytest.mark.parametrize("error", [0.0, -1.0, 0.5, 2.0, float("nan")])
def test_an_error_out_of_range_is_refused(error: float) -> None:
    with pytest.raises(InvalidInput, match="the error must be above 0 and below"):
        Certificate(error)


# The guarantee.


def crossing_probability(error: float, labels: int, needed: float) -> float:
    """Return the probability that E >= needed at any of the first labels, each of which is wrong with `error`."""
    most = int(labels * error + 8 * (labels * error) ** 0.5) + 20  # more wrong labels are as good as impossible
    k, bets = np.arange(most + 1), np.array(BETS)[:, None]
    mass = np.zeros(most + 1)
    mass[0] = 1.0
    crossed = 0.0
    for n in range(1, labels + 1):
        mass = mass * (1.0 - error) + np.concatenate(([0.0], mass[:-1])) * error
        logs = np.log(bets) * k + np.log((1.0 - bets * error) / (1.0 - error)) * np.maximum(n - k, 0)
        reached = (np.exp(np.minimum(logs, 500.0)).mean(axis=0) >= needed) & (k <= n)
        crossed += mass[reached].sum()
        mass[reached] = 0.0
    return float(crossed)


@pytest.mark.parametrize("error", [0.01, 0.05, 0.2])
def test_a_level_is_certified_wrongly_with_at_most_its_share_of_alpha(error: float) -> None:
    probability = crossing_probability(error, 2000, NEEDED)
    assert 0.0 < probability <= ALPHA / len(LEVELS)


def test_the_code_certifies_at_the_same_labels_as_the_definition() -> None:
    draw = np.random.default_rng(3)
    for error in (0.01, 0.05):
        for _ in range(3):
            certificate, wrongs = Certificate(error), 0
            for n, wrong in enumerate(draw.random(1200) < error / 20, 1):
                certificate.add(SAFE, bool(wrong))
                wrongs += int(wrong)
                assert (certificate.level >= 0) == (e_value(n, wrongs, error) >= NEEDED)
                if certificate.level >= 0:
                    break


@given(
    error=st.sampled_from([Fraction(1, 100), Fraction(1, 20), Fraction(1, 4)]),
    excess=st.lists(st.fractions(0, 1), min_size=32, max_size=32),
    length=st.integers(1, 4),
)
@settings(max_examples=10, deadline=None)
def test_the_expected_e_value_is_at_most_one_however_the_probabilities_depend_on_the_past(
    error: Fraction, excess: list[Fraction], length: int
) -> None:
    """Every history has a probability of its own that the next label is wrong, at least the error. Exact arithmetic."""
    expected = Fraction(0)
    for labels in itertools.product((False, True), repeat=length):
        probability, history = Fraction(1), 1
        factors = [Fraction(1)] * len(BETS)
        for wrong in labels:
            p = error + excess[history] * (1 - error)
            probability *= p if wrong else 1 - p
            history = 2 * history + wrong
            for at, bet in enumerate(map(Fraction, map(str, BETS))):
                factors[at] *= bet if wrong else (1 - bet * error) / (1 - error)
        expected += probability * sum(factors) / len(BETS)
    assert expected <= 1
    if not any(excess):
        assert expected == 1


@given(labels=st.integers(1, 20_000), wrong=st.integers(0, 60))
def test_the_bound_is_never_below_the_fixed_sample_bound(labels: int, wrong: int) -> None:
    """By Markov's inequality E >= e implies a binomial p-value of at most 1/e. Clopper and Pearson's bound is the least
    error with that p-value, and the certificate's is above it: the price of looking at every label.
    """
    wrong = min(wrong, labels)
    bound = certified_error(labels, wrong, NEEDED)
    if bound < 1.0:
        assert stats.binom.cdf(wrong, labels, bound) <= 1.0 / NEEDED
