"""The document of a history: which times it may have."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from knapcache import InvalidInput
from knapcache.proxy.events import history_file
from knapcache.proxy.events.feature_sums import LAST_DAY, read_amount, read_count
from knapcache.proxy.events.history_file import HistoryTable
from knapcache.proxy.events.usage import UsageRow


@pytest.mark.parametrize(("kind", "per_day"), [("minutes", 24 * 60), ("hours", 24), ("days", 1)])
def test_times_up_to_the_last_day_are_read(kind: str, per_day: int) -> None:
    last = LAST_DAY * per_day
    document = json.loads(history_file.pack(HistoryTable(since=0.0)))
    for number, allowed in ((1, True), (last, True), (0, False), (last + 1, False)):
        text = json.dumps(document | {kind: {str(number): UsageRow().to_list()}}).encode()
        if allowed:
            assert list(getattr(history_file.unpack(text), kind)) == [number]
        else:
            with pytest.raises(InvalidInput, match=f"numbers from 1 to {last}"):
                history_file.unpack(text)


@pytest.mark.parametrize("value", [-0.5, -1, math.inf, -math.inf, math.nan, True, "1", None])
def test_amounts_are_finite_numbers_from_zero_on(value: Any) -> None:
    with pytest.raises(ValueError, match="a number, 0 or more, is needed"):
        read_amount(value)
    assert [read_amount(each) for each in (0, 2, 0.5)] == [0.0, 2.0, 0.5]


@pytest.mark.parametrize("value", [-1, 1.0, math.nan, True, "1", None])
def test_counts_are_whole_numbers_from_zero_on(value: Any) -> None:
    with pytest.raises(ValueError, match="a whole number, 0 or more, is needed"):
        read_count(value)
    assert [read_count(each) for each in (0, 2)] == [0, 2]
