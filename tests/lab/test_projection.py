"""Projections of savings."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from knapcache.lab.projection import DAY, MIN_BLOCKS, block_length, block_savings, projection, span_text, t_quantile


@pytest.mark.parametrize("seconds", [None, 0.0, 6.0, 3600.0, DAY - 1])
def test_less_than_a_day_is_not_projected(seconds: float | None) -> None:
    found = projection(seconds, 12.5, [3.0, 4.0, 3.0, 2.5])
    assert found.saved == 12.5
    assert (found.per_day, found.per_day_low, found.per_day_high) == (None, None, None)
    assert found.method.startswith("No projection: the log ")


def test_a_day_is_projected_from_its_quarters_with_a_wide_range() -> None:
    found = projection(DAY, 10.0, [1.0, 2.0, 5.0, 2.0])
    low, high = stats.t.interval(0.95, 3, 10.0, 4 * stats.sem([1.0, 2.0, 5.0, 2.0]))
    assert found.per_day == pytest.approx(10.0)
    assert low < 0
    assert found.per_day_low == 0.0, "no saving is negative"
    assert found.per_day_high == pytest.approx(high, rel=0.01)
    assert "4 quarters of a day" in found.method


def test_several_days_are_projected_from_whole_days() -> None:
    days = [9.0, 11.0, 10.0, 12.0, 8.0, 10.0]
    found = projection(6.4 * DAY, 63.0, days)
    low, high = stats.t.interval(0.95, 5, 10.0, stats.sem(days))
    assert found.span == "6.4 days"
    assert found.per_day == pytest.approx(10.0)
    assert found.per_day_low == pytest.approx(low, rel=0.01)
    assert found.per_day_high == pytest.approx(high, rel=0.01)
    assert "6 days" in found.method


def test_the_range_contains_the_truth_about_19_times_in_20() -> None:
    rng, hits = np.random.default_rng(1), 0
    for _ in range(2000):
        found = projection(7 * DAY, 0.0, rng.normal(100.0, 15.0, 7).tolist())
        assert found.per_day_low is not None
        assert found.per_day_high is not None
        hits += found.per_day_low <= 100.0 <= found.per_day_high
    assert 0.93 <= hits / 2000 <= 0.97


def test_blocks_are_whole_and_share_the_saving_by_weight() -> None:
    hours = np.arange(30.5 * 2) * 1800.0 + 1.7e9  # 30 hours, a request every half hour
    weights = np.where(np.arange(len(hours)) % 2 == 0, 0.0, 2.0)
    blocks = block_savings(hours, 15.0, weights)
    assert len(blocks) == 5, "30 hours are five quarters of a day"
    assert blocks == pytest.approx([3.0] * 5)
    assert block_savings(hours[::-1], 15.0, weights[::-1]) == pytest.approx(blocks), "in any order"
    assert block_savings(hours[:10], 1.0, weights[:10]) == []
    part = hours[1:-1], 15.0, weights[1:-1]
    assert (len(block_savings(*part)), len(block_savings(*part, 30 * 3600.0))) == (4, 5), "the span of the whole log"
    assert block_savings(np.zeros(0), 1.0, np.zeros(0)) == []
    assert block_savings(hours, 15.0, np.zeros(len(hours))) == []


def test_a_day_is_a_block_from_four_days_on() -> None:
    assert block_length(None) is block_length(DAY - 1) is block_length(float("inf")) is None
    assert block_length(DAY) == block_length(MIN_BLOCKS * DAY - 1) == DAY / MIN_BLOCKS
    assert block_length(MIN_BLOCKS * DAY) == DAY


def test_too_few_blocks_are_not_projected() -> None:
    found = projection(DAY, 3.0, [1.0, 1.0, 1.0])
    assert found.per_day is None
    assert found.method == "No projection: there are 3 blocks of savings, and a range needs 4."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "an unknown time"), (0.0, "0 seconds"), (1.0, "1 second"), (6.24, "6.24 seconds"), (90.0, "1.5 minutes"),
     (3600.0, "1 hour"), (2.5 * DAY, "2.5 days"), (1234 * DAY, "1234 days")],
)  # fmt: skip
def test_spans_are_written_for_people(seconds: float | None, text: str) -> None:
    assert span_text(seconds) == text


def test_the_quantile_is_close_to_students() -> None:
    for degrees in (3, 4, 6, 10, 30, 300):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=0.01)
