"""A fake upstream, and running proxies in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from knapcache.testing import FakeUpstream
from tests.support.running_proxy import RunningProxy

Start = Callable[..., RunningProxy]


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture
def start(upstream: FakeUpstream, tmp_path: Path) -> Iterator[Start]:
    """Start proxies with given settings. They stop with the test, after a check of their cache."""
    with ExitStack() as stack:

        def start(**settings: Any) -> RunningProxy:
            folder = settings.pop("path", tmp_path / "data")
            proxy = stack.enter_context(RunningProxy(folder, upstream.openai_url, **settings))
            stack.callback(proxy.proxy.cache.check)
            return proxy

        yield start


@pytest.fixture
def proxy(start: Start) -> RunningProxy:
    return start()
