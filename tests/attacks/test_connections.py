"""More connections and requests than one caller may hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.attacks.test_timeouts import connections
from tests.support.raw_client import RawClient, chat, get, message
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

ConnectFrom = Callable[..., RawClient]
ATTACKER, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"max_connections": 20, "max_connections_per_address": 12, "max_requests_per_caller": 10}


@pytest.fixture
def connect_from(proxy: RunningProxy) -> Iterator[ConnectFrom]:
    with ExitStack() as stack:
        yield lambda source="127.0.0.1": stack.enter_context(RawClient(proxy.url, source=source))
    wait_until(lambda: len(connections(proxy)) == 0)
    connections(proxy).check()


@pytest.fixture
def hanging(upstream: RecordingUpstream) -> Iterator[threading.Event]:
    """Let every request hang at the upstream until the event is set."""
    released = threading.Event()
    upstream.always(hang_until(released))
    yield released
    released.set()


def hang_until(released: threading.Event) -> Callable[[UpstreamSide, RecordedRequest], None]:
    def script(side: UpstreamSide, _request: RecordedRequest) -> None:
        released.wait(60)
        side.reset()

    return script


def served(client: RawClient) -> bool:
    response = client.send(get("/healthz")).response_or_none("GET")
    return response is not None and response.status == 200


def test_one_address_cannot_take_the_connections_of_others(connect_from: ConnectFrom, proxy: RunningProxy) -> None:
    attackers = [connect_from(ATTACKER) for _ in range(200)]
    assert served(connect_from(OTHER))
    assert served(connect_from())
    wait_until(lambda: len(connections(proxy)) <= 14)
    assert served(connect_from(ATTACKER))  # the newest of an address replaces its oldest
    assert attackers[0].read_until_close() == b""


def test_idle_connections_are_closed_before_half_sent_requests(connect_from: ConnectFrom) -> None:
    half = [connect_from(ATTACKER).send(chat("half")[:-3]) for _ in range(6)]
    idle = [connect_from(ATTACKER) for _ in range(6)]
    for client in idle:
        assert served(client)
    more = [connect_from(ATTACKER) for _ in range(6)]
    for client in more:
        assert served(client)
    for client in half:
        assert client.send(chat("half")[-3:]).response().status == 200
    for client in idle:
        assert client.read_until_close() == b""


def test_busy_connections_are_kept_and_new_ones_of_their_address_get_503(
    connect_from: ConnectFrom, hanging: threading.Event, upstream: RecordingUpstream
) -> None:
    clients = [connect_from(ATTACKER) for _ in range(12)]
    for k, client in enumerate(clients):
        client.send(chat("hangs", key=f"k{k}"))
    upstream.wait_for(12)
    refused = connect_from(ATTACKER).send(get("/healthz"))
    (response,) = refused.responses_until_close()
    assert (response.status, response.header("retry-after"), response.header("connection")) == (503, "1", "close")
    assert served(connect_from(OTHER))
    hanging.set()
    for client in clients:
        assert client.response().status == 502


def test_one_caller_cannot_take_all_requests(
    connect_from: ConnectFrom, hanging: threading.Event, upstream: RecordingUpstream
) -> None:
    upstream.always(None)
    for _ in range(2):
        response = connect_from().send(chat("known", key="many")).response()
    upstream.always(hang_until(hanging))
    clients = [connect_from(ATTACKER if k < 5 else OTHER) for k in range(10)]
    paths = ("/v1/chat/completions", "/v1/files")
    for k, client in enumerate(clients):
        body = b'{"model": "m%d", "messages": []}' % k
        client.send(message(f"POST {paths[k % 2]} HTTP/1.1", "Authorization: Bearer many", body=body))
    upstream.wait_for(11)
    for path in paths:
        sent = message(f"POST {path} HTTP/1.1", "Authorization: Bearer many", body=b'{"model": "m"}')
        response = connect_from().send(sent).response()
        assert (response.status, response.header("retry-after")) == (429, "1")
    upstream.always(None)
    assert connect_from().send(chat("another caller", key="few")).response().status == 200
    hanging.set()
    for client in clients:
        client.response()
    assert connect_from().send(chat("again", key="many")).response().status == 200
