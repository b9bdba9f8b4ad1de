"""The texts of a refusal."""

from __future__ import annotations

import pytest

from knapcache.features.limits.refusal import time_text


@pytest.mark.parametrize(("at", "text"), [(0.0, "1970-01-01T00:00:00Z"), (59.001, "1970-01-01T00:01:00Z")])
def test_a_time_is_rounded_up_so_that_the_limit_is_reset_then(at: float, text: str) -> None:
    assert time_text(at) == text
