"""The three forms of the counters of limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from knapcache.features.limits.core import Counts
from knapcache.features.limits.redis_counts import RedisCounts
from knapcache.features.limits.sqlite_counts import SqliteCounts
from knapcache.store.redis.urls import parse

_numbers = itertools.count()
OpenCounts = Callable[[str], Counts]
"""Opens the counters of a process with this name. All processes of a test share them, unless they are in memory."""


@pytest.fixture(params=["memory", "sqlite", "redis"])
def open_counts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenCounts]:
    opened: list[Counts] = []
    stores = []
    if request.param == "redis":
        from knapcache.store.redis.store import RedisStore

        scheme, _, location = request.getfixturevalue("engine").url.partition(":")
        address = parse(scheme, f"{location}?prefix=limits{next(_numbers)}&near=0&timeout=5")
        stores.append(RedisStore(address, 2 << 20, secret=b"secret"))

    def open_one(process: str) -> Counts:
        if stores:
            opened.append(RedisCounts(stores[0].call_counts, process, b"secret"))
        else:
            opened.append(SqliteCounts(tmp_path / "limits.sqlite" if request.param == "sqlite" else None, process))
        return opened[-1]

    yield open_one
    for each in opened:
        if isinstance(each, SqliteCounts):
            each.check()
        each.close()
    for store in stores:
        store.close()
