"""A fake upstream, running proxies in front of it, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import chromium
from tests.support.proxy_fixtures import Start, proxy, start, upstream

__all__ = ["Start", "browser", "proxy", "start", "upstream"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched
