"""A fake provider, and a proxy in front of it that really runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.serve.running import Running

from knapcache.testing import FakeUpstream

Start = Callable[..., Running]


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture
def start(upstream: FakeUpstream, tmp_path: Path) -> Iterator[Start]:
    """Proxies with settings of one's own, which end with the test; what they keep must add up."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Running:
            folder = settings.pop("path", tmp_path / "data")
            proxy = stack.enter_context(Running(folder, upstream.openai, **{"policy": "lru", **settings}))
            stack.callback(proxy.proxy.cache.check)
            return proxy

        yield start


@pytest.fixture
def proxy(start: Start) -> Running:
    return start()
