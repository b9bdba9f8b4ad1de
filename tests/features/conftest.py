"""A fake upstream, running proxies in front of it, a Valkey or Redis server, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import chromium
from tests.support.programs import find_module
from tests.support.proxy_fixtures import Start, proxy, start, upstream
from tests.support.redis_servers import RedisProcess

__all__ = ["Start", "browser", "proxy", "start", "upstream"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    find_module("redis", "the extra redis")
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server
