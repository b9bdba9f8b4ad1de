"""The certificate: e-values by hand, its property under the null hypothesis, and how it ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.features.semantic.certificate import (
    BETS,
    CAP,
    LEVELS,
    OWN_LABELS,
    Certificate,
    certified_error,
    e_value,
    log_e_value,
)

SAFE = LEVELS[0] / 2


def fill(certificate: Certificate, labels: int, wrong: int = 0, risk: float = SAFE) -> None:
    for k in range(labels):
        certificate.add(risk, k < wrong)


@given(st.floats(0.001, 0.4), st.floats(0.0, 1.0))
def test_each_bet_is_fair_at_the_allowed_error_and_loses_above_it(error: float, more: float) -> None:
    probability = error + more * (1.0 - error)
    for bet in BETS:
        right = (1.0 - bet * error) / (1.0 - error)
        assert probability * bet + (1.0 - probability) * right <= 1.0 + 1e-12
        assert error * bet + (1.0 - error) * right == pytest.approx(1.0)


@pytest.mark.parametrize(("labels", "wrong"), [(0, 0), (1, 1), (300, 0), (900, 3)])
def test_the_e_value_is_that_of_the_formula(labels: int, wrong: int) -> None:
    certificate = Certificate(0.01)
    fill(certificate, labels, wrong)
    assert certificate.e_value(0) == pytest.approx(min(CAP, e_value(labels, wrong, 0.01)))
    assert 2.718281828459045 ** log_e_value(labels, wrong, 0.01) == pytest.approx(e_value(labels, wrong, 0.01))


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


@pytest.mark.parametrize("error", [0.01, 0.05])
def test_false_certificates_are_rare(error: float) -> None:
    draw = random.Random(7)
    certified = 0
    for _ in range(100):
        certificate = Certificate(error)
        for _ in range(1500):
            certificate.add(draw.choice(LEVELS), draw.random() < error)
            if certificate.level >= 0:
                certified += 1
                break
    assert certified <= 12  # P(Binomial(100, 0.05) > 12) = 0.1 %


def test_wrong_labels_close_together_restart_all_levels() -> None:
    certificate = Certificate(0.01)
    fill(certificate, 5000)
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
    for k in range(10_000):
        certificate.add(SAFE, k % 500 == 0)
    assert certificate.alarms == 0
    assert certificate.level == 0


def test_many_wrong_labels_end_a_certificate_without_an_alarm() -> None:
    certificate = Certificate(0.3)  # the alarm's bets are small here
    fill(certificate, 100_000)
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
