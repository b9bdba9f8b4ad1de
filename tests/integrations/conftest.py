"""A fake upstream and an empty cache for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from knapcache import Cache
from knapcache.testing import FakeUpstream


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture
def cache() -> Iterator[Cache]:
    with Cache("4MB", policy="lru", shadows=()) as cache:
        yield cache
        cache.check()
