"""The registry of connections with scripted connections and a scripted clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from knapcache.proxy.http.connections import (
    BODY,
    BUSY,
    CLOSING,
    HEAD,
    IDLE,
    LINGER_SECONDS,
    LINGERING,
    MAX_REFUSED,
    UNREAD,
    Connections,
    Stage,
)
from knapcache.proxy.settings import Settings
from tests.support.timing import async_wait_until


class ScriptedConnection:
    """A connection whose stage a test sets."""

    def __init__(self, host: str | None, stage: Stage = IDLE, mark: int = 1) -> None:
        self.client = None if host is None else (host, 1)
        self.at, self.mark, self.body_size = stage, mark, 0
        self.expired: list[Stage] = []
        self.evicted = False

    def stage(self) -> tuple[Stage, int]:
        return self.at, self.mark

    def expire(self, stage: Stage) -> None:
        self.expired.append(stage)

    def evict(self) -> None:
        self.evicted = True


class Registry:
    """Connections with a clock that a test moves."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        given = {"upstreams": [{"url": "http://127.0.0.1:9/v1"}], **settings}
        self.connections = Connections(Settings(**given), clock=lambda: self.now)

    def add(self, *found: ScriptedConnection) -> list[bool]:
        added = []
        for connection in found:
            self.now += 1.0
            added.append(self.connections.add(connection))
            self.connections.check()
        return added

    def sweep(self, seconds: float) -> None:
        self.now += seconds
        self.connections._sweep()


async def test_every_stage_has_its_timeout() -> None:
    times = {"head_timeout": 10, "body_timeout": 20, "idle_timeout": 30, "write_timeout": 40}
    registry = Registry(**times)
    allowed = {HEAD: 10.0, BODY: 20.0, IDLE: 30.0, UNREAD: 40.0, CLOSING: 40.0, LINGERING: LINGER_SECONDS}
    found = {stage: ScriptedConnection("10.0.0.1", stage) for stage in Stage}
    registry.add(*found.values())
    registry.sweep(0.0)
    for seconds in range(1, 50):
        registry.sweep(1.0)
        for stage, connection in found.items():
            assert bool(connection.expired) == (stage is not BUSY and seconds >= allowed[stage])


async def test_progress_starts_the_time_again() -> None:
    registry = Registry(write_timeout=10)
    connection = ScriptedConnection("10.0.0.1", UNREAD)
    registry.add(connection)
    for _ in range(10):
        connection.mark += 1
        registry.sweep(9.0)
    assert connection.expired == []
    registry.sweep(10.0)
    assert connection.expired == [UNREAD]


async def test_a_body_gets_more_time_for_what_has_arrived() -> None:
    registry = Registry(body_timeout=10)
    connection = ScriptedConnection("10.0.0.1", BODY)
    connection.body_size = 100_000
    registry.add(connection)
    registry.sweep(0.0)
    registry.sweep(19.0)
    assert connection.expired == []
    registry.sweep(1.0)
    assert connection.expired == [BODY]


async def test_a_silent_connection_is_timed_from_its_start() -> None:
    registry = Registry(head_timeout=10)
    connection = ScriptedConnection("10.0.0.1", HEAD, mark=0)
    registry.add(connection)
    registry.sweep(10.0)
    assert connection.expired == [HEAD]


async def test_the_oldest_idle_connection_of_the_largest_address_is_closed() -> None:
    registry = Registry(max_connections=8, max_connections_per_address=6)
    few = [ScriptedConnection("10.0.0.1") for _ in range(2)]
    many = [ScriptedConnection("10.0.0.2", stage) for stage in (BODY, HEAD, IDLE, IDLE, BUSY, UNREAD)]
    registry.add(*few, *many)
    registry.sweep(1.0)
    order = []
    for _ in range(3):
        assert registry.add(ScriptedConnection("10.0.0.3", BUSY)) == [True]
        order += [connection for connection in many if connection.evicted and connection not in order]
        assert not any(connection.evicted for connection in few)
    assert [connection.at for connection in order] == [IDLE, IDLE, HEAD]
    assert order[:2] == many[2:4]


async def test_a_connection_that_ends_takes_no_room() -> None:
    registry = Registry(max_connections=2, max_connections_per_address=2)
    idle, closing = ScriptedConnection("10.0.0.1", IDLE), ScriptedConnection("10.0.0.1", CLOSING)
    assert registry.add(idle, closing, ScriptedConnection("10.0.0.1")) == [True, True, True]
    assert (idle.evicted, closing.evicted) == (False, True)


async def test_only_connections_that_still_wait_are_closed() -> None:
    registry = Registry(max_connections=2, max_connections_per_address=2)
    first, second = ScriptedConnection("10.0.0.1"), ScriptedConnection("10.0.0.1")
    registry.add(first, second)
    registry.connections._rank(registry.now)
    first.at = BUSY
    registry.now -= 1.0  # not ranked again
    assert registry.add(ScriptedConnection("10.0.0.2")) == [True]
    assert (first.evicted, second.evicted) == (False, True)


@pytest.mark.parametrize("stage", [BUSY, UNREAD])
async def test_busy_connections_are_not_closed(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(max_connections=4, max_connections_per_address=2)
    found = [ScriptedConnection("10.0.0.1", stage) for _ in range(4)]
    with caplog.at_level(logging.WARNING):
        assert registry.add(*found) == [True, True, False, False]
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # one for both
    registry.connections.remove(found[0])
    assert registry.add(found[2]) == [True]
    refused = [ScriptedConnection("10.0.0.1") for _ in range(MAX_REFUSED + 1)]
    assert [registry.connections.add_refused(each) for each in refused] == [True] * MAX_REFUSED + [False]
    registry.sweep(LINGER_SECONDS)
    assert all(each.evicted for each in refused[:-1])
    for each in refused:
        registry.connections.remove(each)
    registry.connections.check()


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
async def test_an_address_has_a_share(first: str, second: str, together: bool) -> None:
    registry = Registry(max_connections=4)
    assert registry.add(ScriptedConnection(first, BUSY), ScriptedConnection(second, BUSY)) == [True, not together]


@pytest.mark.parametrize("host", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::5", None])
async def test_trusted_proxies_and_unix_sockets_have_no_share(host: str | None) -> None:
    registry = Registry(max_connections=4, trusted_proxies="10.0.0.0/8, 2001:db8::5")
    assert registry.add(*(ScriptedConnection(host, BUSY) for _ in range(5))) == [True] * 4 + [False]


async def test_the_sweep_ends_with_the_last_connection() -> None:
    registry = Registry(idle_timeout=0.04)
    connection = ScriptedConnection("10.0.0.1")
    registry.add(connection)
    assert registry.connections._timer is not None
    registry.connections.remove(connection)
    await async_wait_until(lambda: registry.connections._timer is None)


def test_fewer_files_mean_fewer_connections() -> None:
    registry = Registry(max_connections=100)
    registry.connections.reduce(10)
    assert (registry.connections._max, registry.connections._max_per_address) == (10, 10)
