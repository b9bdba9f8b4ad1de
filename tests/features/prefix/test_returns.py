"""Return times against counts by hand, and against all that can be known of a sample with censoring."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.features.prefix.conversations import EDGES, FIRST_HAZARD, WEIGHT, ReturnCurve, ReturnTimes


def by_hand(gaps: list[float | None], until: float) -> list[float]:
    """Return the Kaplan-Meier curve of requests that began at 0 and returned after a gap, or not until a time."""
    curve, survival = [], 1.0
    for k, edge in enumerate(EDGES):
        start = EDGES[k - 1] if k else 0.0
        returned = sum(gap is not None and start < gap <= edge and gap <= until for gap in gaps)
        survived = sum((gap is None or gap > edge) and edge < until for gap in gaps)
        hazard = (returned + WEIGHT * FIRST_HAZARD) / (returned + survived + WEIGHT)
        survival *= 1.0 - hazard
        curve.append(1.0 - survival)
    return curve


@given(
    gaps=st.lists(st.none() | st.floats(0.5, 90_000.0), max_size=40),
    until=st.floats(1.0, 100_000.0),
)
def test_the_curve_is_that_of_kaplan_and_meier(gaps: list[float | None], until: float) -> None:
    times = ReturnTimes()
    for name in range(len(gaps)):
        times.begin(name, ("all",), 0.0)
    returns = sorted((gap, name) for name, gap in enumerate(gaps) if gap is not None and gap <= until)
    for gap, name in returns:
        times.advance(gap)
        times.end(name, gap)
    times.advance(until)
    expected = by_hand(gaps, until)
    curve = times.curve(("all",))
    assert [curve.within(edge) for edge in EDGES] == pytest.approx(expected)
    assert curve.ever == pytest.approx(expected[-1])


def test_running_conversations_do_not_count_as_ended() -> None:
    """Half of the conversations return after 200 s. Those that began a minute ago say nothing about that."""
    times, rng = ReturnTimes(), random.Random(1)
    for name in range(1000):
        times.begin(name, ("all",), 0.0)
    for name in range(500):
        times.advance(200.0 + name / 1000)
        times.end(name, 200.0 + name / 1000)
    times.advance(400.0)
    before = times.curve(("all",)).within(300.0)
    for name in range(1000, 3000):
        times.begin(name, ("all",), 400.0 + rng.random())
    times.advance(450.0)
    assert times.curve(("all",)).within(300.0) == pytest.approx(before, abs=0.02)
    assert before == pytest.approx(0.5, abs=0.05)


def test_a_class_without_observations_has_the_curve_of_its_parent() -> None:
    times = ReturnTimes()
    for name in range(200):
        times.begin(name, ("all", "tool"), 0.0)
        times.end(name, 10.0)
    parent, child = times.curve(("all",)), times.curve(("all", "text"))
    assert [child.within(edge) for edge in EDGES] == pytest.approx([parent.within(edge) for edge in EDGES])
    assert times.curve(("all", "tool")).within(15.0) > parent.within(15.0)


def test_a_curve_is_linear_between_the_ends_of_buckets() -> None:
    curve = ReturnCurve([0.1 * k for k in range(1, len(EDGES) + 1)])
    assert curve.within(0.0) == 0.0
    assert curve.within(7.5) == pytest.approx(0.05)
    assert curve.within((15.0 + 60.0) / 2) == pytest.approx(0.15)
    assert curve.within(1e9) == curve.ever == pytest.approx(1.0)
