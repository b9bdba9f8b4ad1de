"""The guarantee of the certificate, computed exactly and independently of its code.

The e-value of a level depends only on the number of labels n and of wrong ones k. So the probability that it ever
reaches a threshold is found by following the distribution of k from label to label.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from knapcache.features.semantic.certificate import ALPHA, BETS, LEVELS, Certificate, certified_error, e_value

NEEDED = len(LEVELS) / ALPHA
RISK = LEVELS[0]


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
                certificate.add(RISK, bool(wrong))
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
        assert binom.cdf(wrong, labels, bound) <= 1.0 / NEEDED
