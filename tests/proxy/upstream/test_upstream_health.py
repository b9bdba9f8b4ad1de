"""Passive health of one upstream: states and their times."""

from __future__ import annotations

import pytest

from knapcache.proxy.upstream.upstream import (
    FIRST_OPEN,
    MAX_FAILED,
    MAX_FAILURES,
    MAX_OPEN,
    MAX_RETRY_AFTER,
    PROBE_SECONDS,
    WINDOW,
    HealthState,
    PassiveHealth,
)


def fail(health: PassiveHealth, now: float, retry_after: float | None = None) -> None:
    health.fail(health.begin(now), now, retry_after)


def opened(now: float = 100.0) -> PassiveHealth:
    health = PassiveHealth()
    for _ in range(MAX_FAILURES):
        assert health.available(now)
        fail(health, now)
    return health


def test_failures_in_a_row_open_it() -> None:
    health = opened()
    assert health.state(100.0) is HealthState.OPEN
    assert not health.available(100.0 + FIRST_OPEN * 0.99)
    assert health.state(100.0 + FIRST_OPEN) is HealthState.HALF_OPEN
    assert health.last_failure == 100.0


def test_successes_between_failures_keep_it_healthy_until_half_of_all_requests_fail() -> None:
    health = PassiveHealth()
    for _ in range(100):
        for _ in range(MAX_FAILURES - 1):
            fail(health, 1.0)
        for _ in range(WINDOW - MAX_FAILURES + 1):
            health.succeed(health.begin(1.0))
        assert health.state(1.0) is HealthState.HEALTHY
    for k in range(MAX_FAILED):
        assert health.state(1.0) is HealthState.HEALTHY, k
        health.succeed(health.begin(1.0))
        fail(health, 1.0)
    assert health.state(1.0) is HealthState.OPEN


def test_one_request_is_the_probe_and_its_success_closes_it() -> None:
    health = opened()
    now = 100.0 + FIRST_OPEN
    probe = health.begin(now)
    assert health.state(now) is HealthState.HALF_OPEN
    assert not health.available(now), "one probe at a time"
    health.succeed(probe)
    assert health.state(now) is HealthState.HEALTHY
    for _ in range(MAX_FAILURES - 1):
        fail(health, now)
    assert health.state(now) is HealthState.HEALTHY, "failures before the recovery do not count"


def test_the_time_doubles_with_each_failed_probe_up_to_its_bound() -> None:
    health, now, times = opened(), 100.0, []
    for _ in range(9):
        times.append(health.open_until - now)
        now = health.open_until
        fail(health, now)
    assert times == [pytest.approx(min(MAX_OPEN, FIRST_OPEN * 2.0**k)) for k in range(9)]
    health.succeed(health.begin(health.open_until))
    for _ in range(MAX_FAILURES):
        fail(health, now)
    assert health.open_until - now == pytest.approx(FIRST_OPEN), "a recovery resets it"


def test_retry_after_opens_it_for_that_long() -> None:
    health = PassiveHealth()
    fail(health, 10.0, 30.0)
    assert (health.available(39.9), health.available(40.0)) == (False, True)
    fail(health, 40.0)
    assert health.open_until == pytest.approx(40.0 + FIRST_OPEN)
    fail(health, 50.0, 1e9)
    assert health.open_until == pytest.approx(50.0 + MAX_RETRY_AFTER)


def test_results_of_requests_from_before_it_opened_change_nothing() -> None:
    health = PassiveHealth()
    early = [health.begin(0.0) for _ in range(10)]
    for number in early:
        health.fail(number, 100.0)
    assert health.open_until == pytest.approx(100.0 + FIRST_OPEN)
    health.succeed(early[0])
    assert health.state(100.0) is HealthState.OPEN
    fail(health, 100.0 + FIRST_OPEN)
    assert health.open_until == pytest.approx(100.0 + 3 * FIRST_OPEN), "ten failures have opened it once"


def test_a_request_sent_to_an_open_one_closes_it_if_it_is_answered() -> None:
    health = opened()
    until = health.open_until
    for _ in range(10):
        fail(health, 100.5)
    assert health.open_until == until, "only failed probes make the time longer"
    health.succeed(health.begin(100.5))
    assert health.state(100.5) is HealthState.HEALTHY


def test_a_probe_without_a_result_does_not_keep_it_half_open_for_ever() -> None:
    health = opened()
    now = 100.0 + FIRST_OPEN
    health.release(health.begin(now), now)
    assert health.available(now), "a caller's error says nothing: the next request is the probe"
    health.begin(now)
    assert not health.available(now + PROBE_SECONDS - 1)
    assert health.available(now + PROBE_SECONDS)
