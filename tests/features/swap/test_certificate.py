"""The certificate and the decisions of a frame: evidence by its definition, its guarantee, states, and the budget."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import InvalidInput
from knapcache.features.swap.certificate import ALPHA, BETS, HOPELESS, LossCertificate
from knapcache.features.swap.frame import AUDIT, MAX_LABELLED, START_LABELS, Frame, LabelBudget

LOSS = 0.05
NEEDED, NEEDED_AGAIN = 1.0 / (0.8 * ALPHA), math.pi**2 / (6.0 * 0.2 * ALPHA)
BOUND_STEP = 0.0005


def evidence(labels: list[float], loss: float, sign: float = 1.0) -> float:
    """Return the evidence by its definition; with the sign −1, the opposite evidence."""
    bets = np.array(BETS) if sign > 0.0 else np.array(BETS) / (1.0 + loss)
    factors = 1.0 + np.multiply.outer(bets, sign * (loss - np.array(labels)))
    return float(factors.prod(axis=1).mean())


def fill(certificate: LossCertificate, labels: list[float]) -> LossCertificate:
    for z in labels:
        certificate.add(z)
    return certificate


def certified(loss: float = LOSS, labels: int = 0) -> LossCertificate:
    """Return a certified certificate, and add so many ties."""
    certificate = LossCertificate(loss)
    while certificate.state == "learning":
        certificate.add(-1.0)
    return fill(certificate, [0.0] * labels)


def labels_until(certificate: LossCertificate, z: float, state: str) -> int:
    count = 0
    while certificate.state != state:
        certificate.add(z)
        count += 1
        assert count < 10_000
    return count


@pytest.mark.parametrize("loss", [0.02, 0.05, 0.1])
@pytest.mark.parametrize(
    "labels",
    [[], [0.0], [1.0], [-1.0, 1.0, 0.0], [0.25, -0.5, 0.07, 0.0, 0.0], [0.0] * 30 + [1.0, 0.0, -1.0]],
    ids=len,
)
def test_the_evidence_is_that_of_the_formula(labels: list[float], loss: float) -> None:
    certificate = fill(LossCertificate(loss), labels)
    assert certificate.evidence == pytest.approx(evidence(labels, loss))
    assert certificate.against == pytest.approx(evidence(labels, loss, -1.0))
    assert certificate.labels == len(labels)
    assert certificate.mean_loss == pytest.approx(np.mean(labels) if labels else 0.0)
    assert certificate.differing == pytest.approx(np.mean(np.array(labels) != 0.0) if labels else 0.0)


@pytest.mark.parametrize("loss", [0.2, 0.5, 0.99])
def test_large_losses_may_be_allowed(loss: float) -> None:
    labels = [-1.0, 1.0, -1.0]
    assert fill(LossCertificate(loss), labels).against == pytest.approx(evidence(labels, loss, -1.0))


def test_labels_are_rounded_up() -> None:
    assert fill(LossCertificate(LOSS), [0.001]).mean_loss == pytest.approx(0.01)
    assert fill(LossCertificate(LOSS), [-0.509]).mean_loss == pytest.approx(-0.5)
    assert fill(LossCertificate(LOSS), [0.07]).mean_loss == pytest.approx(0.07)  # 0.07 · 100 is above 7 as a float


@pytest.mark.parametrize("differing", [0.05, 0.4, 1.0])
def test_the_expected_evidence_is_one_if_the_mean_loss_is_the_allowed_one(differing: float) -> None:
    chances = {1.0: (differing + LOSS) / 2, 0.0: 1 - differing, -1.0: (differing - LOSS) / 2}
    expected = 0.0
    for labels in itertools.product(chances, repeat=4):
        expected += math.prod(chances[z] for z in labels) * fill(LossCertificate(LOSS), list(labels)).evidence
    assert expected == pytest.approx(1.0)


def test_false_certificates_are_as_rare_as_alpha() -> None:
    rng, runs, wrong = random.Random(4), 400, 0
    for _ in range(runs):
        certificate = LossCertificate(LOSS)
        for _ in range(400):
            drawn = rng.random()
            certificate.add(1.0 if drawn < 0.125 else -1.0 if drawn < 0.2 else 0.0)
            if certificate.state != "learning":
                wrong += certificate.state == "certified"
                break
    assert 0 < wrong <= ALPHA * runs


def test_it_certifies_with_the_first_label_that_is_enough() -> None:
    certificate, labels = LossCertificate(LOSS), list[float]()
    rng = random.Random(1)
    while certificate.state == "learning":
        assert evidence(labels, LOSS) < NEEDED
        labels.append(rng.choice([0.0, 0.0, -1.0]))
        certificate.add(labels[-1])
    assert certificate.state == "certified"
    assert evidence(labels, LOSS) >= certificate.needed == pytest.approx(NEEDED)


def test_opposite_evidence_ends_the_search() -> None:
    certificate = LossCertificate(LOSS)
    count = labels_until(certificate, 0.2, "hopeless")
    assert evidence([0.2] * count, LOSS, -1.0) >= HOPELESS > evidence([0.2] * (count - 1), LOSS, -1.0)
    fill(certificate, [-1.0] * 100)
    assert certificate.state == "hopeless"


def test_an_alarm_starts_again_without_labels_and_needs_more() -> None:
    certificate = certified()
    assert labels_until(certificate, 1.0, "learning") < 20
    assert (certificate.tries, certificate.labels, certificate.evidence) == (2, 0, 1.0)
    assert certificate.needed == pytest.approx(NEEDED_AGAIN)
    labels_until(certificate, -1.0, "certified")
    labels_until(certificate, 1.0, "learning")
    assert certificate.needed == pytest.approx(4 * NEEDED_AGAIN)


def test_the_error_probabilities_of_all_tries_sum_to_alpha() -> None:
    certificate, total = LossCertificate(LOSS), 0.0
    for certificate.tries in range(1, 20_000):
        total += 1.0 / certificate.needed
    assert total == pytest.approx(ALPHA, rel=1e-3)
    assert total < ALPHA


def test_a_long_good_past_does_not_delay_the_alarm() -> None:
    counts = [labels_until(certified(labels=past), 1.0, "learning") for past in (100, 3000)]
    assert counts[0] == counts[1]


def test_a_rise_shows_earlier_in_a_frame_without_loss() -> None:
    def audits_until_alarm(mean: float) -> int:
        return labels_until(fill(certified(labels=2000), [mean] * 2000), 0.15, "learning")

    assert audits_until_alarm(-0.1) == audits_until_alarm(0.0) < audits_until_alarm(0.04)


def test_a_cheaper_model_that_was_better_and_becomes_equal_raises_no_alarm() -> None:
    certificate = fill(certified(), [-0.5] * 500 + [0.0] * 5000)
    assert (certificate.state, certificate.tries) == ("certified", 1)


@given(st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.0, 0.3, 1.0]), max_size=60), st.sampled_from([0.02, 0.05, 0.1]))
@settings(max_examples=60, deadline=None)
def test_the_bound_is_the_least_loss_that_would_be_certified(labels: list[float], loss: float) -> None:
    certificate = LossCertificate(loss)
    for k, z in enumerate(labels, 1):
        certificate.add(z)
        bound, needed = certificate.bound(), certificate.needed
        if certificate.state != "learning":
            break
        assert bound > loss
        if bound < 1.0:
            assert evidence(labels[:k], bound) >= needed * (1 - 1e-9)
        assert evidence(labels[:k], bound - BOUND_STEP) < needed
    if certificate.state == "certified":
        assert certificate.bound() <= loss + BOUND_STEP


def test_the_bound_falls_with_ties_and_rises_with_a_loss() -> None:
    certificate, bounds = LossCertificate(0.01), []
    for _ in range(20):
        fill(certificate, [0.0] * 20)
        bounds.append(certificate.bound())
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < bounds[0]
    certificate.add(1.0)
    assert certificate.bound() > bounds[-1]


@pytest.mark.parametrize("z", [-1.01, 1.01, math.nan, math.inf])
def test_a_label_out_of_range_is_refused(z: float) -> None:
    certificate = LossCertificate(LOSS)
    with pytest.raises(InvalidInput, match="a label must be −1 to 1, not"):
        certificate.add(z)
    assert certificate.labels == 0


@pytest.mark.parametrize("loss", [0.0, 1.0, -0.1, math.nan])
def test_a_loss_out_of_range_is_refused(loss: float) -> None:
    with pytest.raises(InvalidInput, match="the loss must be above 0 and below 1, not"):
        LossCertificate(loss)


# Frames.


def test_the_choice_follows_the_state_and_the_draw() -> None:
    frame = Frame(LOSS, LabelBudget(0.03))
    assert (frame.choose(0.0), frame.choose(MAX_LABELLED)) == ("label", "asked")
    labels_until(frame.certificate, -1.0, "certified")
    assert (frame.choose(0.0), frame.choose(AUDIT), frame.choose(0.999)) == ("audit", "swap", "swap")
    labels_until(frame.certificate, 1.0, "learning")
    assert frame.choose(0.0) == "label"
    labels_until(frame.certificate, 1.0, "hopeless")
    assert frame.choose(0.0) == "asked"


def test_without_a_budget_a_frame_gets_the_first_labels_only() -> None:
    frame, labels = Frame(LOSS, LabelBudget(0.0)), 0
    for k in range(1000):
        if frame.choose(0.0) == "label":
            labels += 1
            frame.add_label(float(k % 10 == 0), 0.2)
        frame.budget.asked_cost += 1.0
    assert frame.certificate.state == "learning"
    assert labels == START_LABELS


@pytest.mark.parametrize("budget", [0.01, 0.05])
def test_labels_stay_within_the_budget_and_use_it(budget: float) -> None:
    rng, frame, dearest = random.Random(2), Frame(LOSS, LabelBudget(budget)), 0.4
    labels = 0
    for _ in range(10_000):
        asked = rng.uniform(0.5, 1.5)
        choice = frame.choose(rng.random())
        frame.budget.asked_cost += asked
        if choice == "label":
            labels += 1
            frame.add_label(1.0 if labels % 20 == 0 else 0.0, rng.uniform(0.1, dearest))
        assert frame.budget.label_cost <= budget * frame.budget.asked_cost + START_LABELS * dearest
    assert frame.certificate.state == "learning"
    assert frame.budget.label_cost >= budget * frame.budget.asked_cost
