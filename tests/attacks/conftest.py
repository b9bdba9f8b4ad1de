"""One proxy per module in front of a recording upstream, raw connections, and checks after every attack."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.proxy_process import ProxyProcess
from tests.support.raw_client import RawClient, chat, exchange
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy

Connect = Callable[[], RawClient]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    """Settings of the module's proxy. A module with other settings overrides this fixture."""
    return {}


@pytest.fixture(scope="module")
def proxy(
    upstream: RecordingUpstream, proxy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """The module's proxy, in a thread of this process."""
    with RunningProxy(tmp_path_factory.mktemp("data"), upstream.openai_url, **proxy_settings) as proxy:
        yield proxy
        proxy.proxy.cache.check()


@pytest.fixture(scope="module")
def process(
    upstream: RecordingUpstream, proxy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """The module's proxy as a process of its own."""
    with ProxyProcess(tmp_path_factory.mktemp("data"), upstream.openai_url, **proxy_settings) as process:
        yield process


@pytest.fixture(autouse=True)
def still_serving(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forget the upstream's records before an attack. After it, check that the proxy still serves a caller."""
    names = request.fixturenames
    upstream = request.getfixturevalue("upstream") if "upstream" in names else None
    if upstream is not None:
        upstream.clear()
    yield
    if upstream is not None:
        assert upstream.malformed == [], "the proxy sent something to the upstream that is no request"
        upstream.clear()
    for name in ("proxy", "process"):
        if name in names:
            text = f"still serving {next(NUMBERS)}"
            key = getattr(request.module, "VALID_KEY", "k")
            (response,) = exchange(request.getfixturevalue(name).url, chat(text, key=key))
            assert response.status == 200, response
            assert response.text == f"You said: {text}"


@pytest.fixture
def connect(proxy: RunningProxy) -> Iterator[Connect]:
    """Open connections to the module's proxy. They close with the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(RawClient(proxy.url))
