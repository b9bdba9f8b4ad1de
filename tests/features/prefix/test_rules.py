"""Rules that the learned one is compared with."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from knapcache.features.prefix.provider_cache import Mark
from knapcache.features.prefix.request import Position
from knapcache.features.prefix.rules import Rule, last, system2


@pytest.mark.parametrize("rule", [last(300.0), system2(300.0)])
@pytest.mark.parametrize("continued", [-1, 0])
def test_prefixes_below_the_minimum_are_not_marked(rule: Rule, continued: int) -> None:
    request = Mock(positions=[Position("a", 10), Position("b", 2000)], minimum=1024, system=0)
    assert rule(Mock(reads_at_marks=True), request, Mock(at=continued), Mock()) == [Mark(1, 300.0)]
