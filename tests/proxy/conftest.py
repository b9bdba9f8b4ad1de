"""A fake upstream, running proxies in front of it, and a server for shared stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.proxy_fixtures import Start, proxy, start, upstream
from tests.support.redis_servers import RedisProcess

__all__ = ["Start", "engine", "proxy", "start", "upstream"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("engine")) as server:
        yield server
